"""Detection in numbers: rows of every quantity, for one detector in one tier and at one horizon."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from robustops.bench.campaign.layout import MODES
from robustops.bench.evaluation.judged import Judged
from robustops.bench.evaluation.metrics import (
    PAPER_FAULTY,
    PAPER_HEALTHY,
    PAPER_RUNS_A_TYPE,
    alarm_rate,
    auroc,
    delay_quantile,
    f1,
    precision,
    share,
)
from robustops.bench.evaluation.protocol import LEVEL, LEVELS
from robustops.bench.evaluation.registry import DETECT
from robustops.bench.evaluation.resampling import Draws, Values, holm, interval, mcnemar, share_interval
from robustops.bench.evaluation.rows import Row
from robustops.bench.run_faults.catalog import CATALOG

DIFFICULTIES = ("easy", "hard")
FAMILIES = tuple(dict.fromkeys(fault.family for fault in CATALOG.values()))
#: Methods as they come, without calibration, are rows of their own.
SHIPPED = "as shipped"
#: Upper 95 % bound of a Poisson mean of which no event was seen (Garwood 1936): -log(0.025).
_NO_EVENT = -math.log(0.025)
_QUANTILES = {"delay_q25": 0.25, "delay_median": 0.5, "delay_q75": 0.75}
Maker = Callable[..., Row]


def at(metric: str, level: float = LEVEL) -> str:
    """Name of a metric at a false-alarm rate: recall@5."""
    return f"{metric}@{100 * level:g}"


def detection_rows(found: Judged, draws: Draws) -> Iterator[Row]:
    """Every number of a detector."""
    make = _maker(found, found.method)
    healthy = found.where(kind="healthy")
    for level in LEVELS:
        alarms = found.alarms[level]
        yield make(at("level", level), np.full(1, found.levels[level]))
        yield _share_row(found, draws, make, at("false_alarms", level), healthy, alarms)
        for difficulty in DIFFICULTIES:
            faulty = found.where(kind="fault", difficulty=difficulty)
            yield _share_row(found, draws, make, at("recall", level), faulty, alarms, difficulty)
    for difficulty in DIFFICULTIES:
        yield make("auroc", area(found, draws, difficulty), difficulty)
        yield from _narrowed(found, draws, make, difficulty)
    alarms = found.alarms[LEVEL]
    yield from _scores(found, draws, make, alarms)
    for kind in ("benign", "double"):
        places = found.where(kind=kind)
        yield _share_row(found, draws, make, f"alarms_{kind}", places, alarms)
    if found.shipped is not None:
        own = _maker(found, f"{found.method} ({SHIPPED})")
        yield _share_row(found, draws, own, at("false_alarms"), healthy, found.shipped)
        for difficulty in DIFFICULTIES:
            faulty = found.where(kind="fault", difficulty=difficulty)
            yield _share_row(found, draws, own, at("recall"), faulty, found.shipped, difficulty)
        yield from _scores(found, draws, own, found.shipped)
    if found.first is not None:
        yield from _online(found, draws, make)


def area(found: Judged, draws: Draws, difficulty: str = "") -> Values:
    """(1 + draws,) AUROC within each partition, averaged: scores of two fits are not compared."""
    parts = []
    for number in np.unique(found.partition):
        own = found.partition == number
        faulty, healthy = (
            places[own[places]]
            for places in (found.where(kind="fault", difficulty=difficulty), found.where(kind="healthy"))
        )
        parts.append(
            auroc(
                draws,
                found.groups_at(faulty),
                found.scores[faulty],
                found.groups_at(healthy),
                found.scores[healthy],
            )
        )
    return np.asarray(np.mean(parts, axis=0))


def _scores(found: Judged, draws: Draws, make: Maker, alarms: Values) -> Iterator[Row]:
    """Precision, recall and F1 of all faults and of each family, at the paper's prevalence and balanced."""
    false_alarms = _share(found, draws, found.where(kind="healthy"), alarms)
    for difficulty in DIFFICULTIES:
        for family in ("", *FAMILIES):
            places = found.where(kind="fault", difficulty=difficulty, family=family)
            if not len(places):
                continue
            recall = _share(found, draws, places, alarms)
            types = sum(fault.family == family for fault in CATALOG.values())
            faulty = types * PAPER_RUNS_A_TYPE[difficulty] if family else PAPER_FAULTY[difficulty]
            where = {"difficulty": difficulty, "of": family, "n": len(places)}
            yield make("paper_precision", precision(recall, false_alarms, faulty, PAPER_HEALTHY), **where)
            yield make("paper_recall", recall, **where)
            yield make("paper_f1", f1(recall, false_alarms, faulty, PAPER_HEALTHY), **where)
            yield make("balanced_f1", f1(recall, false_alarms), **where)


