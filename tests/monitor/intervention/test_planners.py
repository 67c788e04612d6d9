from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from robustops.bench.run_faults.catalog import CATALOG, all_mechanisms
from robustops.errors import ConfigError
from robustops.monitor.intervention.actions import KNOBS, MOST_CHANGES, Change, check_changes
from robustops.monitor.intervention.journal import Attempt
from robustops.monitor.intervention.planners import (
    NAMES,
    NoopPlanner,
    OraclePlanner,
    RandomPlanner,
    RollbackPlanner,
    RulePlanner,
    Situation,
    make_planner,
)
from robustops.monitor.intervention.policy import Bounds
from robustops.monitor.intervention.remedies import REMEDIES
from robustops.monitor.taxonomy import FAMILY_OF
from robustops.monitor.verdict import Verdict
from robustops.settings import MonitorSettings
from tests.monitor.intervention.cases import SETTINGS, anomalous, panel

CRITIC = {**SETTINGS, "grpo.value_head": True}


def situation(verdict, attempt=1, tried=(), settings=SETTINGS, step=8):
    return Situation(verdict, settings, attempt, step, panel(step), tuple(tried))


def all_plans(planner, verdict, settings=SETTINGS):
    plans, tried = [], []
    while plan := planner.plan(situation(verdict, len(plans) + 1, tried, settings)):
        plans.append(plan)
        tried.append(Attempt(verdict.type, frozenset(plan.changes), plan.why))
    return plans


def test_types_and_families_are_those_of_the_catalogue():
    assert set(REMEDIES) == set(CATALOG) == set(FAMILY_OF)
    assert {name: fault.family for name, fault in CATALOG.items()} == FAMILY_OF


@pytest.mark.parametrize("kind", REMEDIES)
def test_every_type_has_valid_remedies_each_tried_once(kind):
    plans = all_plans(RulePlanner(), anomalous(kind), CRITIC)
    assert len(plans) == len(REMEDIES[kind])
    assert len({frozenset(plan.changes) for plan in plans}) == len({plan.why for plan in plans}) == len(plans)
    for plan in plans:
        check_changes(plan.changes, CRITIC)


@pytest.mark.parametrize("kind", CATALOG)
def test_the_remedies_of_a_type_turn_a_knob_that_counters_each_of_its_mechanisms(kind):
    """The knob's own work decides what helps; here only: is it turned, towards the value that counters."""
    turned = {
        change.key for plan in all_plans(RulePlanner(), anomalous(kind), CRITIC) for change in plan.changes
    }
    for mechanism in CATALOG[kind].mechanisms:
        assert turned & {counter.key for counter in mechanism.countered_by}, mechanism.name


@pytest.mark.parametrize(("fault", "mechanism"), all_mechanisms(), ids=lambda one: one.name)
def test_one_of_three_attempts_counters_what_the_evidence_shows(fault, mechanism):
    """As many as there are by default, where the first mover is the quantity that the mechanism moves."""
    verdict = anomalous(fault.name, columns=(mechanism.quantity,))
    plans = all_plans(RulePlanner(), verdict, CRITIC)[: Bounds().attempts]
    turned = {change.key for plan in plans for change in plan.changes}
    assert turned & {counter.key for counter in mechanism.countered_by}


def test_a_cut_never_makes_a_budget_larger_nor_a_rise_smaller():
    """Bounds of the product do not turn a change round: a budget below the least is left alone."""
    knob = KNOBS["model.answer_tokens"]
    assert [knob.scaled(12, factor) for factor in (0.5, 2.0)] == [12, 24]
    assert knob.scaled(20, 0.5) == 16 and knob.scaled(4000, 2.0) == 4096 and knob.scaled(5000, 2.0) == 5000
    assert [change.value for change in knob.options({"model.answer_tokens": 12})] == [24]


