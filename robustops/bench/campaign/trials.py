"""Runs of the pilot: what is run, and what is kept of it, so that no trial is ever made twice.

    <pilot>/<mechanism>.jsonl    one line a trial: {"trial": {...}, "columns": {"reward_mean": [...], ...}}
    <pilot>/none.<place>.jsonl   the same of a healthy run

A file has one writer. A line torn by a crash is dropped; its trial is made again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustops.bench.campaign.effects import Rows
from robustops.bench.campaign.folders import folder_of
from robustops.bench.campaign.plan import PlannedRun, fault_overrides
from robustops.bench.campaign.variety import variety
from robustops.bench.campaign.worker import Compose, run_one
from robustops.files import atomic_write_text
from robustops.monitor.schema import names
from robustops.monitor.telemetry import read_telemetry
from robustops.seeding import child_seed

#: Root of the pilot's seeds and varieties. The campaign draws its seeds under another name.
ROOT = 0
_SEEDS = 2**31
#: Significant digits that are kept.
_DIGITS = 7


@dataclass(frozen=True)
class Trial:
    """One run. fault, mechanism: "none" for a healthy one; strength .. onset: as in `run_fault`; steps: of
    the run; place: number of the pilot's seed, which fixes seed, variety and injector seed.
    """

    place: int
    steps: int
    fault: str = "none"
    mechanism: str = "none"
    strength: float = 1.0
    probability: float = 1.0
    unit: str | None = None
    ramp: int = 0
    onset: int = 1

    def planned(self) -> PlannedRun:
        """The run in the campaign's terms, with a seed that the campaign never uses."""
        variant, own = variety(child_seed(ROOT, "pilot") % _SEEDS, self.place)
        values = {name: getattr(self, name) for name in ("strength", "probability", "unit", "ramp")}
        injector = child_seed(ROOT, "faultbench pilot", "injector", self.place) % _SEEDS
        faulty = self.fault != "none"
        injected = fault_overrides("run_fault", self.fault, self.mechanism, values, self.onset, injector)
        text = json.dumps(dataclasses.asdict(self))
        return PlannedRun(
            hashlib.blake2b(text.encode(), digest_size=6, person=b"pilot").hexdigest(),
            seed_group=-1 - self.place,
            kind="fault" if faulty else "healthy",
            fault=self.fault,
            mechanism=self.mechanism,
            variant=variant,
            overrides=(*own, f"grpo.steps={self.steps}", *(injected if faulty else ())),
            onset=self.onset if faulty else 0,
            seed=child_seed(ROOT, "faultbench pilot", "seed", self.place) % _SEEDS,
            injector_seed=injector if faulty else 0,
        )


def trained(trial: Trial, compose: Compose) -> Rows:
    """Make the run of a trial in a temporary folder; the metrics of its steps."""
    folder = Path(tempfile.mkdtemp(prefix="pilot."))
    try:
        planned = trial.planned()
        run_one(planned, folder, compose)
        telemetry = folder_of(folder, planned.run_id) / "telemetry.jsonl"
        return [record.metrics for record in read_telemetry(telemetry)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Trials:
    """The trials of one file: those that were made are read, others are made and appended."""

    def __init__(self, path: Path, make: Callable[[Trial], Rows]) -> None:
        self.path = path
        self.make = make
        self.made = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._known = read_trials(path)
        if path.is_file():  # a torn line would spoil the next one
            atomic_write_text(path, "".join(_line(trial, rows) for trial, rows in self._known.items()))

    def rows(self, trial: Trial) -> Rows:
        """The schema's metrics of each step of a trial."""
        if trial not in self._known:
            line = _line(trial, self.make(trial))
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            self._known[trial] = _rows(json.loads(line)["columns"])
            self.made += 1
        return self._known[trial]


def read_trials(path: Path) -> dict[Trial, Rows]:
    """All complete lines of a file; empty where there is none."""
    found: dict[Trial, Rows] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            body = json.loads(line)
            found[Trial(**body["trial"])] = _rows(body["columns"])
    return found


def _line(trial: Trial, rows: Rows) -> str:
    columns = {name: [_kept(float(row[name])) for row in rows] for name in names()}
    body = {"trial": dataclasses.asdict(trial), "columns": columns}
    return json.dumps(body, separators=(",", ":")) + "\n"


def _kept(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _rows(columns: dict[str, list[Any]]) -> Rows:
    steps = len(next(iter(columns.values())))
    return [
        {name: math.nan if values[n] is None else values[n] for name, values in columns.items()}
        for n in range(steps)
    ]
