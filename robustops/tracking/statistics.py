"""Intervals and pass@k for evaluation tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustops.errors import ConfigError
from robustops.seeding import array_generator

#: Resampled values held in memory at once.
_CHUNK = 4_000_000


class Interval(NamedTuple):
    """A point estimate with its confidence bounds."""

    estimate: float
    low: float
    high: float


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a share (Wilson 1927). n = 0: estimate NaN, bounds 0 and 1."""
    if not 0 <= successes <= n:
        raise ConfigError(f"{successes} successes of {n} trials; give 0 <= successes <= n")
    z = _quantile(level)
    if n == 0:
        return Interval(math.nan, 0.0, 1.0)
    share = successes / n
    scale = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(share, low, high)


def bootstrap_ci(values: Sequence[float], seed: int, n: int = 10_000, level: float = 0.95) -> Interval:
    """Percentile bootstrap of a mean.

    Args:
        values: one number a case: cases are what is resampled, so average repeats of a case first.
        seed: root seed; equal seeds give equal intervals.
        n: resamples.
        level: confidence level.

    Returns:
        The mean and its bounds; all NaN where there are no values.
    """
    _quantile(level)
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        return Interval(math.nan, math.nan, math.nan)
    means = _resampled_means(sample, seed, n)
    tail = 50 * (1 - level)
    low, high = np.percentile(means, [tail, 100 - tail])
    return Interval(float(sample.mean()), float(low), float(high))


def paired_difference_ci(
    a: Sequence[float], b: Sequence[float], seed: int, n: int = 10_000, level: float = 0.95
) -> Interval:
    """Case bootstrap of mean(a) - mean(b), where a[i] and b[i] belong to one case.

    A case is drawn with both its values, so that what makes a case hard for both cancels.
    """
    if len(a) != len(b):
        raise ConfigError(f"{len(a)} and {len(b)} values; a paired difference needs one of each a case")
    differences = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    return bootstrap_ci(differences.tolist(), seed, n, level)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that at least one of k attempts succeeds, from c successes in n (Chen et al. 2021).

    1 - C(n - c, k) / C(n, k), as a product, which does not overflow.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ConfigError(f"pass@{k} of {c} successes in {n} attempts; needs 0 <= c <= n and 1 <= k <= n")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def pass_at_k_table(counts: Sequence[tuple[int, int]], ks: Sequence[int]) -> dict[str, float]:
    """pass@k averaged over cases, by k as text (JSON keys).

    counts: (attempts, successes) a case. A k beyond the attempts of some case is left out: its estimate
    would be of other cases than the rest of the table.
    """
    if not counts:
        return {}
    fewest = min(n for n, _ in counts)
    return {
        str(k): sum(pass_at_k(n, c, k) for n, c in counts) / len(counts) for k in sorted(ks) if k <= fewest
    }


def rate_summary(successes: int, n: int) -> dict[str, Any]:
    """`{"success_rate", "ci95", "n"}` as in summary.json, by Wilson; None for both without trials."""
    if n == 0:
        return {"success_rate": None, "ci95": None, "n": 0}
    share, low, high = wilson(successes, n)
    return {"success_rate": share, "ci95": [low, high], "n": n}


def _resampled_means(sample: NDArray[np.float64], seed: int, n: int) -> NDArray[np.float64]:
    random = array_generator(seed, "bootstrap", sample.size, n)
    rows = max(1, _CHUNK // sample.size)
    parts = []
    for begin in range(0, n, rows):
        picks = random.integers(0, sample.size, size=(min(rows, n - begin), sample.size))
        parts.append(sample[picks].mean(axis=1))
    return np.concatenate(parts)


def _quantile(level: float) -> float:
    """Two-sided normal quantile of a confidence level."""
    if not 0 < level < 1:
        raise ConfigError(f"confidence level {level}; give a number between 0 and 1, such as 0.95")
    return NormalDist().inv_cdf(0.5 + level / 2)
