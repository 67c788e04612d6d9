from __future__ import annotations

import pytest

from robustops.errors import ConfigError
from robustops.learning.branching import FIXED, allowed
from robustops.learning.remediation import with_changes
from robustops.monitor.intervention.actions import (
    KNOBS,
    PROTECTED,
    Change,
    Knob,
    check_changes,
    diff,
    options,
)
from robustops.settings import GRPOSettings, SamplerSettings, TrainSettings
from robustops.validation import validate
from tests.monitor.intervention.cases import SETTINGS


def test_every_option_is_a_setting_that_training_takes():
    """Knobs are keys of the settings, of their type and within the bounds that commands enforce."""
    run = TrainSettings(sampler=SamplerSettings("hf"), grpo=GRPOSettings(value_head=True))
    flat = {**SETTINGS, "grpo.value_head": True}
    found = options(flat)
    assert {change.key for change in found} == set(KNOBS)
    for change in found:
        changed = with_changes(run, {change.key: change.value})
        validate(changed)
        place, old = changed, run
        for name in change.key.split("."):
            place, old = getattr(place, name), getattr(old, name)
        assert place == change.value != old
        if old is not None:
            assert type(place) is type(old), change


def test_no_knob_reaches_success_the_monitor_or_the_failure_itself():
    for key in KNOBS:
        assert not any(key == name or key.startswith(f"{name}.") for name in PROTECTED)
        assert key not in FIXED and allowed(key, SETTINGS), "what a branch may not change, neither may this"
    assert {"reward.success", "monitor.alpha", "run_fault.strength"}.isdisjoint(KNOBS)


def test_a_factor_is_bounded_and_keeps_the_type():
    rate = KNOBS["grpo.learning_rate"]
    assert [c.value for c in rate.options({"grpo.learning_rate": 1e-3})] == [3e-4, 1e-4, 3e-3]
    assert [c.value for c in rate.options({"grpo.learning_rate": 1e-9})] == [3e-9], "bounded below"
    assert KNOBS["model.answer_tokens"].scaled(97, 0.5) == 48
    assert Knob("k", ("f",), factors=(2.0,)).options({"k": None}) == []


def test_knobs_that_do_nothing_are_not_offered():
    assert KNOBS["grpo.value_least_ev"].options(SETTINGS) == [], "no value head"
    assert KNOBS["sampler.repetition_penalty"].options({**SETTINGS, "sampler.name": "vllm"}) == []
    assert KNOBS["reward.bounded"].options({**SETTINGS, "reward.bounded": True}) == []
    assert KNOBS["reward.bounded"].options({}) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([], "changes 1 or 2 settings, not 0"),
        ([("grpo.kl", 0.0), ("grpo.grad_clip", 0.3), ("grpo.whole_updates", True)], "not 3"),
        ([("grpo.kl", 0.0), ("grpo.kl", 0.01)], "sets a key once"),
        ([("reward.success", 0.0)], "reward.success is never changed"),
        ([("monitor.alpha", 1.0)], "monitor.alpha is never changed"),
        ([("run_fault.strength", 0.0)], "run_fault.strength is never changed"),
        ([("grpo.steps", 1)], "grpo.steps is no knob"),
        ([("grpo.kl", 7.0)], "grpo.kl=7.0 is not open to this run, where it is 0.001; values that are: 0.0"),
        ([("grpo.kl", True)], "not open"),
        ([("sampler.min_new_tokens", True)], "not open"),
        ([("grpo.kl", 0.0), ("reward.bounded", True)], "knobs of one family"),
    ],
    ids=str,
)
def test_what_is_no_attempt_is_refused_with_the_reason(changes, message):
    with pytest.raises(ConfigError, match=message):
        check_changes([Change(*change) for change in changes], SETTINGS)


def test_a_valid_attempt_and_its_dry_run():
    changes = [Change("grpo.learning_rate", 3e-7), Change("grpo.whole_updates", True)]
    check_changes(changes, SETTINGS)
    assert diff(changes, SETTINGS) == [
        "grpo.learning_rate: 1e-06 -> 3e-07",
        "grpo.whole_updates: false -> true",
    ]
    temperature = Change("sampler.temperature", 1.5)
    check_changes([temperature, Change("grpo.entropy", 0.01)], SETTINGS)
    check_changes([temperature, Change("sampler.min_new_tokens", 1)], SETTINGS)  # it is of both families
