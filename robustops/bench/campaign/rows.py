"""What a run folder becomes: its row of table runs, its rows of steps and exposure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robustops.bench.campaign.columns import EXPOSURE, PLANNED, STEP_FACTS
from robustops.bench.campaign.recorded import RunFolder, injection_settings
from robustops.bench.campaign.verdict import Verdict
from robustops.bench.run_faults.catalog import CATALOG, chosen
from robustops.monitor import schema
from robustops.monitor.episodes import NAME as EPISODES
from robustops.monitor.episodes import read_episodes
from robustops.settings import RunFaultSettings

Row = dict[str, Any]
#: Config group of each injection.
GROUPS = ("run_fault", "second_run_fault")
_NUMBERS = {"onset": int, "end": int, "strength": float, "probability": float, "ramp": int}
#: What an exposure line holds beside its columns; the run's row has it.
_IN_RUNS = ("fault", "mechanism", "unit")


def run_row(run: RunFolder, verdict: Verdict | None = None, commit: str | None = None) -> Row:
    """The row of table runs. commit: of the program, where the run does not say."""
    planned = run.planned
    row: Row = {column.name: planned[column.name] for column in PLANNED}
    row["family"] = CATALOG[planned["fault"]].family if planned["fault"] != "none" else "none"
    row |= _injection(planned, "second_", GROUPS[1], planned["second_fault"], planned["second_mechanism"])
    first_of_two = _injection(planned, "", GROUPS[0], planned["fault"], planned["mechanism"])
    row |= {name: value for name, value in first_of_two.items() if name != "onset"}
    first = run.records[0].facts if run.records else {}
    return row | {
        "steps": len(run.records),
        "episodes": int(sum(record.metrics.get("rollout/episodes", 0) for record in run.records)),
        "value_source": first.get("value_source"),
        "lacks": list(first.get("lacks", [])),
        "verified": verdict.verified if verdict else None,
        "reason": verdict.reason if verdict else None,
        "checks": json.dumps(dict(verdict.numbers), sort_keys=True) if verdict else None,
        **_endings(run.path / EPISODES),
        "seconds": run.cost.get("seconds"),
        "cpu_seconds": run.cost.get("cpu_seconds"),
        "commit": run.made_with.get("commit") or run.cost.get("commit") or commit,
        "versions": json.dumps(found, sort_keys=True) if (found := _versions(run.made_with)) else None,
    }


def step_columns(run: RunFolder) -> dict[str, list[Any]]:
    """Rows of table steps, column by column; None where a line has no such quantity. NaN stays NaN."""
    columns: dict[str, list[Any]] = {
        "run_id": [run.run_id] * len(run.records),
        "step": [record.step for record in run.records],
    }
    for name in STEP_FACTS:
        columns[name] = [record.facts.get(name) for record in run.records]
    for name in schema.names():
        columns[name] = [record.metrics.get(name) for record in run.records]
    return columns


def exposure_rows(run: RunFolder) -> list[Row]:
    """Rows of table exposure. Further numbers of a line are kept under their names."""
    return [
        {"run_id": run.run_id, "injection": number, **_without(line)}
        for number, log in enumerate(run.exposures, start=1)
        for line in log
    ]


def further_exposure(rows: list[Row]) -> list[str]:
    """Names of the numbers that exposure lines hold beyond the declared columns."""
    known = {column.name for column in EXPOSURE}
    found = {name for row in rows for name, value in row.items() if isinstance(value, int | float)}
    return sorted(found - known)


def _without(line: Mapping[str, Any]) -> Row:
    return {name: value for name, value in line.items() if name not in _IN_RUNS}


def _injection(planned: Mapping[str, Any], prefix: str, group: str, fault: str, mechanism: str) -> Row:
    """onset, strength, ... as the run had them: from its overrides, else the defaults of the settings."""
    names = (*_NUMBERS, "unit")
    if fault == "none":
        return {prefix + name: None for name in names}
    given = injection_settings(planned, group)
    default = RunFaultSettings(fault, mechanism)
    row: Row = {}
    for name in names:
        text = given.get(name)
        if text is None or text in ("null", "None"):
            value: Any = None if text else getattr(default, name)
        else:
            value = _NUMBERS[name](text) if name in _NUMBERS else text
        row[prefix + name] = value
    if row[f"{prefix}unit"] is None:
        row[f"{prefix}unit"] = chosen(default)[1].units[0]
    return row


def _endings(path: Path) -> Row:
    """How many episodes the log holds, and the shares of whose doing ended them."""
    origins = Counter(row["ended_by"] for row in read_episodes(path))
    count = sum(origins.values())
    shares = {
        f"ended_by_{name}": origins[name] / count if count else None
        for name in ("policy", "environment", "infrastructure")
    }
    return {"logged_episodes": count, **shares}


def _versions(made_with: Mapping[str, Any]) -> dict[str, str]:
    found = made_with.get("versions")
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}
