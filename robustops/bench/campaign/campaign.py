"""The campaign: all planned runs that are not there yet, on several processes, whatever interrupts it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from robustops.bench.campaign.claims import held
from robustops.bench.campaign.folders import complete, cost_of, note_of, steps_of
from robustops.bench.campaign.plan import PlannedRun
from robustops.bench.campaign.pool import Pool
from robustops.errors import ConfigError
from robustops.learning.progress import progress


@dataclass
class Report:
    """What a start found and did. planned, done: runs of this start's share; made: done now; steps: of these;
    in_flight: runs that another start is making; failed: run id -> error; killed: how workers ended that
    were ended from outside; core_seconds: of CPU in the workers; all_core_seconds: of all runs done.
    """

    planned: int
    done: int = 0
    made: int = 0
    steps: int = 0
    in_flight: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    core_seconds: float = 0.0
    all_core_seconds: float = 0.0

    @property
    def whole(self) -> bool:
        """Whether every run is done, or another start is at it."""
        return not self.failed and self.done + self.in_flight == self.planned


def shard_of(runs: Sequence[PlannedRun], shard: int, shards: int) -> list[PlannedRun]:
    """A share of the runs; the shares of 0 .. shards - 1 are disjoint and together are all. ConfigError for a
    shard that is not among them.
    """
    if not 0 <= shard < shards:
        raise ConfigError(f"shard={shard} of shards={shards}; give 0 to {shards - 1}, or more shards")
    return list(runs[shard::shards])


def run_campaign(
    runs: Sequence[PlannedRun],
    campaign: Path,
    compose: Any,
    *,
    workers: int,
    console: Console | None = None,
    make: Any = None,
) -> Report:
    """Make the runs that the campaign's folder lacks. A run that raises is noted, and the others go on.

    compose: see `worker.Compose`; console: of a progress bar; make: see `worker.run_one`.

    Raises:
        ConfigError: the folder holds runs of another plan.
    """
    began, report = time.monotonic(), Report(len(runs))
    there = {run.run_id for run in complete(campaign, runs)}
    missing = [run for run in runs if run.run_id not in there]
    if missing:
        _make(missing, campaign, compose, min(workers, len(missing)), report, console, make)
    done = complete(campaign, runs)
    report.done = len(done)
    report.in_flight = sum(held(campaign, run.run_id) for run in set(runs) - set(done))
    report.seconds = time.monotonic() - began
    report.all_core_seconds = sum(cost_of(campaign, run.run_id)[1] for run in done)
    return report


def _make(
    missing: Sequence[PlannedRun],
    campaign: Path,
    compose: Any,
    workers: int,
    report: Report,
    console: Console | None,
    make: Any,
) -> None:
    for run in missing:
        note_of(campaign, run.run_id).unlink(missing_ok=True)  # tried anew
    pool = Pool(workers, campaign, missing, compose, make)
    enabled = console is not None
    try:
        with progress(console or Console(), "runs", len(missing), enabled=enabled) as advance:
            for outcome in pool.outcomes():
                if outcome is None:
                    continue
                advance(outcome)
                if outcome.error:
                    report.failed[outcome.run_id] = outcome.error
                else:
                    report.made += 1
                    report.steps += steps_of(campaign, outcome.run_id)
    finally:
        pool.stop()
        report.killed = pool.killed()
        report.core_seconds = pool.cpu_seconds
