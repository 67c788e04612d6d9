from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.errors import ConfigError
from robustops.faults.plan import FAMILIES, SUBTYPES, fault_choices
from robustops.faults.scheduler import FaultScheduler, check_caps
from robustops.faults.wrapper import Opportunity
from robustops.records import ToolCall
from robustops.worlds.database import DatabaseSnapshot
from robustops.worlds.environment import Snapshot
from tests.toy_domain import toy_task

MOMENT = Snapshot(toy_task(), DatabaseSnapshot(b"", 0, ()))


def opportunity(*subtypes: str, turn: int = 0, ordinal: int = 0) -> Opportunity:
    return Opportunity(turn, ToolCall("t", {"turn": turn}), subtypes, (ordinal,) * len(subtypes), MOMENT)


def spread(counts: list[int]) -> int:
    return max(counts) - min(counts)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["trained", "all", "incomplete_read", "reply_mixup"]),
    st.integers(0, 99),
    st.integers(1, 60),
)
def test_balanced_when_everything_is_always_eligible(choice, seed, episodes):
    scheduler = FaultScheduler(fault_choices(choice), seed=seed)
    for slot in range(episodes):
        chosen = scheduler.choose([opportunity(*SUBTYPES)], step=0, slot=slot)
        scheduler.record(chosen.plan.subtype)
        families = [
            n for f, n in scheduler.family_counts().items() if set(FAMILIES[f]) & set(scheduler.subtypes)
        ]
        assert spread(families) <= 1
        for names in FAMILIES.values():
            assert spread([scheduler.injected[n] for n in names if n in scheduler.injected] or [0]) <= 1
    assert sum(scheduler.injected.values()) == episodes


def test_a_rare_mechanism_is_taken_whenever_it_is_behind():
    scheduler = FaultScheduler(SUBTYPES)
    for slot in range(30):
        scheduler.record(scheduler.choose([opportunity("missing_rows")], 0, slot).plan.subtype)
    rare = [opportunity("missing_rows"), opportunity("lost_receipt", turn=1, ordinal=4)]
    for slot in range(30):
        chosen = scheduler.choose(rare, 1, slot)
        assert chosen.plan.subtype == "lost_receipt" and chosen.opportunity.turn == 1
        assert (chosen.plan.opportunity, chosen.plan.cap) == (4, 1)
        scheduler.record("lost_receipt")
    assert scheduler.injected["missing_rows"] == scheduler.injected["lost_receipt"] == 30


def test_only_actual_injections_count():
    scheduler = FaultScheduler(("missing_rows", "truncated_body"))
    scheduler.record("missing_rows")
    for slot in range(20):
        assert scheduler.choose([opportunity(*SUBTYPES)], 0, slot).plan.subtype == "truncated_body"


def test_nothing_eligible_means_no_fault():
    scheduler = FaultScheduler(("lost_receipt",))
    assert scheduler.choose([opportunity("missing_rows")], 0, 0) is None
    assert scheduler.choose([], 0, 0) is None
    assert FaultScheduler(()).choose([opportunity(*SUBTYPES)], 0, 0) is None


def test_choices_depend_on_seed_step_and_slot_only():
    offers = [opportunity(*SUBTYPES, turn=turn, ordinal=turn) for turn in range(4)]
    draws = {
        (s, t, i): FaultScheduler(SUBTYPES, seed=s).choose(offers, t, i)
        for s in (0, 1)
        for t in (0, 1)
        for i in range(20)
    }
    scheduler = FaultScheduler(SUBTYPES, seed=1)
    for slot in reversed(range(20)):
        assert scheduler.choose(offers, 1, slot) == draws[1, 1, slot]
    assert len({d.plan for d in draws.values()}) > 10
    assert {d.opportunity.turn for d in draws.values()} == {0, 1, 2, 3}


def test_caps_follow_their_weights():
    scheduler = FaultScheduler(("missing_rows",), caps=((1, 1.0), (2, 3.0), (5, 0.0)))
    caps = [scheduler.choose([opportunity("missing_rows")], 0, slot).plan.cap for slot in range(400)]
    assert set(caps) == {1, 2}
    assert 260 <= caps.count(2) <= 340  # mean 300, standard deviation 8.7


def test_resume_goes_on_as_if_never_stopped():
    straight, resumed = FaultScheduler(SUBTYPES, seed=3), FaultScheduler(SUBTYPES, seed=3)
    offers = [opportunity(*SUBTYPES)]

    def go(scheduler, steps):
        names = []
        for step in steps:
            names.append(scheduler.choose(offers, step, 0).plan)
            scheduler.record(names[-1].subtype)
        return names

    whole = go(straight, range(20))
    first = go(resumed, range(9))
    state = json.loads(json.dumps(resumed.state_dict()))
    resumed = FaultScheduler(SUBTYPES, seed=3)
    resumed.load_state_dict(state)
    assert first + go(resumed, range(9, 20)) == whole


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="unknown fault subtype 'nope'"):
        FaultScheduler(("nope",))
    for caps in ((), ((0, 1.0),), ((1, 0.0),), ((1, -1.0), (2, 3.0))):
        with pytest.raises(ConfigError, match="cap >= 1"):
            check_caps(caps)
    with pytest.raises(ConfigError, match="resume with the same fault setting"):
        FaultScheduler(("missing_rows",)).load_state_dict({"injected": {"lost_receipt": 1}})
    with pytest.raises(ConfigError, match="not scheduled here"):
        FaultScheduler(("missing_rows",)).record("lost_receipt")
