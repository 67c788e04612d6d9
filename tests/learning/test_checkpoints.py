"""Checkpoints after a kill at every moment: what is found at the next start is whole."""

from __future__ import annotations

import builtins
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from lightning import LightningModule

from robustops.errors import ConfigError, TrainingError
from robustops.learning import checkpoints as module
from robustops.learning.checkpoints import (
    MANIFEST,
    Checkpoints,
    ResumePoint,
    StageCheckpoint,
    StreamCheckpointIO,
    commit,
    damage,
)
from robustops.learning.data import StepData
from tests.learning.support import quiet_trainer


def refuse(line):
    raise AssertionError(f"nothing was damaged, but: {line}")


def save(checkpoints: Checkpoints, step: int, *, directory: bool) -> None:
    """What `StageCheckpoint` does: one file as Lightning writes it, or a directory with a part a process."""
    checkpoints.begin(step)
    state = checkpoints.state(step)
    if directory:
        for rank in range(2):
            (state / "checkpoint").mkdir(parents=True, exist_ok=True)
            StreamCheckpointIO().save_checkpoint({"step": step}, state / "checkpoint" / f"rank_{rank}.pt")
        (state / "latest").write_text("checkpoint")
    else:
        StreamCheckpointIO().save_checkpoint({"step": step, "pad": torch.zeros(1000)}, state)
    checkpoints.finish(step, batches=10 * step)


def load(point: ResumePoint) -> int:
    path = point.path / "checkpoint" / "rank_1.pt" if point.path.is_dir() else point.path
    return torch.load(path)["step"]


class Images:
    """Copies of a folder as it was before and after every call into the operating system that changes it.

    Each is what a kill at that moment leaves on disk.
    """

    def __init__(self, monkeypatch, folder: Path, store: Path) -> None:
        self.folder, self.store = folder, store
        self.taken: list[tuple[str, Path]] = []
        self.active = False
        for owner, name in (
            *((os, name) for name in ("replace", "fsync", "mkdir", "unlink", "rmdir", "open", "close")),
            (builtins, "open"),
            (torch, "save"),
        ):
            monkeypatch.setattr(owner, name, self._watched(name, getattr(owner, name)))

    def _watched(self, name, original):
        def call(*args, **kwargs):
            self.take(f"before {name}")
            result = original(*args, **kwargs)
            self.take(f"after {name}")
            return result

        return call

    def take(self, moment: str) -> None:
        if not self.active:
            return
        self.active = False
        try:
            copy = self.store / f"{len(self.taken):04d}"
            shutil.copytree(self.folder, copy)
        finally:
            self.active = True
        self.taken.append((moment, copy))


def differing(images: list[tuple[str, Path]]) -> list[tuple[str, Path]]:
    """Those that differ from the one before, in names or in contents."""
    kept, last = [], None
    for moment, image in images:
        files = {p.relative_to(image): p.read_bytes() if p.is_file() else None for p in image.rglob("*")}
        if files != last:
            kept.append((moment, image))
        last = files
    return kept


@pytest.mark.parametrize("directory", [False, True], ids=["file", "directory of all processes"])
def test_kill_at_every_file_boundary_of_a_save_leaves_the_last_complete_one(tmp_path, monkeypatch, directory):
    """T 41, T 65: a half-written checkpoint is never picked as the latest."""
    checkpoints = Checkpoints(tmp_path / "stage")
    for step in (1, 2):
        save(checkpoints, step, directory=directory)
    with monkeypatch.context() as patch:
        images = Images(patch, tmp_path / "stage", tmp_path / "images")
        images.active = True
        save(checkpoints, 3, directory=directory)
        images.active = False
    found = []
    moments = differing(images.taken)
    for moment, image in moments:
        point = Checkpoints(image).recover(refuse)
        assert point is not None, moment
        assert load(point) == point.step == point.batches // 10, moment
        found.append(point.step)
        assert not [p.name for p in image.iterdir() if p.name.startswith(".")], f"leftovers {moment}"
        # The next start saves the same step again.
        if point.step == 2:
            save(Checkpoints(image), 3, directory=directory)
            assert Checkpoints(image).recover(refuse).step == 3
    assert found == sorted(found) and set(found) == {2, 3}, "the rename is the one moment of change"
    assert len(moments) >= (16 if directory else 9), "there is more than one boundary"


