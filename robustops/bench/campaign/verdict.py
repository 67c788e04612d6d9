"""What the data set keeps of a run's verification, for all runs of a campaign."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from robustops.bench.campaign.designs import designs
from robustops.bench.campaign.effects import Rows, unit_of
from robustops.bench.campaign.plan import PlannedRun
from robustops.bench.campaign.recorded import RunFolder, read_runs
from robustops.bench.campaign.verifier import Verification, verify
from robustops.errors import ConfigError


@dataclass(frozen=True)
class Verdict:
    """verified: exposure and mechanical effect are as planned; reason: why not, "" if they are; numbers:
    what was measured for it, None where there was nothing to measure.
    """

    verified: bool
    reason: str = ""
    numbers: Mapping[str, float | int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Verification) -> Verdict:
        """What `verifier.verify` returned."""
        numbers = dataclasses.asdict(found)
        del numbers["verified"], numbers["reason"]
        plain = {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in numbers.items()}
        return cls(found.verified, found.reason, plain)


def judged(campaign: Path) -> dict[str, Verdict]:
    """The verdict on each run of a campaign, by run_id. Units of effects are those of its healthy runs.

    A faulty run whose control is missing gets none, nor does one where fewer than two healthy runs tell a
    unit.
    """
    healthy: dict[str, Rows] = {}
    controls: dict[int, str] = {}
    steps = 0
    for run in read_runs(campaign):
        steps = max(steps, len(run.records))
        if run.planned["kind"] == "healthy":
            healthy[run.run_id] = _metrics(run)
            controls[run.planned["seed_group"]] = run.run_id
    units: dict[int, dict[str, float]] = {}
    verdicts = {}
    for run in read_runs(campaign):  # again: all of them at once would take a gigabyte
        control = controls.get(run.planned["seed_group"])
        if run.injections and control is None:
            continue
        onset = int(run.planned["onset"]) or 1
        if onset not in units:
            units[onset] = _units(list(healthy.values()), onset)
        try:
            found = verify(
                PlannedRun.from_dict(run.planned),
                _metrics(run),
                [] if control is None or control == run.run_id else healthy[control],
                run.exposures[0],
                units[onset],
                second=run.exposures[1],
                steps=steps,
            )
        except ConfigError:
            if len(healthy) > 1:
                raise
            continue
        verdicts[run.run_id] = Verdict.of(found)
    return verdicts


def _metrics(run: RunFolder) -> Rows:
    return [record.metrics for record in run.records]


def _units(healthy: list[Rows], onset: int) -> dict[str, float]:
    """Healthy deviation of each mechanism's own column over the steps from the onset on."""
    if len(healthy) < 2:
        return {}
    columns = sorted({design.quantity for design in designs()})
    return {name: unit_of(name, healthy, onset) for name in columns}
