"""Checkpoints of a training stage that are whole or absent, at whatever moment the process is killed.

    <folder>/step-00000012/state.ckpt       Lightning's file, or the directory that DeepSpeed writes
    <folder>/step-00000012/manifest.json    size and SHA-256 of every file, what the checkpoint is of
    <folder>/.step-00000014.tmp/            being written; removed at the next start
    <folder>/step-00000012.damaged/         does not agree with its manifest; kept until the stage is complete

A checkpoint is written under its temporary name. Once its files and its manifest are on disk, one rename
makes it complete. The newest one and the one before it are kept (more with `keep`); a newest one that turns
out to be damaged is set aside, and the stage goes on from the one before. With `keep_all` every one stays.
Processes on several machines need a folder that all of them share.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from robustops.errors import ConfigError, TrainingError
from robustops.files import atomic_write_json, sync_folder

STATE, MANIFEST = "state.ckpt", "manifest.json"
_COMPLETE = re.compile(r"step-(\d+)")
_OURS = re.compile(r"\.?step-\d+(\.damaged)?(\.tmp)?")


@dataclass(frozen=True)
class ResumePoint:
    """A complete checkpoint. path: what `Trainer.fit(ckpt_path=...)` takes; step: optimiser steps done;
    batches: batches of the stage's data that these steps took; decisions: entries that the journal of
    interventions had.
    """

    path: Path
    step: int
    batches: int
    decisions: int = 0


def commit(temporary: Path, target: Path, facts: dict[str, Any] | None = None) -> None:
    """Turn a directory into a complete checkpoint: everything on disk, a manifest, one rename.

    With several processes, all of them must have written their files: rank 0 calls this after a barrier.

    Args:
        temporary: a directory on the same file system as `target`, with at least one file.
        target: the checkpoint's name, which must not exist.
        facts: JSON values that the manifest keeps.
    """
    if target.exists():
        raise FileExistsError(f"{target} is a checkpoint already")
    files = {}
    for path in _files(temporary):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[path.relative_to(temporary).as_posix()] = {"bytes": path.stat().st_size, "sha256": digest}
    if not files:
        raise FileNotFoundError(f"{temporary} holds no file to make a checkpoint of")
    atomic_write_json(temporary / MANIFEST, {"facts": facts or {}, "files": files})
    move_into_place(temporary, target)


def move_into_place(temporary: Path, target: Path) -> None:
    """Put all of a directory on disk, then rename it: the target is whole or absent, whatever happens."""
    for path in _files(temporary):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    for folder in (*(path for path in temporary.rglob("*") if path.is_dir()), temporary):
        sync_folder(folder)
    os.replace(temporary, target)
    sync_folder(target.parent)


def damage(folder: Path) -> str | None:
    """How a checkpoint differs from its manifest, or None where every file is as it was written."""
    try:
        files = _manifest(folder)["files"]
        for name, written in files.items():
            path = folder / name
            size = path.stat().st_size
            if size != written["bytes"]:
                return f"{name} has {size} bytes, {written['bytes']} were written"
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != written["sha256"]:
                    return f"the content of {name} is not what was written"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


class Checkpoints:
    """The checkpoints of one stage.

    folder: where they are; other things in it are left alone; keep_all: complete ones stay, however many and
    also after the stage; keep: how many stay otherwise. Methods that write are for rank 0 alone.
    """

    def __init__(self, folder: Path, *, keep_all: bool = False, keep: int = 2) -> None:
        self.folder = folder
        self.keep_all = keep_all
        self.keep = keep
        #: Batches of a checkpoint that stays whatever its age, None: there is none.
        self.pinned: int | None = None

    def points(self) -> list[ResumePoint]:
        """The complete ones, from the oldest to the newest, not held against their manifests' sums."""
        found = []
        for path in self._complete():
            try:
                found.append(_point(path))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # damaged
        return found

    def begin(self, step: int) -> None:
        """Make room for the checkpoint of a step: of the complete ones, the newest stay, older ones go."""
        for path in [] if self.keep_all else self._complete()[: -(self.keep - 1)]:
            if self.pinned is None or self._batches(path) != self.pinned:
                self._discard(path)
        shutil.rmtree(self._temporary(step), ignore_errors=True)
        self._temporary(step).mkdir(parents=True)

    def state(self, step: int) -> Path:
        """Where the checkpoint of a step is to be written, between `begin` and `finish`."""
        return self._temporary(step) / STATE

    def finish(self, step: int, batches: int, decisions: int = 0) -> None:
        """Make the checkpoint of a step, which all processes have written, a complete one."""
        facts = {"step": step, "batches": batches, "decisions": decisions}
        commit(self._temporary(step), self.folder / f"step-{step:08d}", facts)

    def discard_after(self, batches: int) -> None:
        """Remove those of later batches (0: all), which a run that goes back has no use for."""
        for path in self._complete():
            if self._batches(path) > batches:
                self._discard(path)

    def recover(self, say: Callable[[str], None]) -> ResumePoint | None:
        """The newest checkpoint that is complete; None where the stage has none.

        Removes what killed saves left behind. Newer checkpoints that are damaged are set aside, and `say`
        is told of each in one line.

        Raises:
            ConfigError: there are checkpoints, but none is readable.
        """
        for path in self._named():
            if path.name.endswith(".tmp"):
                shutil.rmtree(path)
        found, reasons = None, {}
        for folder in reversed(self._complete()):
            reason = damage(folder)
            if reason is None:
                found = folder
                break
            reasons[folder] = reason
        if found is None:
            self._refuse(reasons)
            return None
        for folder, reason in reasons.items():
            say(f"checkpoint {folder} is damaged ({reason}); going on from {found.name}")
            aside = folder.with_name(f"{folder.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(folder, aside)
        return _point(found)

    def remove(self) -> None:
        """Remove all of them, and what killed saves left behind; where all are kept, only the latter."""
        kept = self._complete() if self.keep_all else []
        for path in self._named():
            if path not in kept:
                self._discard(path)

    # ---------------------------------------------------------------------------------------------
    def _refuse(self, reasons: dict[Path, str]) -> None:
        """ConfigError where checkpoints were set aside and none is left."""
        aside = [path for path in self._named() if path.name.endswith(".damaged")]
        if not reasons and not aside:
            return
        why = "; ".join(f"{path.name}: {reason}" for path, reason in reasons.items()) or aside[-1].name
        raise ConfigError(
            f"no checkpoint in {self.folder} is readable ({why}); put an intact copy back, or remove that "
            "folder to train the stage from its beginning"
        )

    @staticmethod
    def _batches(path: Path) -> int:
        """Of a complete one; -1 where its manifest cannot be read."""
        try:
            return _point(path).batches
        except (OSError, ValueError, KeyError, TypeError):
            return -1

    def _temporary(self, step: int) -> Path:
        return self.folder / f".step-{step:08d}.tmp"

    def _named(self) -> list[Path]:
        """Everything here that this class made."""
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if _OURS.fullmatch(path.name))

    def _complete(self) -> list[Path]:
        """From the oldest to the newest."""
        found = [path for path in self._named() if _COMPLETE.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))

    def _discard(self, path: Path) -> None:
        """Remove a checkpoint so that it is never there in part."""
        leftover = path if path.name.endswith(".tmp") else path.with_name(f".{path.name}.tmp")
        if path != leftover:
            shutil.rmtree(leftover, ignore_errors=True)
            os.replace(path, leftover)
        shutil.rmtree(leftover)


