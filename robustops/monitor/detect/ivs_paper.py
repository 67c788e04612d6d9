"""RFT-Feature-Based IVS Scoring of the RFT-FM paper (section IV-A), as written: the method to compare with.

The paper fixes the three stages (profile of normal runs; z_k = |f_k - mean_k| / sd_k of statistics of five
invariants; S = g(phi) > tau with coefficient k = 2, first 20 steps). It leaves open which statistics, which
estimators of mean and deviation, and g. Here, after research note 3.1 "IVS-paper":

statistics  of each signal over the horizon: mean, standard deviation, Theil-Sen slope, range, last third
            less first third, longest streak of steps outside the band of normal runs
z_k         |f_k - median| / (1.4826 MAD + half the standard deviation): a MAD is 0 for what is mostly 0. (The
            note has 5 %: the slope of a signal that is mostly 0 then decides the score of every normal run)
phi_j       mean of the two largest z of invariant j
S           mean of the three largest phi + half the mean streak of their signals, as a share of the horizon
tau         mean + k standard deviations of the normal runs' own scores, each by the profile of the others
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustops.errors import ConfigError
from robustops.monitor import schema
from robustops.monitor.detect import groups, robust
from robustops.monitor.panel import Panel, Series

K, HORIZON = 2.0, 20
STATISTICS = ("mean", "std", "slope", "range", "change", "streak")
#: Half width of a step's band, in deviations.
_BAND = 3.0
_POOLED = 0.5
_TOP_STATISTICS, _TOP_INVARIANTS, _PERSISTENCE = 2, 3, 0.5
_LEAST_RUNS = 3
_TINY = 1e-9
#: Largest z: a signal that was constant in all normal runs has no scale.
_MOST = 100.0


@dataclass(frozen=True)
class _Normal:
    """signals: C; low, high: (S, C) band of each step; centre, scale: (STATISTICS, C)."""

    signals: tuple[str, ...]
    low: Series
    high: Series
    centre: Series
    scale: Series


class IVSPaper:
    """A `monitor.detector.Detector`. invariants: of `groups.INVARIANTS`; k: coefficient of `threshold`;
    horizon: steps from the start that are looked at.
    """

    name = "ivs_paper"

    def __init__(
        self, invariants: Sequence[str] = groups.PAPER, *, k: float = K, horizon: int = HORIZON
    ) -> None:
        self.invariants = tuple(invariants)
        self.k = k
        self.horizon = horizon
        self.threshold = float("nan")
        self._normal: _Normal | None = None

    def fit(self, profile: Sequence[Panel]) -> None:
        """Learn what is normal, and the paper's own threshold; ConfigError for fewer than four runs."""
        if len(profile) <= _LEAST_RUNS:
            raise ConfigError(f"{len(profile)} normal runs have no deviation; give {_LEAST_RUNS + 1} or more")
        scores = []
        for place, own in enumerate(profile):
            normal = self._learned([panel for other, panel in enumerate(profile) if other != place])
            scores.append(self._score(own, normal))
        finite = np.array([score for score in scores if np.isfinite(score)])
        self.threshold = float(finite.mean() + self.k * finite.std(ddof=1)) if len(finite) > 1 else np.inf
        self._normal = self._learned(profile)

    def score(self, panel: Panel) -> float:
        """S of the first `horizon` steps; -inf for a panel of which nothing is known."""
        if self._normal is None:
            raise ConfigError("the detector has no profile yet; call fit with panels of normal runs")
        return self._score(panel, self._normal)

    def _learned(self, panels: Sequence[Panel]) -> _Normal:
        signals = tuple(
            name
            for name in schema.names()
            if groups.invariant_of(name) in self.invariants and all(p.observed(name) for p in panels)
        )
        if not signals:
            raise ConfigError("normal runs have no column of the invariants; see monitor.schema.names()")
        rows = np.stack([self._rows(panel, signals) for panel in panels])
        middle, half = _centre_and_scale(rows, pooled=True)
        low, high = middle - _BAND * half, middle + _BAND * half
        found = np.stack([_statistics(own, low, high) for own in rows])
        centre, scale = _centre_and_scale(found)
        streak = STATISTICS.index("streak")
        scale[streak] = np.maximum(scale[streak], 1.0)  # steps: one more is no wonder where all had none
        return _Normal(signals, low, high, centre, scale)

    def _rows(self, panel: Panel, signals: Sequence[str]) -> Series:
        """(horizon, C): the first rows, NaN where a panel is shorter."""
        rows = np.full((self.horizon, len(signals)), np.nan)
        first = panel.matrix(signals)[: self.horizon]
        rows[: len(first)] = np.where(np.isfinite(first), first, np.nan)
        return rows

    def _score(self, panel: Panel, normal: _Normal) -> float:
        rows = self._rows(panel, normal.signals)
        found = _statistics(rows, normal.low, normal.high)
        z = np.minimum(np.abs(found - normal.centre) / normal.scale, _MOST)
        streaks = found[STATISTICS.index("streak")]
        phi = [self._invariant(z, streaks, normal, name) for name in self.invariants]
        known = sorted((pair for pair in phi if not np.isnan(pair[0])), reverse=True)[:_TOP_INVARIANTS]
        if not known:
            return -np.inf
        severity, persistence = np.mean(known, axis=0)
        return float(severity + _PERSISTENCE * persistence)

    def _invariant(self, z: Series, streaks: Series, normal: _Normal, name: str) -> tuple[float, float]:
        """An invariant's phi, and the mean share of the horizon that its signals stay outside their bands."""
        own = [place for place, signal in enumerate(normal.signals) if groups.invariant_of(signal) == name]
        values = np.sort(z[:, own][~np.isnan(z[:, own])])
        if not len(values):
            return float("nan"), 0.0
        return float(values[-_TOP_STATISTICS:].mean()), float(
            np.nan_to_num(streaks[own]).mean() / self.horizon
        )


def _centre_and_scale(values: Series, *, pooled: bool = False) -> tuple[Series, Series]:
    """(R, N, C) -> median and scale over runs (N, C), which is never 0. pooled: the share of the standard
    deviation that is added is that of all N rows, which are of one unit.
    """
    centre = robust.median(values)
    inner = robust.MAD * robust.median(np.abs(values - centre))
    spread = robust.deviation(values - centre)
    if pooled:
        spread = np.sqrt((spread**2).mean(axis=0))
    return centre, inner + _POOLED * spread + _TINY


def _statistics(rows: Series, low: Series, high: Series) -> Series:
    """(T, C) -> (STATISTICS, C), NaN for a signal with fewer than three values."""
    out = np.full((len(STATISTICS), rows.shape[1]), np.nan)
    for place, values in enumerate(rows.T):
        seen = ~np.isnan(values)
        if seen.sum() < 3:
            continue
        own, third = values[seen], max(1, int(seen.sum()) // 3)
        outside = (values < low[:, place]) | (values > high[:, place])
        out[:, place] = (
            own.mean(),
            own.std(ddof=1),
            theil_sen(np.flatnonzero(seen).astype(np.float64), own),
            np.ptp(own),
            own[-third:].mean() - own[:third].mean(),
            longest(outside),
        )
    return out


def theil_sen(places: Series, values: Series) -> float:
    """Median slope over all pairs of points."""
    first, second = np.triu_indices(len(values), k=1)
    return float(np.median((values[second] - values[first]) / (places[second] - places[first])))


def longest(flags: Sequence[bool] | np.ndarray) -> int:
    """Length of the longest streak of true values."""
    best = current = 0
    for flag in flags:
        current = current + 1 if flag else 0
        best = max(best, current)
    return best
