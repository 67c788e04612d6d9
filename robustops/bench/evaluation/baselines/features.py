"""A run as one vector of statistics: what the paper gives to classical detectors and classifiers.

RFT-FaultBench, section VI-C: mean, standard deviation, minimum, maximum, range, first value, last value and
linear trend of each metric.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from robustops.errors import ConfigError
from robustops.monitor import schema
from robustops.monitor.panel import Panel, Series

STATISTICS = ("mean", "std", "min", "max", "range", "first", "last", "slope")
#: Bounds of raw values (an exploded gradient, say) and of standardised ones: order is kept up to them, and
#: squares of them stay finite.
_RAW, _SCALED = 1e6, 1e3


def statistics(values: Series) -> Series:
    """(8,) statistics of a series (T,) in the order of `STATISTICS`, over its observed steps; NaN without any.

    slope: least squares, a step. A series with one observed step has deviation, range and slope 0.
    """
    seen = ~np.isnan(values)
    if not seen.any():
        return np.full(len(STATISTICS), np.nan)
    own = np.clip(values[seen], -_RAW, _RAW)
    at = np.flatnonzero(seen) - np.flatnonzero(seen).mean()
    spread = float(at @ at)
    slope = float(at @ own) / spread if spread > 0 else 0.0
    low, high = float(own.min()), float(own.max())
    return np.array([own.mean(), own.std(), low, high, high - low, own[0], own[-1], slope])


class RunFeatures:
    """Standardised statistics, by the runs that it was fitted on. Columns that half of these do not observe
    are left out; what a run does not observe counts as their median, which is no evidence.
    """

    def __init__(self) -> None:
        self.columns: tuple[str, ...] = ()

    def fit(self, panels: Sequence[Panel]) -> NDArray[np.float64]:
        """Learn columns, medians and scales; returns the (panels, features) of the panels themselves."""
        self.columns = observed_columns(panels)
        raw = np.stack([self._raw(panel) for panel in panels])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice")
            self._median = np.nan_to_num(np.nanmedian(raw, axis=0))
        filled = np.where(np.isnan(raw), self._median, raw)
        self._mean, deviation = filled.mean(axis=0), filled.std(axis=0)
        # As scikit-learn's StandardScaler: what never varied keeps its own unit.
        self._scale = np.where(deviation > 1e-12, deviation, 1.0)
        return self._scaled(filled)

    def transform(self, panel: Panel) -> NDArray[np.float64]:
        """(features,) of one run."""
        raw = self._raw(panel)
        return self._scaled(np.where(np.isnan(raw), self._median, raw))

    def _raw(self, panel: Panel) -> NDArray[np.float64]:
        return np.concatenate([statistics(panel[name]) for name in self.columns])

    def _scaled(self, filled: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.clip((filled - self._mean) / self._scale, -_SCALED, _SCALED)


def observed_columns(panels: Sequence[Panel]) -> tuple[str, ...]:
    """Schema columns that at least half of the panels observe; ConfigError where there are none, or fewer
    than two panels.
    """
    if len(panels) < 2:
        raise ConfigError(f"{len(panels)} runs to learn from; give two at least")
    found = tuple(n for n in schema.names() if 2 * sum(panel.observed(n) for panel in panels) >= len(panels))
    if not found:
        raise ConfigError(
            f"none of the {len(panels)} runs to learn from has a telemetry column; see monitor.schema.names()"
        )
    return found