def _narrowed(found: Judged, draws: Draws, make: Maker, difficulty: str) -> Iterator[Row]:
    """Recall by type, by mode, by mechanism (main or another), and of the runs that were verified."""
    alarms = found.alarms[LEVEL]
    asked: list[tuple[str, dict[str, object]]] = [(name, {"fault": name}) for name in CATALOG]
    asked += [(mode, {"mode": mode}) for mode in MODES if difficulty == "hard" and mode != "easy"]
    asked += [("main mechanism", {"main": True}), ("other mechanisms", {"main": False})]
    asked += [("verified", {"verified": True})]
    for name, wanted in asked:
        places = found.where(kind="fault", difficulty=difficulty, **wanted)
        if len(places):
            yield _share_row(found, draws, make, at("recall"), places, alarms, difficulty, name)


def _online(found: Judged, draws: Draws, make: Maker) -> Iterator[Row]:
    """Alarms while runs go on. One before the onset is a false alarm, and the run counts as not detected."""
    assert found.first is not None
    first, end = found.first, found.horizon
    healthy = found.where(kind="healthy")
    yield _share_row(found, draws, make, "online_false_alarms", healthy, first > 0)
    onset = np.array([label.onset for label in found.labels])
    struck = np.array([p for p in found.where(kind="fault") if 0 < onset[p] <= end], dtype=np.intp)
    watched = np.concatenate([np.full(len(healthy), end), onset[struck] - 1])
    places = np.concatenate([healthy, struck])
    false = (first[places] > 0) & (first[places] <= watched)
    steps = np.where(false, first[places], watched).astype(np.float64)
    rate = alarm_rate(draws, found.groups_at(places), false.astype(np.float64), steps)
    row = make("false_alarms_1000_steps", rate, n=int(steps.sum()))
    # No alarm at all: the exact bound of a Poisson rate, over the steps of each healthy run once.
    own_steps = end * len({found.labels[place].run_id for place in healthy})
    yield row if row.estimate else replace(row, high=1000 * _NO_EVENT / own_steps)
    for difficulty in DIFFICULTIES:
        own = np.array([p for p in struck if found.labels[p].difficulty == difficulty], dtype=np.intp)
        yield _share_row(found, draws, make, "online_recall", own, (first > 0) & (first >= onset), difficulty)
        seen = (first[own] > 0) & (first[own] >= onset[own])
        early = (first[own] > 0) & ~seen
        delays = np.where(seen, first[own] - onset[own], np.where(early, 0, end - onset[own])).astype(float)
        for name, quantile in _QUANTILES.items():
            values = delay_quantile(draws, found.groups_at(own), delays, seen.astype(float), quantile)
            yield make(name, values, difficulty, n=len(own))


def compared(all_found: Sequence[Judged], reference: str, draws: Draws, difficulty: str) -> Iterator[Row]:
    """Each detector against the reference, of one tier and horizon: paired differences, and McNemar's test on
    the faulty runs of the first partition with Holm's correction over the detectors.
    """
    by_name = {found.method: found for found in all_found}
    if reference not in by_name:
        return
    best = by_name[reference]
    places = best.where(kind="fault", difficulty=difficulty)
    first = places[best.partition[places] == best.partition.min()]
    others = [found for found in all_found if found.method != reference]
    p_values = []
    for other in others:
        make = _maker(other, other.method)
        for metric, values in (
            ("recall_difference", [_share(f, draws, places, f.alarms[LEVEL]) for f in (other, best)]),
            ("auroc_difference", [area(f, draws, difficulty) for f in (other, best)]),
        ):
            yield make(metric, values[0] - values[1], difficulty, n=len(places))
        ours, theirs = best.alarms[LEVEL][first], other.alarms[LEVEL][first]
        p_values.append(mcnemar(int((ours & ~theirs).sum()), int((theirs & ~ours).sum())))
    for other, p, adjusted in zip(others, p_values, holm(p_values), strict=True):
        make = _maker(other, other.method)
        yield make("mcnemar_p", np.full(1, p), difficulty, n=len(first))
        yield make("mcnemar_p_holm", np.full(1, adjusted), difficulty, n=len(first))


def _maker(found: Judged, name: str) -> Maker:
    def make(metric: str, values: Values, difficulty: str = "", of: str = "", n: int = 0) -> Row:
        facts = (name, DETECT, found.tier, found.horizon, metric)
        return Row(*facts, *interval(values), difficulty=difficulty, of=of, n=n)

    return make


def _share(found: Judged, draws: Draws, places: np.ndarray, hits: np.ndarray) -> Values:
    """Share of hits (of all entries) at these places."""
    return share(draws, found.groups_at(places), hits[places].astype(np.float64))


def _share_row(
    found: Judged,
    draws: Draws,
    make: Maker,
    metric: str,
    places: np.ndarray,
    hits: np.ndarray,
    difficulty: str = "",
    of: str = "",
) -> Row:
    """Row of a share, with an interval that is none of width 0."""
    row = make(metric, _share(found, draws, places, hits), difficulty, of, len(places))
    bounds = share_interval(_share(found, draws, places, hits), len(set(found.groups_at(places))))
    return replace(row, low=bounds.low, high=bounds.high)
