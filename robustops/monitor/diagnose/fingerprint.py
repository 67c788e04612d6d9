"""The temporal fingerprint of a faulty run: which signals moved, which way, when and how.

Made of what `detect` knows: residuals of each signal in three views, and exact invariants. Each signal and
view gets, from the run's estimated onset on,

    drive     mean residual by its standard error: how surely it moved
    level     mean residual: how far it moved
    share     share of steps above 2 healthy deviations less share below -2: how lastingly, and which way
    peak      the residual that is farthest out
    early     mean of the first three steps: what moves at once is a cause, what follows a consequence
    trend     mean of the second half less that of the first
    spread    mean absolute residual less that of a healthy run: noise of either sign
    lead      how early it left the healthy range, 1 at the onset, 0 never, with the sign of its drive
    shape     its drive as a part of the length of the drives of its view: what does not depend on strength

and each exact invariant the share of steps that break it, whether any does, and how early the first one does.
All are counted from the onset, so that its time does not show. What was not observed is NaN. Magnitudes are
logarithmic beyond one deviation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robustops.monitor.detect import invariants_exact, statistics
from robustops.monitor.detect.model import VIEWS, Model
from robustops.monitor.panel import Panel, Series

#: Of each signal and view; of each exact invariant.
PARTS = ("drive", "level", "share", "peak", "early", "trend", "spread", "lead", "shape")
EXACT_PARTS = ("share", "any", "lead")
#: View of entries of exact invariants; of one that the run does not tell of.
EXACT, _UNTOLD = "exact", (float("nan"),) * len(EXACT_PARTS)
#: Residual beyond which a step is out of the healthy range.
OUT = 2.0
#: Steps after the onset that count as at once, and by which a lead falls to a third.
EARLY, LEAD_STEPS = 3, 4.0
#: Cumulative sum (drift 0.5) from which on a signal has left the healthy range.
LEFT = 4.0
#: Mean absolute value of a standard normal variable.
_HEALTHY_SPREAD = 0.7979
#: Part of the largest drive from which on a signal counts for the onset. On the benchmark's pilot 0.5 to 0.7
#: found 90 % of the onsets within two steps, the most moved signal alone 85 %.
_MOVER = 0.6
#: Steps that a fault lasts at least, for the onset.
_LEAST = 3


@dataclass(frozen=True)
class Fingerprint:
    """onset: row at which the run begins to deviate; signals: names of the C signals; moved: view -> part ->
    (C,); broken: exact invariant -> its parts, in the order of `EXACT_PARTS`. NaN: not observed.
    """

    onset: int
    signals: tuple[str, ...]
    moved: Mapping[str, Mapping[str, Series]]
    broken: Mapping[str, tuple[float, ...]]

    def vector(self) -> Series:
        """(F,) all of it, in the order of `names`."""
        moved = [self.moved[view][part] for view in VIEWS for part in PARTS]
        return np.concatenate([*moved, *(np.asarray(own) for own in self.broken.values())])

    def names(self) -> list[str]:
        """Such as `level:drive:reward_mean` and `exact:share:group_mean`."""
        moved = [f"{view}:{part}:{name}" for view in VIEWS for part in PARTS for name in self.signals]
        return moved + [f"{EXACT}:{part}:{name}" for name in self.broken for part in EXACT_PARTS]


def fingerprint(model: Model, armed: Sequence[str], panel: Panel) -> Fingerprint:
    """Of a run with at least one row. armed: exact invariants that healthy runs of its kind hold."""
    residuals = model.residuals(panel)
    rules = [invariants_exact.BY_NAME[name] for name in armed]
    broken = {rule.name: rule.broken(panel) for rule in rules}
    start = onset(residuals, broken)
    moved = {view: _parts(residuals[view][start:]) for view in VIEWS}
    told = {rule.name: all(panel.observed(column) for column in rule.columns) for rule in rules}
    parts = {name: _exact(rows[start:]) if told[name] else _UNTOLD for name, rows in broken.items()}
    return Fingerprint(start, model.signals, moved, parts)


def onset(residuals: Mapping[str, Series], broken: Mapping[str, NDArray[np.bool_]]) -> int:
    """Row at which the run begins to deviate. Each signal and view has a row from which on to the end its
    drive is largest; of those that move about as much as the one that moves most, the first one's row
    counts. Or the row where the first exact invariant breaks, if that is earlier.
    """
    values = np.concatenate([residuals[view] for view in VIEWS], axis=1)
    seen = ~np.isnan(values)
    total = np.cumsum(np.where(seen, values, 0.0)[::-1], axis=0)[::-1]
    count = np.cumsum(seen[::-1], axis=0)[::-1]
    last = max(len(values) - _LEAST, 0)
    drives = (np.abs(total) / np.sqrt(np.maximum(count, 1)))[: last + 1]
    largest = drives.max(axis=0)
    movers = drives.argmax(axis=0)[largest >= _MOVER * largest.max()]
    return min([int(movers.min()), *(int(rows.argmax()) for rows in broken.values() if rows.any())])


def compressed(values: Series) -> Series:
    """Linear up to about 1, logarithmic beyond, with the sign."""
    return np.asarray(np.arcsinh(values))


def _parts(after: Series) -> dict[str, Series]:
    """Of the residuals (T, C) from the onset on."""
    count = (~np.isnan(after)).sum(axis=0)
    half = (len(after) + 1) // 2
    level = _mean(after)
    drive = level * np.sqrt(count)
    length = float(np.sqrt((drive**2).sum()))
    parts = {
        "drive": compressed(drive),
        "level": compressed(level),
        "share": _mean(np.where(np.isnan(after), np.nan, (after > OUT) * 1.0 - (after < -OUT) * 1.0)),
        "peak": compressed(_peak(after)),
        "early": compressed(_mean(after[:EARLY])),
        "trend": compressed(_mean(after[half:]) - _mean(after[:half])) if len(after) > half else 0.0 * drive,
        "spread": compressed(_mean(np.abs(after)) - _HEALTHY_SPREAD),
        "lead": np.sign(drive) * _lead(after),
        "shape": drive / length if length > 0 else drive,
    }
    return {name: np.where(count > 0, values, np.nan) for name, values in parts.items()}


def _mean(values: Series) -> Series:
    """(T, C) -> (C,) over observed steps, 0 without any."""
    seen = ~np.isnan(values)
    found: Series = np.where(seen, values, 0.0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
    return found


def _peak(values: Series) -> Series:
    filled = np.nan_to_num(values)
    found: Series = filled[np.abs(filled).argmax(axis=0), np.arange(values.shape[1])]
    return found


def _lead(values: Series) -> Series:
    """(T, C) -> (C,) 1 where the first step is out already, falling with the steps until one is; 0: never."""
    upper, lower = statistics.cusum(values)
    left = np.maximum(upper, lower) > LEFT
    found: Series = np.where(left.any(axis=0), np.exp(-left.argmax(axis=0) / LEAD_STEPS), 0.0)
    return found


def _exact(after: NDArray[np.bool_]) -> tuple[float, ...]:
    if not after.any():
        return (0.0,) * len(EXACT_PARTS)
    return float(after.mean()), 1.0, float(np.exp(-int(after.argmax()) / LEAD_STEPS))
