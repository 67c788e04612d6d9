"""Telemetry under changed knobs, as it would be under the run's own settings."""

from __future__ import annotations

import numpy as np
import pytest

from robustops.monitor import schema
from robustops.monitor.intervention.actions import KNOBS, comparable
from robustops.monitor.intervention.journal import Entry, State
from robustops.monitor.panel import Panel

OWN = {"grpo.learning_rate": 1e-3, "grpo.kl": 0.01, "reward.bounded": False}


def panel(steps=6):
    names = ("lr", "update_norm_rel", "kl_coef", "reward_mean")
    return Panel(np.arange(1, steps + 1), {name: np.ones(steps) for name in names})


def test_what_is_proportional_to_a_knob_is_given_for_the_old_value_from_the_change_on():
    found = comparable(panel(), [(4, {"grpo.learning_rate": 1e-4})], OWN)
    assert found["update_norm_rel"] == pytest.approx([1, 1, 1, 10, 10, 10])
    assert found["lr"] == pytest.approx([1, 1, 1, 10, 10, 10])
    assert (found["reward_mean"] == 1).all()


def test_two_changes_of_the_same_knob_count_each_for_its_steps():
    forced = [(2, {"grpo.learning_rate": 5e-4}), (5, {"grpo.learning_rate": 1e-4})]
    assert comparable(panel(), forced, OWN)["lr"] == pytest.approx([1, 2, 2, 2, 10, 10])


def test_a_change_that_was_taken_back_scales_nothing_any_more():
    forced = [(2, {"grpo.learning_rate": 5e-4}), (2, {})]
    assert comparable(panel(), forced, OWN)["lr"] == pytest.approx(np.ones(6))


def test_what_a_knob_sets_is_left_out_and_nothing_else():
    found = comparable(panel(), [(3, {"grpo.kl": 0.0})], OWN)
    assert "kl_coef" not in found.columns
    assert {"lr", "update_norm_rel", "reward_mean"} <= set(found.columns)
    same = comparable(panel(), [(3, {"reward.bounded": True, "no.knob": 1})], OWN)
    assert set(same.columns) == set(panel().columns)


def test_knobs_name_columns_that_there_are():
    for knob in KNOBS.values():
        assert set(knob.sets + knob.scales) <= set(schema.names()), knob.key


def state(*entries):
    found = State()
    for entry in entries:
        found = found.after(entry)
    return found


def test_the_journal_knows_what_was_in_force_from_which_step_on():
    rate, kl = {"grpo.learning_rate": 1e-4}, {"grpo.kl": 0.0}
    tried = Entry("rollback", 9, target=4, changes=rate)
    assert state(tried).forced == ((5, rate),)
    assert state(tried, Entry("revert", 12)).forced == ()
    kept = state(tried, Entry("accept", 12))
    assert kept.forced == ((5, rate),)
    second = Entry("rollback", 20, target=14, changes=kl)
    assert kept.after(second).forced == ((5, rate), (15, rate | kl))
    further_back = Entry("rollback", 20, target=2, changes=kl)
    assert kept.after(further_back).forced == ((3, rate), (3, rate | kl))
    assert kept.after(further_back).after(Entry("revert", 22)).forced == ((3, rate),)