def test_evidence_decides_what_is_tried_first():
    def first(kind, *columns):
        plan = RulePlanner().plan(situation(anomalous(kind, columns=columns)))
        return {change.key for change in plan.changes}

    assert first("update_freeze", "update_norm_rel") == {"grpo.whole_updates"}
    assert first("update_freeze", "policy_lag_max", "update_norm_rel") == {"grpo.sync_guard"}
    assert first("kl_explosion", "update_norm_rel", "kl_ref_k3") == {"grpo.whole_updates"}
    assert "grpo.kl" in first("kl_explosion", "kl_ref_k3", "clip_frac")
    assert "grpo.grad_clip" in first("kl_explosion", "grad_norm", "kl_ref_k3", "update_norm_rel")
    assert first("kl_explosion") == {"grpo.whole_updates"}


def test_remedies_whose_knobs_are_turned_already_are_passed_over():
    settings = {**SETTINGS, "reward.bounded": True, "reward.recheck": True}
    plan = RulePlanner().plan(situation(anomalous("reward_spike"), settings=settings))
    assert plan.changes == (Change("reward.progress", 0.0),)
    done = {**settings, "reward.progress": 0.0, "reward.quality": 0.0}
    assert RulePlanner().plan(situation(anomalous("reward_spike"), settings=done)) is None


def test_other_types_of_the_label_set_come_after_the_likeliest():
    verdict = anomalous("reward_collapse", labels={"reward_collapse": 0.6, "reward_spike": 0.3})
    plans = all_plans(RulePlanner(), verdict)
    assert [plan.why.split(":")[0] for plan in plans][:2] == ["reward_collapse", "reward_collapse"]
    assert any(plan.why.startswith("reward_spike") for plan in plans[2:])


def test_the_oracle_knows_better_than_the_diagnosis():
    plan = OraclePlanner(types=("kl_explosion",)).plan(situation(anomalous("reward_spike")))
    assert plan.source == "oracle" and plan.why.startswith("kl_explosion")
    assert OraclePlanner(types=()).plan(situation(anomalous())) is None


def test_random_plans_are_valid_varied_and_seeded():
    def plans(seed):
        planner = RandomPlanner(seed)
        return [planner.plan(situation(anomalous(), attempt=n, step=8 + n)) for n in range(120)]

    drawn = plans(1)
    assert drawn == plans(1) != plans(2)
    assert {len(plan.changes) for plan in drawn} == set(range(1, MOST_CHANGES + 1))
    families = Counter(family for plan in drawn for family in KNOBS[plan.changes[0].key].families)
    assert min(families.values()) > 5 and len(families) == 6


def test_the_null_arms():
    assert NoopPlanner().plan(situation(anomalous())) is None and not NoopPlanner().acts
    assert RollbackPlanner().plan(situation(anomalous())).changes == ()


def test_planners_are_made_by_the_names_of_the_settings():
    choices = next(f for f in dataclasses.fields(MonitorSettings) if f.name == "planner").metadata["choices"]
    assert choices == NAMES
    llm = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}
    for name in NAMES:
        assert make_planner(name, seed=0, injected=["reward_spike"], llm=llm).name == name
    with pytest.raises(ConfigError, match=r"monitor\.llm\.model"):
        make_planner("llm", seed=0, injected=[], llm={"base_url": None, "model": None})
    with pytest.raises(ConfigError, match="choose one of"):
        make_planner("wise", seed=0, injected=[], llm={})


def test_types_of_a_label_set_take_turns_by_their_probability():
    """At 0.6 and 0.35 the second type comes before the first one's second remedy, at 0.7 and 0.2 after."""

    def kinds(likely: float, other: float) -> list[str]:
        labels = {"kl_explosion": likely, "reward_spike": other}
        verdict = Verdict("anomalous", 7, "optimisation", "kl_explosion", labels)
        found, tried = [], ()
        for attempt in (1, 2, 3):
            plan = RulePlanner().plan(situation(verdict, attempt, tried))
            assert plan is not None
            found.append(plan.why.partition(":")[0])
            tried = (*tried, Attempt("kl_explosion", frozenset(plan.changes), plan.why))
        return found

    assert kinds(0.6, 0.35) == ["kl_explosion", "reward_spike", "kl_explosion"]
    assert kinds(0.7, 0.2) == ["kl_explosion", "kl_explosion", "kl_explosion"]
