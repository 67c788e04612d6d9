"""Intervals and tests that know which runs belong together.

Runs of a seed group are not independent, so groups are what the bootstrap draws. A draw is a vector of
weights, one a group (how often it was drawn), and every statistic takes the matrix of all draws at once: its
first row is all ones, the sample itself. The same draws serve all methods, so that differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robustops.bench.campaign.extras import require
from robustops.seeding import array_generator
from robustops.tracking.statistics import Interval, wilson

Values = NDArray[np.float64]
DRAWS = 2000


@dataclass(frozen=True)
class Draws:
    """groups: seed group -> place; weights: (1 + draws, groups), see the module."""

    groups: Mapping[int, int]
    weights: Values

    def sums(self, groups: Sequence[int], values: Values) -> Values:
        """(1 + draws, ...) weighted sums of values (runs, ...), one a run of these groups."""
        return np.asarray(np.tensordot(self.weights, self.by_group(groups, values), axes=1))

    def by_group(self, groups: Sequence[int], values: Values) -> Values:
        """(groups, ...) sums of values (runs, ...)."""
        values = np.asarray(values, dtype=np.float64)
        total = np.zeros((len(self.groups), *values.shape[1:]))
        np.add.at(total, [self.groups[group] for group in groups], values)
        return total


def draw_groups(groups: Mapping[int, str], seed: int, draws: int = DRAWS) -> Draws:
    """Draws with replacement within each stratum. groups: seed group -> stratum (groups with faulty runs and
    those of healthy runs alone, say), whose sizes stay as they are.
    """
    order = sorted(groups)
    weights = np.ones((1 + draws, len(order)))
    for stratum in sorted(set(groups.values())):
        places = [place for place, group in enumerate(order) if groups[group] == stratum]
        rng = array_generator(seed, "cluster bootstrap", stratum)
        weights[1:, places] = rng.multinomial(len(places), [1 / len(places)] * len(places), size=draws)
    return Draws({group: place for place, group in enumerate(order)}, weights)


def interval(values: Values, level: float = 0.95) -> Interval:
    """Percentile interval: estimate is the first value, of the sample itself; draws without one (nothing of
    the kind was drawn) are passed over. All NaN where there is no estimate.
    """
    seen = values[1:][~np.isnan(values[1:])]
    if np.isnan(values[0]) or not len(seen):
        return Interval(float(values[0]), float("nan"), float("nan"))
    low, high = np.percentile(seen, [50 * (1 - level), 50 * (1 + level)])
    return Interval(float(values[0]), float(low), float(high))


def share_interval(values: Values, groups: int) -> Interval:
    """`interval` of a share, but for one of 0 or 1: every draw has the same then, and Wilson's interval of as
    many trials as there are groups says what can be known.
    """
    found = interval(values)
    if found.estimate not in (0.0, 1.0) or not groups:
        return found
    return wilson(int(found.estimate) * groups, groups)


def divided(top: Values, bottom: Values) -> Values:
    """Ratio of each draw, NaN where there is nothing to divide by."""
    blank = np.full(np.broadcast(top, bottom).shape, np.nan)
    return np.asarray(np.divide(top, bottom, out=blank, where=bottom > 0))


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value of McNemar's test (1947): runs that only one of two methods gets right."""
    both = only_first + only_second
    if not both:
        return 1.0
    return float(require("scipy.stats").binomtest(only_first, both, 0.5).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979), in the given order: the chance of any false rejection is bounded."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, (len(p_values) - rank) * p_values[place])
        adjusted[place] = min(1.0, largest)
    return adjusted
