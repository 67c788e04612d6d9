"""Detection and diagnosis in numbers, each for all draws of the bootstrap at once (see `resampling`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robustops.bench.evaluation.resampling import Draws, Values, divided

#: Faulty and healthy runs of the paper, by difficulty; a family's faulty runs are 20 or 28 a type.
PAPER_FAULTY = {"easy": 320, "hard": 448}
PAPER_HEALTHY = 11
PAPER_RUNS_A_TYPE = {"easy": 20, "hard": 28}


def share(draws: Draws, groups: Sequence[int], hits: Values) -> Values:
    """(1 + draws,) weighted share of hits (0 or 1 a run); NaN without runs."""
    hits = np.asarray(hits, dtype=np.float64)
    return divided(draws.sums(groups, hits), draws.sums(groups, np.ones(len(hits))))


def auroc(
    draws: Draws,
    faulty_groups: Sequence[int],
    faulty: Values,
    healthy_groups: Sequence[int],
    healthy: Values,
) -> Values:
    """(1 + draws,) P(score of a faulty run > of a healthy one) + P(equal) / 2.

    faulty, healthy: scores a run, infinite ones included. Pairs are counted once, by groups: a draw's value
    is then a quadratic form of its weights.
    """
    won = (faulty[:, None] > healthy) + 0.5 * (faulty[:, None] == healthy)
    return pairs_won(draws, faulty_groups, healthy_groups, won.astype(np.float64))


def pairs_won(
    draws: Draws, faulty_groups: Sequence[int], healthy_groups: Sequence[int], won: Values
) -> Values:
    """(1 + draws,) weighted mean of won (faulty, healthy): 1 where a faulty run scores higher than a healthy
    one, 0.5 where both score the same. `auroc` where each run has one score.
    """
    if not won.size:
        return np.full(len(draws.weights), np.nan)
    rows = draws.by_group(faulty_groups, won)
    pairs = draws.by_group(healthy_groups, rows.T).T
    up, down = (sorted({draws.groups[one] for one in own}) for own in (faulty_groups, healthy_groups))
    top = ((draws.weights[:, up] @ pairs[np.ix_(up, down)]) * draws.weights[:, down]).sum(axis=1)
    bottom = draws.sums(faulty_groups, np.ones(len(won))) * draws.sums(healthy_groups, np.ones(won.shape[1]))
    return divided(top, bottom)


def precision(recall: Values, false_alarms: Values, faulty: float, healthy: float) -> Values:
    """Precision where `faulty` and `healthy` runs are met in this ratio; NaN without any alarm.

    recall, false_alarms: shares of the faulty and of the healthy runs with an alarm.
    """
    return divided(faulty * recall, faulty * recall + healthy * false_alarms)


def f1(recall: Values, false_alarms: Values, faulty: float = 1.0, healthy: float = 1.0) -> Values:
    """F1 at this ratio of faulty to healthy runs: balanced by default, where an alarm for every run has 2/3.
    At the paper's 320 : 11 that alarm has 0.983.
    """
    return divided(2 * faulty * recall, faulty * recall + healthy * false_alarms + faulty)


def confusion(
    draws: Draws, groups: Sequence[int], truth: Sequence[str], said: Sequence[str], names: Sequence[str]
) -> Values:
    """(1 + draws, names, names) weighted counts of runs, rows by truth and columns by what was said."""
    place = {name: at for at, name in enumerate(names)}
    cells = np.zeros((len(truth), len(names), len(names)))
    for at, (true, told) in enumerate(zip(truth, said, strict=True)):
        cells[at, place[true], place[told]] = 1.0
    return draws.sums(groups, cells)


def class_scores(counts: Values, classes: Sequence[int]) -> tuple[Values, Values, Values]:
    """Precision, recall and F1 of each class, (1 + draws, classes) each.

    counts: of `confusion`; classes: places of those that are scored. A class without a run in a draw is NaN;
    one that is never said has precision 0, as is usual.
    """
    right = counts[:, classes, classes]
    true, said = counts[:, classes, :].sum(axis=2), counts[:, :, classes].sum(axis=1)
    recall = divided(right, true)
    exact = np.where(true > 0, np.nan_to_num(divided(right, said)), np.nan)
    return exact, recall, np.where(true > 0, divided(2 * right, true + said), np.nan)


def macro(values: Values) -> Values:
    """(1 + draws,) mean over the classes that a draw has runs of."""
    seen = ~np.isnan(values)
    return divided(np.where(seen, values, 0.0).sum(axis=1), seen.sum(axis=1).astype(np.float64))


def delay_quantile(draws: Draws, groups: Sequence[int], delays: Values, seen: Values, share: float) -> Values:
    """(1 + draws,) smallest number of steps by which a share of the runs has had its alarm, by Kaplan and
    Meier (1958); NaN where the runs were watched too short a time to tell.

    delays: steps from onset to alarm, or to the end of watching; seen: 1 where there was an alarm, 0 where
    watching ended without one (censored).
    """
    if not len(delays):
        return np.full(len(draws.weights), np.nan)
    length = int(delays.max()) + 1
    at = np.arange(length)
    events = draws.sums(groups, (delays[:, None] == at) * np.asarray(seen)[:, None])
    under_watch = draws.sums(groups, (delays[:, None] >= at).astype(np.float64))
    hazard = np.nan_to_num(divided(events, under_watch))
    without = np.cumprod(1 - hazard, axis=1)
    reached = without <= 1 - share + 1e-12
    return np.where(reached.any(axis=1), reached.argmax(axis=1), np.nan)


def alarm_rate(
    draws: Draws, groups: Sequence[int], alarms: Values, steps: Values, per: float = 1000.0
) -> Values:
    """(1 + draws,) first alarms in `per` steps of healthy training. steps: watched a run, up to the alarm."""
    return per * divided(draws.sums(groups, alarms), draws.sums(groups, steps))
