"""Plain rules over one step's telemetry: facts that a healthy run does not show.

They need no history of other runs. A rule fires from the first step on at which its metric is out of
bounds; metrics that a stage does not have are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from robustops.monitor.telemetry import StepRecord

#: Steps at the start of a stage whose mean entropy is the level that later ones are held against.
BASELINE_STEPS = 5


@dataclass(frozen=True)
class Alert:
    """What was seen. severity: 0 (note) .. 1 (the step's update is worthless)."""

    stage: str
    step: int
    kind: str
    severity: float
    message: str


@dataclass(frozen=True)
class _Bound:
    """metric > limit is an alert."""

    metric: str
    limit: float
    kind: str
    severity: float
    meaning: str


_BOUNDS = (
    _Bound(
        "samp_logp_absdiff_max",
        1e-2,
        "sampler_mismatch",
        0.8,
        "sampler and trainer disagree on the same weights: check that they are synchronised",
    ),
    _Bound(
        "kl_ref_k3",
        0.5,
        "policy_drift",
        0.6,
        "the policy has moved far from the SFT policy: lower grpo.learning_rate or raise grpo.kl",
    ),
    _Bound("clip_frac", 0.3, "clipping", 0.4, "many tokens are clipped: samples are stale or steps large"),
)


def step_alerts(history: Sequence[StepRecord]) -> list[Alert]:
    """Alerts of the newest record of one stage's history (oldest first)."""
    if not history:
        return []
    record = history[-1]
    alerts = _non_finite(record)
    for bound in _BOUNDS:
        value = record.metrics.get(bound.metric)
        if value is not None and value > bound.limit:
            text = f"{bound.metric} is {value:.4g}, above {bound.limit:g}: {bound.meaning}"
            alerts.append(Alert(record.stage, record.step, bound.kind, bound.severity, text))
    return alerts + _no_groups(record) + _invalid(record) + _entropy(history)


def _non_finite(record: StepRecord) -> list[Alert]:
    """Loss and gradient of a step that trained on something must be finite; other numbers may be NaN."""
    names = ("train/loss", "grad_norm") if record.metrics.get("train/episodes") != 0 else ()
    broken = [n for n in names if n in record.metrics and not math.isfinite(record.metrics[n])]
    return [
        Alert(record.stage, record.step, "non_finite", 1.0, f"{name} is {record.metrics[name]}")
        for name in broken
    ]


def _no_groups(record: StepRecord) -> list[Alert]:
    if record.metrics.get("rollout/groups_accepted") != 0:
        return []
    sampled = record.metrics.get("rollout/groups_sampled", 0)
    text = f"none of {sampled:.0f} sampled groups had a signal, the weights stay: tasks too easy or too hard"
    return [Alert(record.stage, record.step, "no_signal", 0.5, text)]


def _invalid(record: StepRecord) -> list[Alert]:
    total, invalid = (record.metrics.get(f"rollout/{n}", 0) for n in ("episodes", "invalid_episodes"))
    if not total or invalid / total <= 0.2:
        return []
    text = f"{invalid:.0f} of {total:.0f} episodes failed at a boundary: see episodes.error in run.db"
    return [Alert(record.stage, record.step, "invalid_episodes", 0.7, text)]


def _entropy(history: Sequence[StepRecord]) -> list[Alert]:
    values = [v for r in history if not math.isnan(v := r.metrics.get("entropy", math.nan))]
    if len(values) <= BASELINE_STEPS or math.isnan(history[-1].metrics.get("entropy", math.nan)):
        return []
    base = sum(values[:BASELINE_STEPS]) / BASELINE_STEPS
    if not values[-1] < 0.1 * base:
        return []
    text = f"entropy fell to {values[-1]:.4g}, under a tenth of the first steps' {base:.4g}: exploration ends"
    return [Alert(history[-1].stage, history[-1].step, "entropy_collapse", 0.5, text)]


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
