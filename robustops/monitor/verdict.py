"""What the monitor says of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["healthy", "anomalous", "not_observed"]
#: Severity from which on one finding makes a run anomalous.
ALARM = 0.5
#: Where nothing that was learned fits.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Evidence:
    """One observation that speaks against a healthy run.

    invariant: the one that it breaks, such as `reward_trajectory`; column: of the telemetry; step: the
    first at which it shows; value: there; low, high: what healthy runs have there (equal for an exact
    invariant); score: how far out it is, in healthy deviations (inf for an exact invariant); text: in words.
    """

    invariant: str
    column: str
    step: int
    value: float
    low: float
    high: float
    score: float
    text: str


@dataclass(frozen=True)
class Verdict:
    """verdict: not_observed where the log cannot tell; onset: estimated first abnormal step, None: none;
    family, type: of the likeliest cause, `unknown` where none fits, None for a run that is not anomalous;
    labels: types of the conformal label set, empty for `unknown`, with their probabilities; severity: 0 .. 1;
    p_value: share of healthy runs that look as bad, NaN without a profile; evidence: first mover first;
    missing: columns that would have been needed to say more.
    """

    verdict: State
    onset: int | None = None
    family: str | None = None
    type: str | None = None
    labels: Mapping[str, float] = dataclasses.field(default_factory=dict)
    severity: float = 0.0
    p_value: float = float("nan")
    evidence: tuple[Evidence, ...] = ()
    missing: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """In JSON values; a number that is not finite is its name."""
        body = dataclasses.asdict(self)
        return {name: _plain(value) for name, value in body.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None if value != value else ("Infinity" if value > 0 else "-Infinity")
    return value
