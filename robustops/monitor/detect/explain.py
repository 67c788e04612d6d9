"""Why a run is not healthy: which invariant broke, which signals moved first, and from which step on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from robustops.monitor.detect import pairs, statistics
from robustops.monitor.detect.model import VIEWS, Model
from robustops.monitor.detect.profile import invariant_of
from robustops.monitor.panel import Panel, Series
from robustops.monitor.verdict import Evidence

#: Surprise from which on a signal is evidence: one healthy run in 150 has as much of that very statistic.
NOTABLE = 5.0
#: Pieces of evidence about signals at most, the strongest ones.
MOST = 8
_KINDS = ("scan", "cusum")
_WORDS = {
    "level": "against healthy runs at this step",
    "partial": "against what the step's other signals tell of it",
    "across": "against what the rest of the step tells of it",
}


@dataclass(frozen=True)
class Explanation:
    """onset: estimated first abnormal step, None where nothing is notable; evidence: in order of steps."""

    onset: int | None
    evidence: tuple[Evidence, ...]


def explain(
    model: Model, surprises: Mapping[str, Series], panel: Panel, broken: Sequence[Evidence]
) -> Explanation:
    """surprises: (T, K) of each kind of statistic of the panel; broken: evidence of exact invariants."""
    residuals = model.residuals(panel)
    moved = [_movement(model, view, surprises, residuals[view]) for view in VIEWS]
    best: dict[int, _Moved] = {}
    for found in (one for view in moved for one in view):
        if found.surprise > best.get(found.signal, _NOTHING).surprise:
            best[found.signal] = found
    strongest = sorted(best.values(), key=lambda one: -one.surprise)[:MOST]
    evidence = [*broken, *(_evidence(model, panel, residuals, one) for one in strongest)]
    starts = [int(panel.steps[strongest[0].start])] if strongest else []
    starts += [one.step for one in broken[:1]]
    order = tuple(sorted(evidence, key=lambda one: (one.step, not math.isinf(one.score))))
    return Explanation(min(starts, default=None), order)


def about(model: Model, panel: Panel, signals: Sequence[str], row: int) -> tuple[Evidence, ...]:
    """One piece of evidence a signal, in order of steps: the view and step from `row` on in which it is
    farthest out. A signal that is not observed there has none.
    """
    residuals = model.residuals(panel)
    found = []
    for place in (model.signals.index(name) for name in signals):
        after = {view: np.abs(np.nan_to_num(residuals[view][row:, place])) for view in VIEWS}
        view = max(after, key=lambda name: float(after[name].max(initial=0.0)))
        if after[view].max(initial=0.0) > 0:
            worst = row + int(after[view].argmax())
            moved = _Moved(place, view, worst, row, 0.0)
            found.append(_evidence(model, panel, residuals, moved))
    return tuple(sorted(found, key=lambda one: one.step))


@dataclass(frozen=True)
class _Moved:
    """A signal by one kind of residual: row at which it is notable, row at which that began, and how much."""

    signal: int
    kind: str
    row: int
    start: int
    surprise: float


_NOTHING = _Moved(-1, "", 0, 0, 0.0)


def _movement(model: Model, view: str, surprises: Mapping[str, Series], residuals: Series) -> list[_Moved]:
    """Every signal that is notable in a view."""
    made = [
        surprises[f"{view} {kind}"].reshape(*residuals.shape[:1], -1, len(model.signals)) for kind in _KINDS
    ]
    by_signal = np.concatenate(made, axis=1).max(axis=1)
    found = []
    for signal in np.flatnonzero((by_signal > NOTABLE).any(axis=0)):
        row = int((by_signal[:, signal] > NOTABLE).argmax())
        start = statistics.onset(residuals[: row + 1, signal])
        found.append(_Moved(int(signal), view, row, start, float(by_signal[:, signal].max())))
    return found


def _evidence(model: Model, panel: Panel, residuals: Mapping[str, Series], moved: _Moved) -> Evidence:
    """At the most deviating step between start and notice."""
    signal = model.signals[moved.signal]
    own = residuals[moved.kind][moved.start : moved.row + 1, moved.signal]
    row = moved.start + int(np.nan_to_num(np.abs(own)).argmax())
    low, high = (float(edge[row]) for edge in model.profile.band(panel, signal))
    pair = pairs.BY_NAME.get(signal)
    value = float(pair.value(panel)[row] if pair else panel[signal][row])
    score = float(residuals[moved.kind][row, moved.signal])
    step, column = int(panel.steps[row]), pair.columns[0] if pair else signal
    text = (
        f"{signal} is {value:.4g} in step {step}, healthy {low:.4g} .. {high:.4g}: {score:+.1f} deviations "
        f"{_WORDS[moved.kind]}, from step {panel.steps[moved.start]} on"
        + (f"; {pair.meaning}" if pair else "")
    )
    return Evidence(invariant_of(signal), column, step, value, low, high, abs(score), text)
