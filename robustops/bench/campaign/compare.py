"""Whether runs that are made again are those of the data set, to the last stored digit or nearly so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robustops.bench.campaign.columns import PLANNED, STEP_FACTS
from robustops.bench.campaign.dataset import Dataset
from robustops.bench.campaign.recorded import read_runs
from robustops.bench.campaign.rows import step_columns
from robustops.errors import DatasetError
from robustops.monitor import schema

#: Runs on other processors differ by rounding at first; later another token is drawn, and all is different.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Difference:
    """The largest of a column. relative: |mine - theirs| / max(|mine|, |theirs|), infinite where one of them
    is not observed or a text.
    """

    run_id: str
    step: int
    absolute: float
    relative: float


@dataclass(frozen=True)
class Comparison:
    """runs, values: compared; unknown: runs that the data set does not have; differing: run_id -> first step
    at which anything differs; largest: by column, of those that differ.
    """

    runs: int
    values: int
    unknown: tuple[str, ...]
    differing: dict[str, int] = field(default_factory=dict)
    largest: dict[str, Difference] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """All compared values are equal as they are stored."""
        return not self.differing

    def within(self, relative: float = TOLERANCE) -> bool:
        """No value differs by more than this."""
        return all(difference.relative <= relative for difference in self.largest.values())

    def report(self) -> dict[str, Any]:
        """In JSON values."""
        return {
            "runs": self.runs,
            "values": self.values,
            "unknown": list(self.unknown),
            "exact": self.exact,
            "within_tolerance": self.within(),
            "differing": self.differing,
            "largest": {name: vars(difference) for name, difference in self.largest.items()},
        }


def reproduces(dataset: Dataset, campaign: Path) -> Comparison:
    """Hold the runs of a campaign against the rows of a data set.

    Raises:
        DatasetError: no run of the campaign is in the data set, or one was made with other settings.
    """
    unknown: list[str] = []
    differing: dict[str, int] = {}
    largest: dict[str, Difference] = {}
    compared = values = 0
    for run in read_runs(campaign):
        if run.run_id not in dataset.by_id:
            unknown.append(run.run_id)
            continue
        _check_same_plan(run.planned, dataset.by_id[run.run_id])
        compared += 1
        mine = step_columns(run)
        theirs = dataset.steps_of(run.run_id)
        both = min(len(mine["step"]), theirs.num_rows)
        first = math.inf if len(mine["step"]) == theirs.num_rows else both + 1
        for name in (*STEP_FACTS, *schema.names()):
            found = _compare(name, mine[name], theirs.column(name))
            values += both
            places = np.flatnonzero(found > 0)
            if not len(places):
                continue
            first = min(first, int(places[0]) + 1)
            worst = int(np.argmax(found))
            pair = mine[name][worst], theirs.column(name)[worst].as_py()
            difference = Difference(run.run_id, worst + 1, _absolute(*pair), float(found[worst]))
            if name not in largest or difference.relative > largest[name].relative:
                largest[name] = difference
        if first < math.inf:
            differing[run.run_id] = int(first)
    if not compared:
        raise DatasetError(
            f"no run of {campaign} is in {dataset.folder}; compare runs of the same plan and root seed"
        )
    return Comparison(compared, values, tuple(unknown), differing, largest)


def _check_same_plan(mine: Any, theirs: Any) -> None:
    names = [column.name for column in PLANNED]
    changed = [n for n in names if _plain(mine[n]) != _plain(theirs[n])]
    if changed:
        raise DatasetError(
            f"run {theirs['run_id']} of the data set has other {', '.join(changed)}: "
            f"{theirs[changed[0]]!r}, not {mine[changed[0]]!r}; the plan or its strengths have changed, "
            "make the data set again"
        )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value


def _compare(name: str, mine: Sequence[Any], column: Any) -> np.ndarray:
    """(steps,) relative differences of the steps that both have; mine are rounded as the column is."""
    theirs = column.to_pylist()
    pairs = list(zip(mine, theirs, strict=False))
    if name in STEP_FACTS:
        return np.array([0.0 if a == b else math.inf for a, b in pairs])
    single = str(column.type) == "float"
    return np.array([_relative(_stored(a, single=single), b) for a, b in pairs])


def _stored(value: float | None, *, single: bool) -> float | None:
    if value is None:
        return None
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(value)) if single else float(value)


def _relative(one: float | None, other: float | None) -> float:
    if one is None or other is None:
        return 0.0 if one is other else math.inf
    if math.isnan(one) or math.isnan(other):
        return 0.0 if math.isnan(one) and math.isnan(other) else math.inf
    if one == other:
        return 0.0
    size = max(abs(one), abs(other))
    return abs(one - other) / size if math.isfinite(size) else math.inf


def _absolute(one: Any, other: Any) -> float:
    numbers = all(isinstance(value, int | float) for value in (one, other))
    return abs(float(one) - float(other)) if numbers else math.inf
