"""Kill -9 at any moment, also while a checkpoint is written: the run goes on as if it had not been."""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from robustops.learning.checkpoints import Checkpoints
from robustops.learning.pipeline import run_training
from robustops.monitor.telemetry import read_telemetry
from tests.learning import kills
from tests.learning.run_folders import assert_same_run, rows_of, telemetry
from tests.learning.small_run import CONFIG, train_settings
from tests.learning.test_resume import stop_at

POLICY = Path("checkpoints", "sft", "policy", "model.safetensors")


@pytest.mark.slow
def test_kill_9_at_random_moments_gives_the_run_that_was_not_killed(finished, base_model, tmp_path):
    """T 36, T 37, T 41: several kills in one run, wherever they fall."""
    rng = random.Random(20)
    killed = [
        kills.kill_after(kills.start(base_model, tmp_path, {}), rng.uniform(0.5, 4.0)) for _ in range(3)
    ]
    assert any(killed)
    run_training(train_settings(base_model), tmp_path, CONFIG)
    assert_same_run(tmp_path, finished[0])
    assert_same_manifests(tmp_path, finished[0])


@pytest.mark.slow
def test_kill_9_inside_a_save_gives_the_run_that_was_not_killed(finished, base_model, tmp_path):
    """T 41: two processes that kill themselves between two calls of a save, one after another."""
    rng = random.Random(21)
    training = {"evaluation": {"policies": []}}
    for boundary in (rng.randrange(1, 40), rng.randrange(1, 40)):
        process = kills.start(base_model, tmp_path, training, boundary)
        process.join(120)
        assert process.exitcode == -signal.SIGKILL, "the boundary was not reached"
        assert telemetry(tmp_path).count(b'"stage":"grpo"') in (1, 2, 3)
        assert not (tmp_path / "summary.json").exists()
    run_training(train_settings(base_model, **training), tmp_path, CONFIG)
    assert telemetry(tmp_path) == telemetry(finished[0])
    mine, whole = rows_of(tmp_path), rows_of(finished[0])
    assert mine["steps"] == whole["steps"]
    assert mine["episodes"] == [row for row in whole["episodes"] if row["stage"] != "evaluation"]
    for stage in ("sft", "grpo"):
        name = Path("checkpoints", stage, "policy", "model.safetensors")
        assert (tmp_path / name).read_bytes() == (finished[0] / name).read_bytes()


def assert_same_manifests(folder: Path, other: Path) -> None:
    names = sorted(path.name for path in (other / "manifests").iterdir())
    assert sorted(path.name for path in (folder / "manifests").iterdir()) == names and names
    for name in names:
        assert (folder / "manifests" / name).read_bytes() == (other / "manifests" / name).read_bytes()


@pytest.mark.slow
def test_every_boundary_of_every_save_is_a_place_to_go_on_from(finished, base_model, tmp_path):
    """T 41: the folder as it is at each boundary, checkpoints and policy alike, is found in order.

    A seeded part of these folders is trained to the end.
    """
    run, images = tmp_path / "run", tmp_path / "images"
    settings = train_settings(base_model, stages=["sft"], evaluation={"policies": []})
    taken: list[tuple[str, Path]] = []

    def image(moment: str) -> None:
        place = images / f"{len(taken):03d}"
        shutil.copytree(run, place)
        taken.append((moment, place))

    with kills.watched_saves(alone(image), "sft"):
        run_training(settings, run, CONFIG)
    steps = []
    for moment, place in taken:
        stage = Checkpoints(shutil.copytree(place, tmp_path / "looked at") / "checkpoints" / "sft")
        point = stage.recover(lambda line, moment=moment: pytest.fail(f"{moment}: {line}"))
        steps.append(0 if point is None else point.step)
        shutil.rmtree(tmp_path / "looked at")
    complete = [(place / POLICY).exists() for _, place in taken]
    assert complete == sorted(complete) and any(complete) and not all(complete)
    before = steps[: complete.index(True)]
    assert before == sorted(before) and Counter(before).keys() == {0, 1, 2}
    assert len(taken) > 60
    chosen = [*random.Random(22).sample(taken, 4), taken[complete.index(True) - 1]]
    for moment, place in chosen:
        run_training(settings, place, CONFIG)
        assert telemetry(place) == telemetry(run) and telemetry(run).count(b"\n") == 2, moment
        assert (place / POLICY).read_bytes() == (finished[0] / POLICY).read_bytes(), moment
        assert rows_of(place) == rows_of(run), moment
        assert [p.name for p in (place / "checkpoints" / "sft").iterdir()] == ["policy"], moment


def alone(action):
    """The action, which does not see the calls that it makes itself."""
    busy = False

    def once(*args):
        nonlocal busy
        if not busy:
            busy = True
            try:
                action(*args)
            finally:
                busy = False

    return once


@pytest.mark.slow
def test_cursor_queue_and_inner_epochs_go_on_where_they_were(base_model, tmp_path, monkeypatch):
    """T 36: cases of the whole run, silent cases that return among them, equal the uninterrupted list."""
    settings = train_settings(
        base_model,
        stages=["grpo"],
        evaluation={"policies": []},
        grpo={
            "steps": 3,
            "zero_signal_wait": 1,
            "refill_rounds": 1,
            "mini_batches": 2,
            "checkpoint_every": 2,
        },
    )
    run_training(settings, tmp_path / "whole", CONFIG)
    part = tmp_path / "part"
    with monkeypatch.context() as patch:
        stop_at(patch, "grpo", 6, KeyboardInterrupt())  # the sixth update: the third step
        with pytest.raises(KeyboardInterrupt):
            run_training(settings, part, CONFIG)
    run_training(settings, part, CONFIG)
    assert telemetry(part) == telemetry(tmp_path / "whole")
    assert rows_of(part) == rows_of(tmp_path / "whole")
    metrics = [record.metrics for record in read_telemetry(tmp_path / "whole" / "telemetry.jsonl")]
    assert len(metrics) == 3
    returned = sum(value for m in metrics for name, value in m.items() if "returned" in name)
    assert returned > 0, "the run must show a return, else it tests nothing"


def test_resume_at_an_epoch_boundary_trains_the_next_epoch(base_model, tmp_path, monkeypatch):
    """T 39: an epoch is one step here; the run is stopped exactly between two."""
    sft = {"epochs": 3, "max_steps": None, "batch_trajectories": 3}
    settings = train_settings(base_model, stages=["sft"], evaluation={"policies": []}, sft=sft)
    run_training(settings, tmp_path / "whole", CONFIG)
    with monkeypatch.context() as patch:
        stop_at(patch, "sft", 2, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            run_training(settings, tmp_path / "part", CONFIG)
    run_training(settings, tmp_path / "part", CONFIG)
    assert telemetry(tmp_path / "part") == telemetry(tmp_path / "whole")
    assert [record.step for record in read_telemetry(tmp_path / "part" / "telemetry.jsonl")] == [1, 2, 3]
    assert (tmp_path / "part" / POLICY).read_bytes() == (tmp_path / "whole" / POLICY).read_bytes()
