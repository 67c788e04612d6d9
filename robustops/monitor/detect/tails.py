"""What the largest value of a running statistic is in a healthy run, so that statistics become comparable.

The surprise of a value x is -log of the share of healthy runs whose largest value is at least x: above the
upper quartile of the profile's runs by an exponential tail, whose scale is shrunk towards the one that the
largest of many normal values has, since a profile of 20 to 100 runs knows little of any single tail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustops.monitor.panel import Series

#: Share of runs that lie below the tail.
_BELOW = 0.6
#: Scale of a tail before any run is seen, in deviations, and how many runs it counts as.
_SCALE, _WEIGHT = 0.45, 8.0
#: Least start of a tail: a statistic that is always 0 in the profile is no surprise below it.
_LEAST = 2.5


@dataclass(frozen=True)
class Tails:
    """start, scale: (K,) of the exponential tail of each statistic."""

    start: Series
    scale: Series

    @classmethod
    def fit(cls, maxima: Series, least: float = _LEAST, scale: float = _SCALE) -> Tails:
        """maxima: (runs, K), the largest value of each statistic in runs that it was not learned from."""
        start = np.maximum(np.quantile(maxima, _BELOW, axis=0), least)
        excess = np.where(maxima > start, maxima - start, 0.0).sum(axis=0)
        count = (maxima > start).sum(axis=0)
        return cls(start, (excess + _WEIGHT * scale) / (count + _WEIGHT))

    def surprise(self, values: Series) -> Series:
        """(..., K) -> (..., K), >= 0."""
        found: Series = np.maximum(0.0, (values - self.start) / self.scale - math.log(1 - _BELOW))
        return found

    def to_dict(self) -> dict[str, Any]:
        """In JSON values."""
        return {"start": self.start.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_dict(cls, body: dict[str, Any]) -> Tails:
        """The inverse of `to_dict`."""
        return cls(np.asarray(body["start"], dtype=np.float64), np.asarray(body["scale"], dtype=np.float64))