class StageCheckpoint(Checkpoint):
    """Saves a stage's state after every `every` batches, on all processes together.

    Lightning runs it after all other callbacks, so that a checkpoint holds their state of the same moment.
    decisions: see `ResumePoint`.
    """

    def __init__(self, checkpoints: Checkpoints, every: int, decisions: Callable[[], int] = int) -> None:
        self.checkpoints = checkpoints
        self.every = every
        self.decisions = decisions
        #: Whether to save after the batch in work, whatever its number; None: its number decides.
        self.wanted: bool | None = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % self.every == 0 if self.wanted is None else self.wanted:
            self.save(trainer, batch_idx + 1)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Which batch is the last one is for the data of this start to say, which may have more of them.

        Lightning keeps what the data of the checkpoint said, and would train no batch that was added since.
        """
        checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["is_last_batch"] = False

    def save(self, trainer: Trainer, batches: int) -> None:
        """Save now. batches: how many the stage has trained on.

        Raises:
            TrainingError: a file cannot be written; the checkpoint before is untouched.
        """
        step, leads = trainer.global_step, trainer.is_global_zero
        with _disk_errors(self.checkpoints.folder):
            if leads:
                self.checkpoints.begin(step)
            trainer.strategy.barrier("room for a checkpoint")
            trainer.save_checkpoint(self.checkpoints.state(step))  # ends with a barrier
            if leads:
                self.checkpoints.finish(step, batches, self.decisions())
            trainer.strategy.barrier("checkpoint complete")


class StreamCheckpointIO(TorchCheckpointIO):
    """Writes straight to the file: Lightning's own first builds the whole checkpoint in memory again."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        if storage_options is not None:
            raise TypeError("storage options are for object stores; checkpoints are files")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            torch.save(checkpoint, file)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _point(folder: Path) -> ResumePoint:
    """Of a complete checkpoint; raises what a damaged manifest raises."""
    facts = _manifest(folder)["facts"]
    return ResumePoint(folder / STATE, facts["step"], facts["batches"], facts.get("decisions", 0))


def _manifest(folder: Path) -> Any:
    return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise TrainingError(
            f"cannot write a checkpoint to {folder}: {error}; the one before is untouched: make room there, "
            "then resume"
        ) from error
