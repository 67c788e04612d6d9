"""Running statistics of residuals, all causal: the value of a step depends on no later row.

scan       mean over the last 1, 3, 5, 10, 20 or all steps, in deviations of such a mean
spread     the same of the squares: a signal that strays both ways, or now and then, has no mean
cusum      Page's two-sided cumulative sum: how long and far a signal has been on one side
exceeding  share of the last steps at which a value was beyond a limit, against the expected share
criticism  Tukey's higher criticism over signals: more of them are a little out than chance allows
"""

from __future__ import annotations

import math

import numpy as np

from robustops.monitor.panel import Series

#: Lengths of windows, in steps; 0: all steps so far.
WINDOWS = (1, 3, 5, 10, 20, 0)
#: Reference value of the cumulative sum, in deviations: half the shift it is fastest for.
DRIFT = 0.5


def scan(values: Series, length: int) -> Series:
    """(T, ...) values of mean 0 and variance 1 -> (T, ...) sum over the last `length` observed steps / sqrt
    of their number. 0 where fewer than half of them were observed. length 0: all steps so far.
    """
    seen = ~np.isnan(values)
    total, count = (_window(x, length) for x in (np.where(seen, values, 0.0), seen.astype(np.float64)))
    wanted = np.arange(1, len(values) + 1) if length == 0 else np.full(len(values), length)
    enough = (2 * count >= wanted.reshape(-1, *[1] * (values.ndim - 1))) & (count > 0)
    return np.where(enough, total / np.sqrt(np.maximum(count, 1)), 0.0)


def spread(values: Series, length: int) -> Series:
    """(T, ...) scan of squares, centred and scaled as those of a normal distribution."""
    return scan((values**2 - 1) / math.sqrt(2), length)


def cusum(values: Series, drift: float = DRIFT) -> tuple[Series, Series]:
    """(T, ...) -> upper and lower cumulative sums, both >= 0; a step that was not observed leaves them."""
    upper, lower = np.zeros_like(values), np.zeros_like(values)
    high, low = np.zeros(values.shape[1:]), np.zeros(values.shape[1:])
    for step, row in enumerate(values):
        seen = ~np.isnan(row)
        high = np.where(seen, np.maximum(0.0, high + np.nan_to_num(row) - drift), high)
        low = np.where(seen, np.maximum(0.0, low - np.nan_to_num(row) - drift), low)
        upper[step], lower[step] = high, low
    return upper, lower


def exceeding(values: Series, limit: float, expected: float, length: int) -> Series:
    """(T, ...) -> (T, ...) binomial deviations of the number of |values| > limit in a window; expected: share
    of healthy values there.
    """
    hits = np.where(np.isnan(values), np.nan, np.abs(values) > limit)
    return scan((hits - expected) / math.sqrt(expected * (1 - expected)), length)


def criticism(values: Series, share: float = 0.5) -> Series:
    """(T, C) normal values -> (T,) higher criticism of the smallest `share` of two-sided p-values.

    Donoho and Jin (2004). p-values below 1 / C are left out: a single signal has statistics of its own.
    """
    out = np.zeros(len(values))
    for step, row in enumerate(values):
        p = np.sort(_two_sided(row[~np.isnan(row)]))
        count = len(p)
        rank = np.arange(1, count + 1)
        used = (rank <= share * count) & (p >= 1 / max(count, 1)) & (p < 1)
        if used.any():
            fraction = rank[used] / count
            out[step] = max(0.0, float((math.sqrt(count) * (fraction - p[used]) / _sd(p[used])).max()))
    return out


def onset(values: Series, drift: float = DRIFT) -> int:
    """Row of (T,) at which the cumulative sum that ends highest began to rise; the last row for no values."""
    sums = cusum(values[:, None], drift)
    side = max(sums, key=lambda found: float(found.max(initial=0.0)))[:, 0]
    if not len(side) or side.max() <= 0:
        return max(len(values) - 1, 0)
    zeros = np.flatnonzero(side[: int(side.argmax())] == 0)
    return int(zeros[-1]) + 1 if len(zeros) else 0


def _window(values: Series, length: int) -> Series:
    total = np.cumsum(values, axis=0)
    if 0 < length < len(values):
        total[length:] = total[length:] - total[:-length].copy()
    return total


#: Two-sided p-values of a normal distribution on a grid: numpy has no error function.
_GRID = np.linspace(0.0, 9.0, 1801)
_P_VALUES = np.array([math.erfc(value / math.sqrt(2)) for value in _GRID])


def _two_sided(values: Series) -> Series:
    found: Series = np.interp(np.abs(values), _GRID, _P_VALUES)
    return found


def _sd(p: Series) -> Series:
    return np.sqrt(np.maximum(p * (1 - p), 1e-12))
