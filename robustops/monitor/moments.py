"""Mean, deviation and correlation of a step's values: whatever their order, NaN where they are undefined."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """NaN where there is nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def deviation(values: Sequence[float]) -> float:
    """Sample standard deviation; NaN below two values, exactly 0 for equal ones."""
    if len(values) < 2:
        return math.nan
    if min(values) == max(values):
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def pearson(first: Sequence[float], second: Sequence[float]) -> float:
    """Correlation; NaN below two pairs, or where either side does not vary."""
    if len(first) < 2 or min(first) == max(first) or min(second) == max(second):
        return math.nan
    one, two = mean(first), mean(second)
    common = math.fsum((a - one) * (b - two) for a, b in zip(first, second, strict=True))
    squares = math.fsum((a - one) ** 2 for a in first) * math.fsum((b - two) ** 2 for b in second)
    return common / math.sqrt(squares) if squares > 0 else math.nan


def share(part: float, whole: float) -> float:
    """A part of a whole; NaN of nothing."""
    return part / whole if whole else math.nan
