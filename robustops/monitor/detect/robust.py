"""Robust statistics over runs and steps, NaN where nothing was observed."""

from __future__ import annotations

import warnings

import numpy as np

from robustops.monitor.panel import Series

#: Standard deviation of a normal distribution by its median absolute deviation.
MAD = 1.4826
#: Deviations within which 90 % of normal values are. The median would be 0 for what is mostly 0.
_DECILE = 1.645


def median(values: Series) -> Series:
    """(R, S, ...) -> (S, ...) over runs; 0 where no run has a value."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of slices that are all NaN
        return np.nan_to_num(np.nanmedian(values, axis=0))


def deviation(values: Series) -> Series:
    """(R, S, ...) -> (S, ...) root mean square over runs; 0 where no run has a value."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found: Series = np.nan_to_num(np.sqrt(np.nanmean(values**2, axis=0)))
        return found


def smooth(values: Series, window: int) -> Series:
    """(S, ...) mean over `window` neighbouring steps, over fewer at the ends. The window stays centred: a
    trend shifts no mean.
    """
    steps = len(values)
    out = np.empty_like(values)
    for step in range(steps):
        half = min(window // 2, step, steps - 1 - step)
        out[step] = values[step - half : step + half + 1].mean(axis=0)
    return out


def ridge(rows: Series, targets: Series, penalty: float, cut: float = 4.0) -> Series:
    """(..., B) regressors, (..., C) targets -> (B, C) slopes of a regression without intercept.

    Targets are cut at `cut` deviations, so that single values do not bend it; rows without a target do not
    count for that target. penalty: in rows, regressors of variance 1.
    """
    flat, goals = rows.reshape(-1, rows.shape[-1]), targets.reshape(-1, targets.shape[-1])
    spread = np.sqrt(np.maximum((flat**2).mean(axis=0), 1e-12))
    flat = flat / spread
    slopes = np.zeros((flat.shape[1], goals.shape[1]))
    for place in range(goals.shape[1]):
        goal = goals[:, place]
        seen = ~np.isnan(goal)
        if not seen.any():
            continue
        limit = cut * float(np.quantile(np.abs(goal[seen]), 0.9)) / _DECILE
        own = flat[seen]
        normal = own.T @ own + penalty * np.eye(own.shape[1])
        slopes[:, place] = np.linalg.solve(normal, own.T @ np.clip(goal[seen], -limit, limit))
    found: Series = slopes / spread[:, None]
    return found
