"""One planned run, from its overrides to a complete folder of the campaign (see `folders`)."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from robustops.bench.campaign.folders import COST, KEPT, PLANNED, folder_of
from robustops.bench.campaign.plan import PlannedRun
from robustops.bench.run_faults.injector import training_hooks
from robustops.files import atomic_write_json
from robustops.learning.checkpoints import move_into_place
from robustops.learning.hooks import TrainingHooks
from robustops.learning.pipeline import run_training
from robustops.records import Group
from robustops.settings import TrainSettings

EXPERIMENT = "faultbench"
#: Settings and the plain config of `robustops train` with these overrides, see `commands.composition`.
Compose = Callable[[Sequence[str]], tuple[TrainSettings, dict[str, Any]]]
#: Leaves in a folder what is to be kept of a planned run.
Make = Callable[[PlannedRun, Path, Compose], None]


def run_one(planned: PlannedRun, campaign: Path, compose: Compose, make: Make | None = None) -> None:
    """Make the run in this process and leave its folder in the campaign; nothing where it is there.

    make: None: `train_run`. May be called again and again in one process: a run leaves nothing behind that
    another would see.
    """
    target = folder_of(campaign, planned.run_id)
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{planned.run_id}.", dir=target.parent))
    try:
        began, cpu = time.monotonic(), time.process_time()
        (make or train_run)(planned, folder, compose)
        cost = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}
        atomic_write_json(folder / COST, {name: round(value, 3) for name, value in cost.items()})
        atomic_write_json(folder / PLANNED, planned.to_dict())
        _strip(folder)
        folder.chmod(0o755)
        _put(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def train_overrides(planned: PlannedRun, folder: Path) -> list[str]:
    """The command line of `robustops train` that makes this run."""
    place = f"paths.run_dir='{folder}'"
    return [f"experiment={EXPERIMENT}", f"seed={planned.seed}", *planned.overrides, place, "progress=false"]


def train_run(planned: PlannedRun, folder: Path, compose: Compose) -> None:
    """The run as it was planned, and nobody steps in."""
    overrides = train_overrides(planned, folder)
    settings, config = compose(overrides)
    if planned.shift == "resume":
        with suppress(_Interrupted):
            run_training(settings, folder, config, overrides, _Interruption(planned.onset))
    hooks: TrainingHooks = training_hooks(settings, folder)
    run_training(settings, folder, config, overrides, hooks)


class _Interrupted(Exception):
    """The run ends here, as if it had been killed."""


class _Interruption(TrainingHooks):
    """Ends a run in the middle of a step, when its first group has been sampled."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_group(self, step: int, number: int, group: Group) -> Group:
        if step >= self.step:
            raise _Interrupted
        return group


def _strip(folder: Path) -> None:
    """Remove what the campaign does not keep: weights and the run store, 3 MB a run."""
    kept = {path for pattern in KEPT for path in folder.glob(pattern)}
    for path in set(folder.iterdir()) - kept:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _put(folder: Path, target: Path) -> None:
    """Rename; where another process was faster, its folder stays."""
    try:
        move_into_place(folder, target)
    except OSError:
        if not target.exists():
            raise
