"""From scores to p-values and alarms, with a guarantee that assumes nothing of the scores.

Split conformal: n healthy runs that the detector has not learned from, the calibration set. Where a new
healthy run is exchangeable with them (made in the same way), the share of those whose score is at least its
own, itself counted, is a p-value: P(p <= alpha) <= alpha. The smallest p-value that n runs can give is 1 /
(n + 1), so that alarms at a rate of alpha take n >= 1 / alpha - 1: 19 runs for 5 %, 99 for 1 %. With fewer
the threshold is infinite: no alarm at all, rather than alarms at another rate.

That rate is the mean over calibration sets. Given one of them it has a beta distribution: with n = 19 a
rate of 14 % is still within its 95 %, `rate_bound` tells.

Online, the score of a run is the largest of its steps' scores. A healthy run crosses a threshold on that at
any of its T steps with P <= alpha: nothing is lost to looking after every step, nor to how steps depend on
each other. T is the length of the calibration runs; what is watched for k times as long has at most k times
as many alarms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robustops.errors import ConfigError
from robustops.monitor.detect.files import read_versioned, write_versioned
from robustops.monitor.panel import Series

VERSION = 1
KIND = "conformal calibration"


def least_runs(alpha: float) -> int:
    """Calibration runs that a false-alarm rate of alpha takes at least."""
    _check(alpha)
    return math.ceil(1 / alpha - 1 - 1e-9)


@dataclass(frozen=True)
class Calibration:
    """scores: (n,) of healthy calibration runs, rising."""

    scores: Series

    @classmethod
    def of(cls, scores: Iterable[float]) -> Calibration:
        """ConfigError for no scores, or NaN among them."""
        found = np.sort(np.asarray(list(scores), dtype=np.float64))
        if not len(found) or np.isnan(found).any():
            raise ConfigError(
                f"{len(found)} calibration scores, {int(np.isnan(found).sum())} of them NaN; score healthy "
                "runs that the detector has not learned from (-inf where nothing is known of one)"
            )
        return cls(found)

    def p_value(self, score: float) -> float:
        """Share of healthy runs whose score is at least this one, this one counted; NaN is refused."""
        if math.isnan(score):
            raise ConfigError("a score is NaN; a run of which nothing is known scores -inf")
        at_least = len(self.scores) - int(np.searchsorted(self.scores, score, side="left"))
        return (1 + at_least) / (1 + len(self.scores))

    def p_values(self, scores: Series) -> Series:
        """(T,) online: the p-value of the largest score so far, so that it never rises."""
        largest = np.maximum.accumulate(scores) if len(scores) else scores
        return np.array([self.p_value(float(score)) for score in largest])

    def allowed(self, alpha: float) -> int:
        """How many of n + 1 healthy runs may give an alarm at a rate of alpha."""
        _check(alpha)
        return math.floor(alpha * (1 + len(self.scores)) + 1e-9)

    def threshold(self, alpha: float) -> float:
        """A score above it is an alarm; p_value(score) <= alpha is the same. inf: too few runs for alpha."""
        allowed = self.allowed(alpha)
        return math.inf if allowed < 1 else float(self.scores[-allowed])

    def first_alarm(self, scores: Series, alpha: float) -> int | None:
        """Row of the first of (T,) step scores above the threshold."""
        above = np.flatnonzero(scores > self.threshold(alpha))
        return int(above[0]) if len(above) else None

    def rate_bound(self, alpha: float, confidence: float = 0.95) -> float:
        """What the false-alarm rate given this very set stays below, with this confidence."""
        count, allowed = len(self.scores), self.allowed(alpha)
        if allowed < 1:
            return 0.0
        low, high = 0.0, 1.0
        for _ in range(50):  # the rate is Beta(allowed, count + 1 - allowed)
            middle = (low + high) / 2
            low, high = (low, middle) if _at_least(allowed, count, middle) >= confidence else (middle, high)
        return high

    def save(self, path: Path | str) -> None:
        """Write as JSON; the file is whole or absent."""
        write_versioned(path, KIND, VERSION, {"scores": self.scores.tolist()})

    @classmethod
    def load(cls, path: Path | str) -> Calibration:
        """ConfigError for a file that is no calibration of this version."""
        return cls.of(read_versioned(path, KIND, VERSION)["scores"])


def _at_least(hits: int, count: int, rate: float) -> float:
    """P(binomial(count, rate) >= hits)."""
    return 1 - math.fsum(math.comb(count, k) * rate**k * (1 - rate) ** (count - k) for k in range(hits))


def _check(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise ConfigError(f"a false-alarm rate is between 0 and 1, not {alpha}")