def test_the_newest_and_the_one_before_are_kept_and_the_oldest_goes_before_the_next_is_written(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 9, 10):
        save(checkpoints, step, directory=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000009", "step-00000010"]
    checkpoints.begin(11)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".step-00000011.tmp", "step-00000010"]


def test_a_ring_holds_more_and_a_pinned_one_stays(tmp_path):
    ring = Checkpoints(tmp_path, keep=3)
    ring.pinned = 10  # batches of step 1
    for step in (1, 2, 3, 4, 5):
        save(ring, step, directory=False)
    assert [point.step for point in ring.points()] == [1, 3, 4, 5]
    ring.pinned = None
    save(ring, 6, directory=False)
    assert [point.step for point in ring.points()] == [4, 5, 6]


def test_going_back_discards_what_came_after(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_all=True)
    for step in (1, 2, 3):
        save(checkpoints, step, directory=False)
    checkpoints.discard_after(20)
    assert [point.step for point in checkpoints.points()] == [1, 2]
    checkpoints.discard_after(0)
    assert checkpoints.recover(refuse) is None


def test_a_checkpoint_knows_how_much_was_decided_by_then(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.begin(4)
    checkpoints.state(4).write_text("state")
    checkpoints.finish(4, 4, decisions=2)
    assert checkpoints.recover(refuse).decisions == checkpoints.points()[0].decisions == 2


def harm(folder: Path, how: str) -> None:
    state = folder / "state.ckpt"
    if how == "cut short":
        state.write_bytes(state.read_bytes()[:-1])
    elif how == "one bit flipped":
        content = bytearray(state.read_bytes())
        content[len(content) // 2] ^= 1
        state.write_bytes(content)
    elif how == "absent":
        state.unlink()
    elif how == "no manifest":
        (folder / MANIFEST).unlink()
    else:
        (folder / MANIFEST).write_text(how)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("cut short", "bytes, .* were written"),
        ("one bit flipped", "is not what was written"),
        ("absent", "FileNotFoundError"),
        ("no manifest", "manifest.json"),
        ("{", "JSONDecodeError"),
        ('{"files": []}', "AttributeError"),
    ],
)
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path, how, told):
    checkpoints, lines = Checkpoints(tmp_path), []
    for step in (4, 5):
        save(checkpoints, step, directory=False)
    harm(tmp_path / "step-00000005", how)
    point = checkpoints.recover(lines.append)
    assert point == ResumePoint(tmp_path / "step-00000004" / "state.ckpt", 4, 40) and load(point) == 4
    assert len(lines) == 1 and "\n" not in lines[0] and "step-00000005" in lines[0]
    assert re.search(told, lines[0]), lines[0]
    # Once told, and out of the way of the same step when it is saved again.
    assert checkpoints.recover(refuse) == point
    save(checkpoints, 5, directory=False)
    assert checkpoints.recover(refuse).step == 5
    harm(tmp_path / "step-00000005", how)
    assert checkpoints.recover(lines.append).step == 4, "it can be damaged again"
    checkpoints.remove()
    assert list(tmp_path.iterdir()) == []


def test_without_a_readable_checkpoint_the_error_names_the_file_and_what_to_do(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.recover(refuse) is None and Checkpoints(tmp_path / "none").recover(refuse) is None
    for step in (1, 2):
        save(checkpoints, step, directory=False)
        harm(tmp_path / f"step-{step:08d}", "cut short")
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=r"step-00000002: state\.ckpt has .*remove that folder"
        ) as raised:
            checkpoints.recover(refuse)
    assert str(tmp_path) in str(raised.value) and "step-00000001" in str(raised.value)
    assert (tmp_path / "step-00000002" / "state.ckpt").is_file(), "nothing is thrown away"


