"""What a detector said of every tested run, in arrays, after one calibration for all detectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from robustops.bench.evaluation.protocol import LEVEL, LEVELS, conformal_threshold, first_alarms
from robustops.bench.evaluation.registry import chosen
from robustops.bench.evaluation.runs import Label
from robustops.bench.evaluation.units import Done


@dataclass
class Judged:
    """One entry a tested run and partition, arrays of equal length.

    partition: its number; labels: what the run is; scores; alarms: by level of `LEVELS`; levels: what split
    conformal guarantees for each, the worst of the partitions; shipped: alarms at the method's own threshold,
    None where it has none; first: step of the first alarm at `LEVEL` while the run went on, 0 where there is
    none, None for a method that sees whole runs only.
    """

    method: str
    tier: str
    horizon: int
    partition: np.ndarray
    labels: list[Label]
    scores: np.ndarray
    alarms: dict[float, np.ndarray]
    levels: dict[float, float]
    shipped: np.ndarray | None = None
    first: np.ndarray | None = None
    groups: list[int] = field(init=False)
    _columns: dict[str, np.ndarray] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.groups = [label.group for label in self.labels]

    def where(self, **wanted: object) -> np.ndarray:
        """Places of the runs whose labels have these values; a value "" or None is passed over."""
        chosen_ones = np.ones(len(self.labels), dtype=bool)
        for name, value in wanted.items():
            if value not in ("", None):
                chosen_ones &= self._column(name) == value
        return np.flatnonzero(chosen_ones)

    def _column(self, name: str) -> np.ndarray:
        """(entries,) one field of the labels."""
        if name not in self._columns:
            self._columns[name] = np.array([getattr(label, name) for label in self.labels])
        return self._columns[name]

    def groups_at(self, places: np.ndarray) -> list[int]:
        """Seed groups of the runs at these places."""
        return [self.groups[place] for place in places]


def judged(done: Sequence[Done], labels: dict[str, Label]) -> Judged:
    """Of one detector's partitions, all of one tier and horizon."""
    parts = [_judged_partition(one, labels) for one in done]
    first = parts[0]
    join = np.concatenate
    return Judged(
        first.method,
        first.tier,
        first.horizon,
        join([part.partition for part in parts]),
        [label for part in parts for label in part.labels],
        join([part.scores for part in parts]),
        {level: join([part.alarms[level] for part in parts]) for level in LEVELS},
        {level: max(part.levels[level] for part in parts) for level in LEVELS},
        join([p.shipped for p in parts if p.shipped is not None]) if first.shipped is not None else None,
        join([p.first for p in parts if p.first is not None]) if first.first is not None else None,
    )


def _judged_partition(one: Done, labels: dict[str, Label]) -> Judged:
    partition = one.unit.partition
    place = {str(name): at for at, name in enumerate(one.arrays["run_ids"])}
    calibration = np.array([place[name] for name in partition.calibration])
    test = np.array([place[name] for name in partition.test])
    scores, own = one.arrays["scores"], one.meta["threshold"]
    bounds = {level: conformal_threshold(scores[calibration], level) for level in LEVELS}
    alarms = {level: scores[test] > bound.value for level, bound in bounds.items()}
    levels = {level: bound.level for level, bound in bounds.items()}
    calibrated = chosen([one.unit.method])[0].calibrated
    if not calibrated:  # a rule with nothing to set: it does the same at every level
        alarms = {level: scores[test] > own for level in LEVELS}
        levels = dict.fromkeys(LEVELS, 1.0)
    first = None
    if "steps" in one.arrays:
        steps = one.arrays["steps"]
        bound = conformal_threshold(steps[calibration].max(axis=1), LEVEL)
        first = first_alarms(steps[test], bound.value) + 1
    return Judged(
        one.unit.method,
        one.unit.tier,
        one.unit.horizon,
        np.full(len(test), partition.number),
        [labels[name] for name in partition.test],
        scores[test],
        alarms,
        levels,
        scores[test] > own if own is not None and calibrated else None,
        first,
    )
