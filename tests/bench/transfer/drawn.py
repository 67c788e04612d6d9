"""Runs of a set whose numbers are drawn, as they lie on disk and as they are read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from robustops.bench.campaign.plan import PlannedRun
from robustops.bench.transfer.plan import transfer_plan
from robustops.bench.transfer.tried import Tried
from robustops.monitor.panel import Panel
from robustops.seeding import array_generator

COLUMNS = ("reward_mean", "kl_ref_k3", "entropy", "len_mean", "grad_norm")
#: Column that a type moves in these runs.
MOVES = {"reward_spike": "reward_mean", "kl_explosion": "kl_ref_k3", "length_long": "len_mean"}


def drawn_panel(number: int, fault: str = "none", *, onset: int = 6, steps: int = 16, shift=0.0, scale=1.0):
    """Noise around 1, with a jump by ten deviations in the column of the fault; shift, scale: of another kind
    of runs.
    """
    rng = array_generator(number, "drawn", fault)
    at = np.arange(1, steps + 1)
    columns = {name: 1 + 0.05 * rng.standard_normal(steps) for name in COLUMNS}
    if fault in MOVES:
        columns[MOVES[fault]] = columns[MOVES[fault]] + 0.5 * (at >= onset)
    return Panel(at, {name: shift + scale * values for name, values in columns.items()}, f"run {number}")


def drawn_tried(number: int, fault: str = "none", **kind) -> Tried:
    planned = PlannedRun(f"r{number}", number, "healthy" if fault == "none" else "fault", fault, "m")
    return Tried(planned, drawn_panel(number, fault, **kind), 0 if fault == "none" else 6)


def drawn_set(healthy: int = 20, repeats: int = 2, **kind) -> list[Tried]:
    """Healthy runs, and some of each of three types."""
    runs = [drawn_tried(1000 + place, **kind) for place in range(healthy)]
    faulty = [(place, fault) for place in range(repeats) for fault in MOVES]
    return runs + [drawn_tried(2000 + place, fault, **kind) for place, fault in faulty]


def write_trl_set(folder: Path, *, healthy: int, steps: int) -> list[PlannedRun]:
    """Complete folders of set trl, with a log as TRL writes it: a row in two updates."""
    plan = transfer_plan("trl", healthy=healthy, steps=steps)
    for number, run in enumerate(plan):
        place = folder / "runs" / run.run_id
        place.mkdir(parents=True)
        rng = array_generator(number, "state")
        rows = []
        for step in range(1, steps + 1):
            jump = 2.0 * (run.kind == "fault" and step >= run.onset)
            noise = dict(zip(("reward", "kl", "entropy", "grad_norm"), rng.random(4) + jump, strict=True))
            rows.append({"step": 2 * step, "learning_rate": 1e-4, "completions/mean_length": 25.0, **noise})
        rows.append({"step": 2 * steps, "train_runtime": 1.0})
        (place / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
        (place / "planned.json").write_text(json.dumps(run.to_dict()))
        (place / "cost.json").write_text('{"seconds": 30.0, "cpu_seconds": 30.0}')
    return plan
