"""Who learns from which runs, who is calibrated on which, and who is tested on which.

A seed group is never split: its runs share their first steps to the byte. From the data set's splits table:

    profile       healthy runs that detectors learn from
    calibration   healthy runs that thresholds are set on, the same way for every detector
    test          all other runs of the groups that are not final; faulty ones in five folds, for diagnosers,
                  which learn from the faulty runs of the other folds

With `final` the held-out groups are the test; diagnosers learn from all folds, and the healthy test runs of
the other groups, which nobody has learned from, calibrate as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustops.bench.evaluation.runs import Label
from robustops.errors import ConfigError, DatasetError
from robustops.monitor.detect.conformal import Calibration
from robustops.monitor.panel import Series

#: Run false-alarm rates at which recall is reported, and the one at which all else is.
LEVELS = (0.01, 0.05, 0.10)
LEVEL = 0.05
#: Fold of a diagnoser that is tested on the final groups.
FINAL_FOLD = -1


@dataclass(frozen=True)
class Fold:
    """run_ids of the faulty runs (one fault) that a diagnoser learns from and is tested on; healthy: tested
    healthy runs, which it is asked about where a detector falsely gives an alarm.
    """

    number: int
    train: tuple[str, ...]
    test: tuple[str, ...]
    healthy: tuple[str, ...] = ()


@dataclass(frozen=True)
class Partition:
    """One deal of the runs: run_ids in order. test: of every kind."""

    number: int
    profile: tuple[str, ...]
    calibration: tuple[str, ...]
    test: tuple[str, ...]
    folds: tuple[Fold, ...]


def partitions(
    rows: Sequence[dict[str, Any]], labels: dict[str, Label], count: int, *, final: bool = False
) -> list[Partition]:
    """The first `count` partitions. rows: of table splits.

    Raises:
        ConfigError: more partitions than the data set has.
        DatasetError: healthy runs to learn from, to calibrate on or to test on are missing.
    """
    numbers = sorted({row["partition"] for row in rows})
    if count > len(numbers):
        raise ConfigError(f"partitions={count}; the data set has {len(numbers)}")
    found = []
    for number in numbers[:count]:
        own = sorted((r for r in rows if r["partition"] == number), key=lambda row: row["run_id"])
        found.append(_partition(number, own, labels, final))
    return found


def _partition(number: int, rows: list[dict[str, Any]], labels: dict[str, Label], final: bool) -> Partition:
    def of(name: str, held: bool) -> tuple[str, ...]:
        return tuple(r["run_id"] for r in rows if r["healthy_set"] == name and bool(r["final"]) == held)

    profile, calibration = of("profile", False), of("calibration", False)
    if final:
        calibration += of("test", False)
    learned = {*profile, *calibration}
    test = tuple(r["run_id"] for r in rows if bool(r["final"]) == final and r["run_id"] not in learned)
    healthy = [name for name in test if labels[name].kind == "healthy"]
    for what, runs in (("learn from", profile), ("calibrate on", calibration), ("test on", healthy)):
        if len(runs) < 2:
            raise DatasetError(
                f"partition {number} has {len(runs)} healthy runs to {what}; make more of the campaign's "
                "healthy runs (robustops bench stage=campaign types=[healthy])"
            )
    return Partition(number, profile, calibration, test, _folds(rows, labels, healthy, final))


def _folds(
    rows: list[dict[str, Any]], labels: dict[str, Label], healthy: Sequence[str], final: bool
) -> tuple[Fold, ...]:
    """A control is in the fold of its group; healthy runs of no fold are dealt to all of them in turn."""
    faulty = [row for row in rows if labels[row["run_id"]].kind == "fault"]
    open_ones = [row for row in faulty if not row["final"]]
    if final:
        train = tuple(row["run_id"] for row in open_ones)
        test = tuple(row["run_id"] for row in faulty if row["final"])
        return (Fold(FINAL_FOLD, train, test, tuple(healthy)),)
    numbers = sorted({row["fold"] for row in open_ones})
    fold_of = {row["run_id"]: row["fold"] for row in rows}
    dealt = {name: numbers[at % len(numbers)] for at, name in enumerate(healthy) if numbers}
    own = {name: dealt[name] if fold_of[name] is None else fold_of[name] for name in dealt}
    return tuple(
        Fold(
            number,
            tuple(row["run_id"] for row in open_ones if row["fold"] != number),
            tuple(row["run_id"] for row in open_ones if row["fold"] == number),
            tuple(name for name, fold in own.items() if fold == number),
        )
        for number in numbers
    )


@dataclass(frozen=True)
class Threshold:
    """An alarm is a score above `value`. level: the run false-alarm rate that split conformal guarantees
    for it, which is above the one asked for where the calibration runs are too few.
    """

    value: float
    level: float


def conformal_threshold(scores: Series, rate: float) -> Threshold:
    """Split conformal (Vovk et al. 2005; Laxhammar 2014): a healthy run's p-value is (1 + calibration scores
    that are no smaller) / (n + 1), and an alarm is a p-value of at most `rate`.

    scores: (n,) of the calibration runs. One run in n + 1 is the lowest rate there is: below it, the largest
    calibration score is the threshold, and `level` says 1 / (n + 1).
    """
    calibration = Calibration.of(scores)
    level = max(rate, 1 / (len(scores) + 1))
    return Threshold(calibration.threshold(level), calibration.allowed(level) / (len(scores) + 1))


def first_alarms(step_scores: Series, threshold: float) -> np.ndarray:
    """(runs,) place of the first step whose score is above the threshold, -1 where none is.

    step_scores: (runs, T). The threshold is that of the runs' largest scores: it bounds the chance of any
    alarm within T steps, not of one at a given step.
    """
    above = step_scores > threshold
    return np.where(above.any(axis=1), above.argmax(axis=1), -1)
