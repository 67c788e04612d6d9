"""Notices of a step's rollouts, and what of all alerts goes into the summary."""

from __future__ import annotations

import pytest

from robustops.monitor.alerts import Alert, health, notices
from robustops.monitor.telemetry import StepRecord

HEALTHY = {
    "rollout/groups_sampled": 8.0,
    "rollout/groups_accepted": 5.0,
    "rollout/episodes": 32.0,
    "rollout/invalid_episodes": 0.0,
}


def noticed(**change: float) -> list[Alert]:
    return notices(StepRecord(3, "grpo", {**HEALTHY, **{f"rollout/{k}": v for k, v in change.items()}}))


def test_a_healthy_step_and_a_stage_without_rollouts_are_silent() -> None:
    assert noticed() == []
    assert notices(StepRecord(3, "sft", {"train/loss": 0.5})) == []


@pytest.mark.parametrize(
    ("change", "kind"),
    [({"groups_accepted": 0.0}, "no_signal"), ({"invalid_episodes": 7.0}, "invalid_episodes")],
)
def test_each_fact_has_its_notice(change: dict[str, float], kind: str) -> None:
    (alert,) = noticed(**change)
    assert (alert.kind, alert.step, alert.stage) == (kind, 3, "grpo")


def test_one_failed_episode_in_five_is_no_notice() -> None:
    assert noticed(episodes=10.0, invalid_episodes=2.0) == []
    assert noticed(episodes=10.0, invalid_episodes=3.0) != []


def test_health_keeps_the_first_of_each_kind_and_the_highest_severity() -> None:
    seen = [Alert("grpo", 3, "a", 0.4, "x"), Alert("grpo", 4, "b", 0.9, "y"), Alert("grpo", 5, "a", 0.4, "z")]
    report = health(seen)
    assert report["severity"] == 0.9
    assert [(a["kind"], a["step"], a["count"]) for a in report["alerts"]] == [("a", 3, 2), ("b", 4, 1)]  # type: ignore[attr-defined]
    assert health([]) == {"severity": 0.0, "alerts": []}
