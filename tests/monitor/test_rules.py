"""Rules of the run monitor: each fires on its fact and stays silent on a healthy step."""

from __future__ import annotations

import math

import pytest

from robustops.monitor.rules import Alert, health, step_alerts
from robustops.monitor.telemetry import StepRecord

HEALTHY = {
    "train/loss": 0.01,
    "grad_norm": 0.5,
    "entropy": 0.4,
    "kl_ref_k3": 0.01,
    "clip_frac": 0.02,
    "samp_logp_absdiff_max": 1e-6,
    "rollout/groups_sampled": 8.0,
    "rollout/groups_accepted": 5.0,
    "rollout/episodes": 32.0,
    "rollout/invalid_episodes": 0.0,
}


def steps(*changes: dict[str, float]) -> list[StepRecord]:
    return [StepRecord(n, "grpo", {**HEALTHY, **change}) for n, change in enumerate(changes, 1)]


def test_a_healthy_run_is_silent() -> None:
    history = steps(*[{}] * 12)
    assert all(step_alerts(history[: n + 1]) == [] for n in range(len(history)))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"grad_norm": math.nan}, "non_finite"),
        ({"train/loss": math.inf}, "non_finite"),
        ({"samp_logp_absdiff_max": 0.5}, "sampler_mismatch"),
        ({"kl_ref_k3": 2.0}, "policy_drift"),
        ({"clip_frac": 0.6}, "clipping"),
        ({"rollout/groups_accepted": 0.0}, "no_signal"),
        ({"rollout/invalid_episodes": 7.0}, "invalid_episodes"),
    ],
)
def test_each_fact_has_its_alert(change: dict[str, float], kind: str) -> None:
    (alert,) = step_alerts(steps({}, change))
    assert (alert.kind, alert.step, alert.stage) == (kind, 2, "grpo")


def test_entropy_is_held_against_the_first_steps() -> None:
    fallen = steps(*[{}] * 5, {"entropy": 0.039})
    assert [alert.kind for alert in step_alerts(fallen)] == ["entropy_collapse"]
    assert step_alerts(steps(*[{}] * 5, {"entropy": 0.041})) == []
    low_from_the_start = steps(*[{"entropy": 0.01}] * 8)
    assert step_alerts(low_from_the_start) == []


def test_health_keeps_the_first_of_each_kind_and_the_highest_severity() -> None:
    seen = [Alert("grpo", 3, "a", 0.4, "x"), Alert("grpo", 4, "b", 0.9, "y"), Alert("grpo", 5, "a", 0.4, "z")]
    report = health(seen)
    assert report["severity"] == 0.9
    assert [(a["kind"], a["step"], a["count"]) for a in report["alerts"]] == [("a", 3, 2), ("b", 4, 1)]  # type: ignore[attr-defined]
    assert health([]) == {"severity": 0.0, "alerts": []}
