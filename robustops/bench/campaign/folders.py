"""Names in a campaign's folder, and what is read of a complete run.

    <campaign>/runs/<run_id>/planned.json      what was planned
                             telemetry.jsonl   one line a step
                             exposure.jsonl    what the injector touched (faulty runs only)
                             episodes.jsonl    single episodes, where the monitor keeps them
                             run.json          settings, versions
                             cost.json         seconds, cpu_seconds
                             case.json, journal.jsonl, discarded/: see `bench.remediation.case`
                             trainer_state.json  instead of telemetry: what TRL logged, see `bench.transfer`
    <campaign>/failures/<run_id>.txt           planned run and traceback of a run that raised
    <campaign>/logs/                           what workers printed
    <campaign>/claims/                         locks of the runs in flight

A run's folder appears at once, when the run is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from robustops.bench.campaign.plan import PlannedRun
from robustops.errors import ConfigError
from robustops.files import read_json

RUNS, FAILURES, LOGS, CLAIMS = "runs", "failures", "logs", "claims"
PLANNED, COST = "planned.json", "cost.json"
#: What is kept of a training run.
KEPT = (
    *("telemetry.jsonl", "exposure*.jsonl", "episodes.jsonl", "run.json", PLANNED, COST),
    *("case.json", "journal.jsonl", "discarded"),
    "trainer_state.json",
)


def folder_of(campaign: Path, run_id: str) -> Path:
    """Where the run's folder is or will be."""
    return campaign / RUNS / run_id


def note_of(campaign: Path, run_id: str) -> Path:
    """Where it stands how a run failed."""
    return campaign / FAILURES / f"{run_id}.txt"


def settled(campaign: Path, run_id: str) -> bool:
    """Whether nobody needs to make the run: it is complete, or has failed since the last start."""
    return folder_of(campaign, run_id).exists() or note_of(campaign, run_id).exists()


def complete(campaign: Path, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Those of the runs that are there.

    Raises:
        ConfigError: one of them was made from another plan (other strengths, another version).
    """
    found = [run for run in runs if folder_of(campaign, run.run_id).exists()]
    for run in found:
        made = PlannedRun.from_dict(read_json(folder_of(campaign, run.run_id) / PLANNED, what="planned run"))
        if made != run:
            raise ConfigError(_other_plan(campaign, made, run))
    return found


def cost_of(campaign: Path, run_id: str) -> tuple[float, float]:
    """Seconds on the clock and of CPU that a run took."""
    cost = read_json(folder_of(campaign, run_id) / COST, what="cost of a run")
    return float(cost["seconds"]), float(cost["cpu_seconds"])


def steps_of(campaign: Path, run_id: str) -> int:
    """Steps in a run's telemetry; 0 where another trainer's log stands in its place."""
    path = folder_of(campaign, run_id) / "telemetry.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def _other_plan(campaign: Path, made: PlannedRun, run: PlannedRun) -> str:
    was, now = made.to_dict(), run.to_dict()
    key = next(key for key in now if was[key] != now[key])
    return (
        f"run {run.run_id} in {campaign} was made with {key}={was[key]}, the plan now says {now[key]}; give "
        "campaign=FOLDER for a campaign of its own, or remove the run folders of the old plan"
    )
