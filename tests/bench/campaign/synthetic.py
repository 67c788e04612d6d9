"""A campaign of the plan whose numbers are drawn: for sizes, splits and statistics, not for their values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from robustops.bench.campaign.plan import PlannedRun
from robustops.bench.run_faults.catalog import all_mechanisms
from robustops.monitor.schema import QUANTITIES
from robustops.monitor.telemetry import StepRecord
from robustops.seeding import generator

Change = Callable[[PlannedRun, int, dict[str, float]], None]


def moved(run: PlannedRun) -> tuple[str, int]:
    """The column that a faulty run's mechanism moves first, and its direction."""
    infos = {info.name: info for _, info in all_mechanisms()}
    return infos[run.mechanism].quantity, infos[run.mechanism].direction


def metrics(run: PlannedRun, step: int) -> dict[str, float]:
    """Every column with a random mantissa; the seed group has an offset, as real runs have."""
    shared = generator(run.seed_group, "offset", step)
    numbers = {}
    for quantity in QUANTITIES:
        if "value_head" in quantity.needs:
            numbers[quantity.name] = math.nan
        elif quantity.unit == "count":
            numbers[quantity.name] = 0.0
        else:
            numbers[quantity.name] = 0.2 + 0.1 * shared.random()
    return numbers | {"rollout/episodes": 64.0}


def write_campaign(
    folder: Path, runs: Sequence[PlannedRun], *, steps: int = 40, change: Change | None = None
) -> Path:
    """Run folders as a campaign leaves them. change: what a run does to the numbers of a step."""
    for run in runs:
        place = folder / "runs" / run.run_id
        place.mkdir(parents=True)
        (place / "planned.json").write_text(json.dumps(run.to_dict()))
        (place / "cost.json").write_text('{"seconds": 12.5, "cpu_seconds": 12.0}')
        lines = []
        for step in range(1, steps + 1):
            numbers = metrics(run, step)
            if change is not None:
                change(run, step, numbers)
            draw = generator(run.seed, run.run_id, step)
            facts = {"policy_version": 2 * step, "obs_sha": f"{draw.getrandbits(64):016x}", "lacks": []}
            lines.append(StepRecord(step, "grpo", numbers, facts).to_line())
        (place / "telemetry.jsonl").write_text("\n".join(lines) + "\n")
        for number, fault in enumerate((run.fault, run.second_fault), start=1):
            if fault != "none":
                name = "exposure.jsonl" if number == 1 else "exposure_2.jsonl"
                (place / name).write_text("".join(_exposure(run, step) for step in range(1, steps + 1)))
    return folder


def _exposure(run: PlannedRun, step: int) -> str:
    draw = generator(run.seed, run.run_id, "exposure", step)
    body: dict[str, Any] = {"step": step, "fault": run.fault, "mechanism": run.mechanism, "unit": "episode"}
    body |= {"level": 0.7 * (step >= run.onset), "eligible": 64 * (step >= run.onset), "touched": 3}
    body |= {"before": f"{draw.getrandbits(64):016x}", "after": f"{draw.getrandbits(64):016x}"}
    body |= {name: draw.random() for name in ("sum_before", "sum_after", "sum_abs", "sum_squares")}
    return json.dumps(body) + "\n"
