"""A run that goes on from a checkpoint of another one, in a folder of its own and with other knobs.

    robustops train branch=RUN branch_step=40 grpo.kl=0.01

What the branch takes over is whole: policies of the stages before, checkpoint (weights, optimiser, random
and sampling state), and the records up to the step. Without changes it therefore writes what its parent
wrote from there on. `run.json` says what it branched from and what was changed. The parent is only read.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustops.errors import ConfigError
from robustops.files import atomic_write_bytes, atomic_write_text
from robustops.learning.checkpoints import Checkpoints, ResumePoint, damage, move_into_place
from robustops.learning.hardware import group_size
from robustops.settings import TrainSettings
from robustops.tracking.run_record import NAME, read_record

#: The stage that runs branch in.
STAGE = "grpo"
#: Keys and sections that a branch may change: knobs of the stage, and of what its rollouts run into.
INTERVENTIONS = (
    *("grpo", "reward", "reward_norm", "sampler"),
    *("domain.tool_retries", "domain.check_replies", "domain.tool_timeout_s"),
    "domain.reread_calls",
    *("model.min_turns", "model.max_turns", "model.max_answers", "model.answer_tokens"),
)
#: Of these, what the state of a checkpoint is made for.
FIXED = ("grpo.epochs", "grpo.mini_batches", "grpo.staleness", "grpo.value_head")
#: Failures that a branch may leave out, but not change.
RUN_FAULTS = ("run_fault", "second_run_fault")


@dataclass(frozen=True)
class Parent:
    """A run and the checkpoint of it that is branched from."""

    folder: Path
    record: Mapping[str, Any]
    point: ResumePoint


def find_parent(settings: TrainSettings, folder: Path) -> Parent:
    """The run and checkpoint that `branch` and `branch_step` name.

    Raises:
        ConfigError: there is none; `folder` holds a run already; or these settings cannot branch.
    """
    assert settings.branch is not None
    parent = Path(settings.branch)
    _check(settings, parent, folder)
    record = read_record(parent)
    if record is None:
        raise ConfigError(f"no run in '{parent}' ({NAME} is absent); give branch= a run folder")
    return Parent(parent, record, _point(parent, settings.branch_step))


def _check(settings: TrainSettings, parent: Path, folder: Path) -> None:
    if STAGE not in settings.stages:
        raise ConfigError(f"branch= goes on within GRPO, stages is [{','.join(settings.stages)}]; add grpo")
    if group_size(settings.hardware) > 1:
        raise ConfigError(
            f"branch= works in one process, hardware={settings.hardware.name} has more; choose a profile of "
            "one device"
        )
    if (folder / NAME).exists() or parent.resolve() == folder.resolve():
        raise ConfigError(f"a branch needs a run folder of its own, {folder} holds a run; use another one")


def _point(parent: Path, step: int | None) -> ResumePoint:
    """The newest intact checkpoint, or that of a step."""
    points = Checkpoints(parent / "checkpoints" / STAGE).points()
    chosen = [point for point in points if step is None or point.batches == step]
    broken = ""
    for point in reversed(chosen):
        reason = damage(point.path.parent)
        if reason is None:
            return point
        broken = f"; {point.path.parent.name} is damaged ({reason})"
    there = ", ".join(str(point.batches) for point in points) or "none"
    wanted = "" if step is None else f" of step {step}"
    raise ConfigError(
        f"run {parent} has no intact GRPO checkpoint{wanted}{broken}; steps with one: {there}. Runs keep all "
        "of theirs, also after their end, with grpo.keep_checkpoints=all, one every grpo.checkpoint_every "
        "steps"
    )


def allowed(key: str, new: Mapping[str, Any]) -> bool:
    """Whether a branch may change a setting; new: its settings by dotted key."""
    if key.partition(".")[0] in RUN_FAULTS:
        return all(new.get(f"{section}.name", "none") == "none" for section in RUN_FAULTS)
    return _within(key, INTERVENTIONS) and not _within(key, FIXED)


def _within(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def take_over(parent: Parent, settings: TrainSettings, folder: Path) -> None:
    """Make `folder` what the parent's was at the checkpoint. May be done again after a kill.

    The stage cuts telemetry and database back to the checkpoint when it goes on from it; a log of run faults
    that the branch leaves out is nobody's, and is cut here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (parent.folder / "telemetry.jsonl").is_file():
        atomic_write_bytes(folder / "telemetry.jsonl", (parent.folder / "telemetry.jsonl").read_bytes())
    for path in parent.folder.glob("exposure*.jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [
            line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= parent.point.batches
        ]
        atomic_write_text(folder / path.name, "".join(kept))
    _copy_database(parent.folder / "run.db", folder / "run.db", parent.point.decisions)
    for stage in settings.stages[: settings.stages.index(STAGE)]:
        policy = Path("checkpoints", stage, "policy")
        if not (parent.folder / policy).is_dir():
            raise ConfigError(f"run {parent.folder} has no policy of stage {stage}; branch from another run")
        _copy_folder(parent.folder / policy, folder / policy)
    name = parent.point.path.parent.name
    _copy_folder(parent.point.path.parent, folder / "checkpoints" / STAGE / name)


def _copy_database(source: Path, target: Path, decisions: int) -> None:
    """A consistent copy, also of a database that is being written; how long things took is not copied, nor
    what was decided after the checkpoint.
    """
    if not source.is_file():
        return
    target.unlink(missing_ok=True)
    with (
        closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=rw", uri=True)) as old,
        closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)
        new.execute("DELETE FROM timings WHERE stage IN (?, 'evaluation')", [STAGE])
        if new.execute("SELECT 1 FROM sqlite_master WHERE name = 'interventions'").fetchone():
            new.execute("DELETE FROM interventions WHERE id > ?", [decisions])
        new.commit()


def _copy_folder(source: Path, target: Path) -> None:
    """Whole or absent. Files are linked where the file system can: nobody writes into them again."""
    if target.exists():
        return
    partial = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial, copy_function=_link_or_copy)
    move_into_place(partial, target)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
