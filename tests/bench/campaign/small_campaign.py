"""A real campaign of a few short runs, made once a test process: two seed groups with two faults each, and
five healthy runs beside them.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from functools import cache
from pathlib import Path

from robustops.bench.campaign.plan import PlannedRun, planned
from robustops.bench.campaign.worker import run_one
from robustops.commands.composition import composed_training

STEPS = 5
FAULTS = ("reward_spike", "empty_response")
SMALL = (
    f"grpo.steps={STEPS}",
    "grpo.groups=2",
    "grpo.group_size=4",
    "monitor.episodes=3",
    "domain.train=40",
    "domain.val=2",
    "domain.test=2",
)
HEALTHY = 4


def small_plan() -> list[PlannedRun]:
    """Runs of the campaign's own plan, cut short, with faults that set in at step 3."""
    base = planned(FAULTS, 2)
    further = [run for run in planned(["healthy"]) if run.seed_group >= 48][:HEALTHY]
    return [_short(run) for run in (*base, *further)]


def _short(run: PlannedRun) -> PlannedRun:
    early = tuple("run_fault.onset=3" if "run_fault.onset=" in text else text for text in run.overrides)
    onset = 3 if run.onset else 0
    return dataclasses.replace(run, overrides=(*early, *SMALL), onset=onset)


@cache
def _made() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="campaign-")
    for run in small_plan():
        run_one(run, Path(folder.name), composed_training)
    return folder


def campaign() -> Path:
    """Its folder, for reading."""
    return Path(_made().name)


def campaign_copy(target: Path) -> Path:
    """A copy that a test may spoil."""
    shutil.copytree(campaign(), target)
    return target
