"""Alerts: what a person is told of a run while it trains.

Most come from findings of the judge (`monitor.observer`). Two are of the rollouts of our own trainer, which
no panel holds: `notices`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from robustops.monitor.telemetry import StepRecord

#: Share of episodes that may fail at a boundary.
INVALID = 0.2


@dataclass(frozen=True)
class Alert:
    """What was seen. severity: 0 (note) .. 1 (the step's update is worthless)."""

    stage: str
    step: int
    kind: str
    severity: float
    message: str


def notices(record: StepRecord) -> list[Alert]:
    """Of a step in which no group had a signal, or many episodes failed."""
    found = []
    if record.metrics.get("rollout/groups_accepted") == 0:
        sampled = record.metrics.get("rollout/groups_sampled", 0)
        text = f"none of {sampled:.0f} sampled groups had a signal, the weights stay: tasks too easy or hard"
        found.append(Alert(record.stage, record.step, "no_signal", 0.5, text))
    total, invalid = (record.metrics.get(f"rollout/{n}", 0) for n in ("episodes", "invalid_episodes"))
    if total and invalid / total > INVALID:
        text = f"{invalid:.0f} of {total:.0f} episodes failed at a boundary: see episodes.error in run.db"
        found.append(Alert(record.stage, record.step, "invalid_episodes", 0.7, text))
    return found


def health(alerts: Sequence[Alert]) -> dict[str, object]:
    """The `health` part of `summary.json`: the highest severity, and each kind's first alert."""
    first: dict[str, Alert] = {}
    for alert in alerts:
        first.setdefault(alert.kind, alert)
    return {
        "severity": max((alert.severity for alert in alerts), default=0.0),
        "alerts": [
            {
                "stage": alert.stage,
                "step": alert.step,
                "kind": alert.kind,
                "severity": alert.severity,
                "message": alert.message,
                "count": sum(other.kind == alert.kind for other in alerts),
            }
            for alert in first.values()
        ],
    }
