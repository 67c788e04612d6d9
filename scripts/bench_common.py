"""What the benchmarks share: ratios of paired measurements, peak memory, the JSON line at the end."""

from __future__ import annotations

import json
import resource
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_STATUS = Path("/proc/self/status")


class Spread(NamedTuple):
    """Minimum, median and maximum of the values of several repetitions."""

    minimum: float
    median: float
    maximum: float

    def __str__(self) -> str:
        return f"{self.minimum:.2f} / {self.median:.2f} / {self.maximum:.2f}"


def spread(values: Sequence[float]) -> Spread:
    """Spread of plain values; at least one."""
    return Spread(min(values), statistics.median(values), max(values))


def ratios(pairs: Sequence[tuple[float, float]]) -> Spread:
    """Spread of first / second over pairs that were measured next to each other."""
    return spread([one / other for one, other in pairs])


def memory_bytes() -> tuple[int, int]:
    """Resident memory of this process: at this moment, and its peak.

    Linux counts the peak of `getrusage` from before the exec on, i.e. includes the parent's pages, so
    that /proc is read where there is one. Elsewhere both numbers are the peak of `getrusage`.
    """
    if _STATUS.exists():
        fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if ":" in line)
        now, peak = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
        return now, peak
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return peak, peak


def print_json(result: Mapping[str, Any], digits: int = 4) -> None:
    """One line of JSON, floats rounded to `digits` significant digits."""
    print(json.dumps(_rounded(result, digits)), flush=True)


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, Spread):
        return {name: _rounded(number, digits) for name, number in value._asdict().items()}
    if isinstance(value, Mapping):
        return {key: _rounded(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