def test_a_stage_whose_only_checkpoints_were_set_aside_does_not_start_anew_in_silence(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        save(checkpoints, step, directory=False)
    harm(tmp_path / "step-00000002", "cut short")
    checkpoints.recover([].append)
    shutil.rmtree(tmp_path / "step-00000001")
    with pytest.raises(ConfigError, match=r"step-00000002\.damaged.*put an intact copy back"):
        checkpoints.recover(refuse)


def test_other_things_in_the_folder_are_left_alone(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    (tmp_path / "policy").mkdir()
    (tmp_path / "step-notes.txt").write_text("mine")
    save(checkpoints, 1, directory=False)
    (tmp_path / ".step-00000002.tmp").mkdir()
    assert checkpoints.recover(refuse).step == 1
    assert not (tmp_path / ".step-00000002.tmp").exists()
    checkpoints.remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy", "step-notes.txt"]


def test_commit_lists_every_file_and_never_replaces(tmp_path):
    for name, text in (("a.bin", "12345"), ("parts/b.bin", ""), ("parts/deep/c.bin", "x")):
        (tmp_path / "t" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / name).write_text(text)
    commit(tmp_path / "t", tmp_path / "done", {"step": 3})
    body = json.loads((tmp_path / "done" / MANIFEST).read_text())
    assert body["facts"] == {"step": 3}
    assert {name: entry["bytes"] for name, entry in body["files"].items()} == {
        "a.bin": 5,
        "parts/b.bin": 0,
        "parts/deep/c.bin": 1,
    }
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert body["files"]["parts/b.bin"]["sha256"] == empty
    assert damage(tmp_path / "done") is None and not (tmp_path / "t").exists()
    (tmp_path / "u").mkdir()
    with pytest.raises(FileNotFoundError, match="no file"):
        commit(tmp_path / "u", tmp_path / "other")
    with pytest.raises(FileExistsError, match="done"):
        commit(tmp_path / "u", tmp_path / "done")


# in a trainer ---------------------------------------------------------------------------------------
class Counter(LightningModule):
    """One weight that counts steps."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def training_step(self, step, batch_idx):
        for _ in range(2):  # two optimiser steps a batch
            self.weight.grad = -torch.ones(1)
            self.optimizers().step()


def test_a_stage_saves_every_so_many_batches_and_goes_on_counting_after_a_resume(tmp_path):
    checkpoints = Checkpoints(tmp_path / "stage")

    def fit(total, path=None):
        trainer = quiet_trainer(
            tmp_path,
            StageCheckpoint(checkpoints, 3),
            enable_checkpointing=True,
            plugins=[StreamCheckpointIO()],
        )
        counter, data = Counter(), StepData(total, torch.tensor)
        data._done = lambda: trainer.global_step // 2  # type: ignore[method-assign]
        trainer.fit(counter, datamodule=data, ckpt_path=path, weights_only=False)
        return counter.weight.item()

    assert fit(5) == 10.0
    point = checkpoints.recover(refuse)
    assert (point.step, point.batches) == (6, 3)
    assert fit(8, point.path) == 16.0
    point = checkpoints.recover(refuse)
    assert (point.step, point.batches) == (12, 6), "at the same batches as without the break"
    # From the last batch of the data: nothing more to do, or what was added (T 39).
    assert fit(6, point.path) == 12.0
    assert fit(9, point.path) == 18.0


def test_a_full_disk_ends_the_run_in_one_line_and_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path / "stage")
    original = torch.save

    def full(checkpoint, file):
        if checkpoint["global_step"] == 4:
            with open("/dev/full", "wb") as device:
                original(checkpoint, device)
        original(checkpoint, file)

    monkeypatch.setattr(module.torch, "save", full)
    trainer = quiet_trainer(
        tmp_path, StageCheckpoint(checkpoints, 1), enable_checkpointing=True, plugins=[StreamCheckpointIO()]
    )
    with pytest.raises(TrainingError, match=r"No space left on device.*make room.*resume"):
        trainer.fit(Counter(), datamodule=StepData(3, torch.tensor))
    assert checkpoints.recover(refuse).step == 2


def test_lightning_reads_what_was_streamed(tmp_path):
    plugin = StreamCheckpointIO()
    plugin.save_checkpoint({"weights": torch.arange(5), "name": "x"}, tmp_path / "deep" / "state.ckpt")
    loaded = plugin.load_checkpoint(tmp_path / "deep" / "state.ckpt")
    assert loaded["name"] == "x" and torch.equal(loaded["weights"], torch.arange(5))
    with pytest.raises(TypeError, match="storage options"):
        plugin.save_checkpoint({}, tmp_path / "x", storage_options={})
