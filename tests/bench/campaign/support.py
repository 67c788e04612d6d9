"""Campaigns of runs that take a second each."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from robustops.bench.campaign.campaign import run_campaign
from robustops.bench.campaign.plan import PlannedRun, planned
from robustops.commands.composition import composed_training

SMALL = ("grpo.steps=2", "grpo.groups=2", "grpo.group_size=2", "domain.train=30", "grpo.warmup_steps=0")


def small(run: PlannedRun, *overrides: str) -> PlannedRun:
    """The same run, short."""
    return dataclasses.replace(run, overrides=(*run.overrides, *SMALL, *overrides))


def small_runs(number: int) -> list[PlannedRun]:
    """The first planned runs, a control and faulty ones, short; faults set in with the second step."""
    runs = planned(seeds=1)[:number]
    return [small(run, *(["run_fault.onset=2"] if run.kind == "fault" else [])) for run in runs]


if __name__ == "__main__":  # a campaign in a process of its own: folder, number of runs, workers
    folder, number, workers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    report = run_campaign(small_runs(number), folder, composed_training, workers=workers)
    print(json.dumps(dataclasses.asdict(report)))
