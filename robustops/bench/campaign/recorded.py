"""A campaign's run folders: `<campaign>/runs/<run_id>/`, each complete if it is there.

planned.json       what was planned (fields: `columns.PLANNED`)
telemetry.jsonl    a line a step
exposure.jsonl     faulty runs only; exposure_2.jsonl: second fault of a double run
episodes.jsonl     sampled episodes, if the run logged them
run.json           what the trainer writes; cost.json: {"seconds", "cpu_seconds"}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustops.bench.campaign.columns import PLANNED
from robustops.bench.campaign.folders import COST, RUNS
from robustops.bench.campaign.folders import PLANNED as PLANNED_FILE
from robustops.bench.run_faults.exposure import read_exposure
from robustops.errors import DatasetError
from robustops.files import read_json
from robustops.monitor.telemetry import StepRecord, read_telemetry

EXPOSURES = ("exposure.jsonl", "exposure_2.jsonl")


@dataclass(frozen=True)
class RunFolder:
    """One run as it is on disk. planned: by field name; records: of stage grpo; exposures: of the first and
    the second injection, empty where there is none.
    """

    path: Path
    planned: Mapping[str, Any]
    records: tuple[StepRecord, ...]
    exposures: tuple[list[dict[str, Any]], list[dict[str, Any]]]
    cost: Mapping[str, float]
    made_with: Mapping[str, Any]

    @property
    def run_id(self) -> str:
        return str(self.planned["run_id"])

    @property
    def injections(self) -> int:
        """How many faults were planned: 0, 1 or 2."""
        return sum(self.planned[name] != "none" for name in ("fault", "second_fault"))


def run_folders(campaign: Path) -> list[Path]:
    """Folders of complete runs, in order of their names; DatasetError where there are none."""
    found = sorted(p for p in (campaign / RUNS).glob("*") if (p / PLANNED_FILE).is_file())
    found = [path for path in found if not path.name.startswith(".")]
    if not found:
        raise DatasetError(
            f"{campaign} holds no runs; make them with robustops bench stage=campaign, or name its folder"
        )
    return found


def read_runs(campaign: Path) -> Iterator[RunFolder]:
    """Every complete run of a campaign, one at a time, in order of run_id."""
    for path in run_folders(campaign):
        yield read_run(path)


def read_run(path: Path) -> RunFolder:
    """One run; DatasetError where a file is missing or does not fit the others."""
    planned = read_json(path / PLANNED_FILE, what="planned run")
    absent = [column.name for column in PLANNED if column.name not in planned]
    if absent:
        raise DatasetError(f"{path / PLANNED_FILE} lacks {', '.join(absent)}; is it of another version?")
    if planned["run_id"] != path.name:
        raise DatasetError(f"{path} says it is run {planned['run_id']}; a run folder is named by its run_id")
    if not (path / "telemetry.jsonl").is_file():
        raise DatasetError(f"{path} has no telemetry.jsonl; remove the folder and run the campaign again")
    records = tuple(r for r in read_telemetry(path / "telemetry.jsonl") if r.stage == "grpo")
    if [record.step for record in records] != list(range(1, len(records) + 1)):
        raise DatasetError(f"the steps of {path / 'telemetry.jsonl'} are not 1, 2, 3, ...; remove the folder")
    first, second = (read_exposure(path / name) for name in EXPOSURES)
    run = RunFolder(
        path, planned, records, (first, second), _optional(path / COST), _optional(path / "run.json")
    )
    _check_exposure(run)
    return run


def _check_exposure(run: RunFolder) -> None:
    for number, log in enumerate(run.exposures, start=1):
        expected = len(run.records) if number <= run.injections else 0
        if len(log) != expected:
            raise DatasetError(
                f"{run.path / EXPOSURES[number - 1]} has {len(log)} lines, {expected} expected with "
                f"{run.injections} faults and {len(run.records)} steps; remove the folder and run it again"
            )


def _optional(path: Path) -> Mapping[str, Any]:
    return read_json(path) if path.is_file() else {}


def injection_settings(planned: Mapping[str, Any], group: str = "run_fault") -> dict[str, str]:
    """Values of `group.*` among a planned run's overrides, by name, as they are written there."""
    pairs = (text.lstrip("+").partition("=") for text in planned["overrides"])
    return {key.removeprefix(f"{group}."): value for key, _, value in pairs if key.startswith(f"{group}.")}
