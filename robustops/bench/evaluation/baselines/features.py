"""A run as one vector of statistics: what the paper gives to classical detectors and classifiers.

RFT-FaultBench, section VI-C: mean, standard deviation, minimum, maximum, range, first value, last value and
linear trend of each metric.
"""

from __future__ import annotations

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


def statistics(values: Series) -> NDArray[np.float64]:
    """(8, C) statistics of the columns of values (T, C), in the order of `STATISTICS`, over the steps at
    which each is observed; NaN without any.

    slope: least squares, a step. A series with one observed step has deviation, range and slope 0.
    """
    seen = ~np.isnan(values)
    count = seen.sum(axis=0)
    own = np.where(seen, np.clip(values, -_RAW, _RAW), 0.0)
    length = np.maximum(count, 1)
    mean = own.sum(axis=0) / length
    spread = np.where(seen, own - mean, 0.0)
    at = np.arange(len(values))[:, None] * seen
    centred = np.where(seen, at - at.sum(axis=0) / length, 0.0)
    squares = (centred**2).sum(axis=0)
    slope = (centred * spread).sum(axis=0) / np.where(squares > 0, squares, 1.0)
    low = np.where(seen, own, np.inf).min(axis=0, initial=np.inf)
    high = np.where(seen, own, -np.inf).max(axis=0, initial=-np.inf)
    columns = np.arange(values.shape[1])
    first, last = (own[place(seen), columns] for place in (_first, _last))
    deviation = np.sqrt((spread**2).sum(axis=0) / length)
    with np.errstate(invalid="ignore"):  # inf - inf of a column that was never observed
        found = np.stack([mean, deviation, low, high, high - low, first, last, slope])
    return np.where(count > 0, found, np.nan)


def _first(seen: NDArray[np.bool_]) -> NDArray[np.intp]:
    return np.asarray(seen.argmax(axis=0))


def _last(seen: NDArray[np.bool_]) -> NDArray[np.intp]:
    return np.asarray(len(seen) - 1 - seen[::-1].argmax(axis=0))


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
        self._median = np.nanmedian(raw, axis=0)  # half of the panels observe each column
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
        return np.asarray(statistics(panel.matrix(self.columns)).T.ravel())

    def _scaled(self, filled: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.clip((filled - self._mean) / self._scale, -_SCALED, _SCALED))


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
