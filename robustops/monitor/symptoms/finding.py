"""What a rule finds in a run, and small tools on a series that rules share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from robustops.monitor.panel import Panel, Series
from robustops.monitor.taxonomy import FAMILIES
from robustops.monitor.verdict import Evidence

Mask = NDArray[np.bool_]

#: What a sampler that is not the policy speaks for: text that is written wrongly, less for old weights.
SAMPLER_VOTES: Mapping[str, float] = {**dict.fromkeys(FAMILIES["generation"], 0.5), "update_freeze": 0.3}


@dataclass(frozen=True)
class Finding:
    """One thing that speaks against a healthy run.

    severity: 0 .. 1; from `judge.ALARM` on it is enough for a verdict by itself; votes: type of fault ->
    how much it speaks for it, empty where no type fits; exact: a fact, which no healthy run shows, rather
    than a change that is large for this run; rule: its name, for `judge` to tell findings apart.
    """

    evidence: Evidence
    severity: float
    votes: Mapping[str, float] = field(default_factory=dict)
    exact: bool = False
    rule: str = ""


def fact(
    panel: Panel,
    row: int,
    column: str,
    text: str,
    invariant: str,
    severity: float,
    votes: Mapping[str, float] | None = None,
    bounds: tuple[float, float] = (float("nan"), float("nan")),
) -> Finding:
    """A finding that holds whatever the run looked like before."""
    value = float(panel[column][row])
    evidence = Evidence(invariant, column, int(panel.steps[row]), value, *bounds, float("inf"), text)
    return Finding(evidence, severity, votes or {}, exact=True, rule=f"{invariant}/{column}")


def streak(holds: Mask, observed: Mask, rows: int) -> int | None:
    """The first row of the first `rows` observed ones in a row at which something holds; rows that were not
    observed are passed over. None: there is no such streak.
    """
    length, first = 0, 0
    for row in np.flatnonzero(observed):
        if not holds[row]:
            length = 0
            continue
        first = int(row) if length == 0 else first
        length += 1
        if length == rows:
            return first
    return None


def lasts(holds: Mask, observed: Mask, rows: int = 5) -> bool:
    """Whether it still holds at the end: at most of the last observed rows."""
    last = holds[observed][-rows:]
    return bool(last.size) and bool(last.mean() > 0.5)


def seen(values: Series) -> Mask:
    """Rows at which a column has a value."""
    return ~np.isnan(values)
