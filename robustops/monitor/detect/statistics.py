"""Running statistics of residuals, all causal: the value of a step depends on no later row.

scan       mean over the last 1, 3, 5, 10, 20 or all steps, in deviations of such a mean
cusum      Page's two-sided cumulative sum: how long and far a signal has been on one side
onset      where the cumulative sum that ends highest began to rise

Tried on the benchmark's pilot and left out, since they detected no further run: sums of squares, counts of
exceedances, higher criticism over signals, change against the run's own past.
"""

from __future__ import annotations

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


def cusum(values: Series, drift: float = DRIFT) -> tuple[Series, Series]:
    """(T, ...) -> upper and lower cumulative sums, both >= 0; a step that was not observed leaves them."""
    upper, lower = np.zeros_like(values), np.zeros_like(values)
    seen = ~np.isnan(values)
    # A step that was not observed adds 0, which a sum >= 0 stays with.
    up, down = np.where(seen, values - drift, 0.0), np.where(seen, -values - drift, 0.0)
    high, low = np.zeros(values.shape[1:]), np.zeros(values.shape[1:])
    for step in range(len(values)):
        high, low = np.maximum(0.0, high + up[step]), np.maximum(0.0, low + down[step])
        upper[step], lower[step] = high, low
    return upper, lower


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
