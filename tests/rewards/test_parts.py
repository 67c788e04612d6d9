from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.errors import RewardError
from robustops.records import EpisodeError, RewardParts, ToolCall, ToolResult, Turn
from robustops.rewards.parts import (
    RewardRules,
    attempted_turns,
    bad_turns,
    call_evidence,
    repeated_reads,
    reward_parts,
    rewarded,
)
from robustops.worlds.time_limit import timeout_receipt
from tests.rewards.episodes import (
    answer,
    fault,
    make_episode,
    make_task,
    malformed,
    read,
    refused,
    write,
)

CALENDAR = make_task(edges=(("A", "B"), ("A", "C")))


# --- success and progress -----------------------------------------------------------------------
def test_downstream_results_without_their_prerequisite_earn_nothing():
    """The calendar example of the source: B and C without A is 0/3, A and B is 2/3."""
    without = make_episode([write()], final=(False, True, True))
    assert reward_parts(CALENDAR, without) == RewardParts(0.0, 0.0, 0.0)
    with_a = make_episode([write()], final=(True, True, False))
    assert reward_parts(CALENDAR, with_a) == RewardParts(0.0, 2 / 3, 0.0)


def test_progress_already_present_at_the_continuation_boundary_is_excluded():
    episode = make_episode([write()], start=(True, True, False), final=(True, True, True))
    assert reward_parts(CALENDAR, episode) == RewardParts(1.0, 1 / 3, 1.0)


def test_lost_outcomes_are_subtracted():
    """Breaking A takes A, B and C away at once."""
    episode = make_episode([write()], start=(True, True, True), final=(False, True, True))
    assert reward_parts(CALENDAR, episode) == RewardParts(0.0, -1.0, 0.0)


def test_full_progress_from_nothing_if_and_only_if_success():
    for final in product((False, True), repeat=3):
        parts = reward_parts(CALENDAR, make_episode([write()], final=final))
        assert (parts.progress == 1.0) == (parts.success == 1.0) == all(final)


# --- quality ------------------------------------------------------------------------------------
def test_quality_counts_bad_calls_among_own_attempts():
    episode = make_episode([read(), refused(), malformed(), write(), answer()])
    assert attempted_turns(episode) == (True, True, True, True, False)
    assert bad_turns(episode) == (False, True, True, False, False)
    assert reward_parts(make_task(), episode).quality == 1 - 2 / 4


def test_quality_of_a_failed_episode_is_zero_however_clean_its_calls():
    assert reward_parts(make_task(), make_episode([write()], final=(True, False, True))).quality == 0.0


def test_an_episode_without_calls_divides_by_one():
    assert reward_parts(make_task(), make_episode([answer()])).quality == 1.0


def test_inherited_turns_are_neither_attempts_nor_bad():
    episode = make_episode([refused(), malformed(), write(), refused()], inherited=2)
    assert attempted_turns(episode) == (False, False, True, True)
    assert bad_turns(episode) == (False, False, False, True)
    assert reward_parts(make_task(), episode).quality == 0.5


def test_an_injected_error_is_not_the_agents_fault():
    turns = [refused(injected=fault()), refused("set", injected=fault("lost_receipt")), write()]
    assert not any(bad_turns(make_episode(turns)))


def test_a_message_cut_off_by_the_budget_is_no_attempt():
    cut = Turn("<tool_call>{", None, None)
    episode = make_episode([write(), cut], stop="answer_budget")
    assert attempted_turns(episode) == (True, False)
    assert bad_turns(episode) == (False, False)


def test_an_episode_that_ended_on_a_malformed_call_counts_it():
    unanswered = Turn("<tool_call>{", None, None)
    episode = make_episode([write(), unanswered], stop="malformed")
    assert attempted_turns(episode) == (True, True)
    assert bad_turns(episode) == (False, True)


# --- repeated reads -----------------------------------------------------------------------------
def test_marked_from_the_third_occurrence():
    episode = make_episode([read(id=1)] * 4)
    assert repeated_reads(episode) == (False, False, True, True)
    assert bad_turns(episode) == repeated_reads(episode)


def test_other_arguments_are_another_read_and_argument_order_is_not():
    turns = [read(a=1, b=2), read(b=2, a=1), read(a=1, b=3), read(a=1, b=2)]
    assert repeated_reads(make_episode(turns)) == (False, False, False, True)


def test_reads_between_do_not_excuse_a_repeat():
    turns = [read(id=1), read(id=2), read(id=1), read(id=3), read(id=1)]
    assert repeated_reads(make_episode(turns)) == (False, False, False, False, True)


def test_a_change_of_state_makes_reading_again_a_state_check():
    turns = [read(id=1), read(id=1), write(), read(id=1), read(id=1), read(id=1)]
    assert repeated_reads(make_episode(turns)) == (False,) * 5 + (True,)


def test_a_lost_receipt_after_a_commit_is_a_change_too():
    committed = Turn(**{**vars(refused("set", injected=fault("lost_receipt"))), "changed": True})
    turns = [read(id=1), read(id=1), committed, read(id=1), read(id=1)]
    assert not any(repeated_reads(make_episode(turns)))


def test_asking_again_after_a_fault_on_the_read_is_a_legitimate_retry():
    turns = [read(id=1), read(id=1), read(id=1, injected=fault("missing_rows")), read(id=1), read(id=1)]
    assert not any(repeated_reads(make_episode(turns)))
    assert repeated_reads(make_episode([*turns, read(id=1)]))[-1]


def test_a_fault_on_another_call_excuses_nothing():
    turns = [read(id=1), read(id=1), read(id=2, injected=fault("missing_rows")), read(id=1)]
    assert repeated_reads(make_episode(turns)) == (False, False, False, True)


def test_a_new_reply_is_new_information():
    turns = [read(id=1), read(id=1), read(id=1, reply='{"new":1}'), read(id=1, reply='{"new":1}')]
    assert not any(repeated_reads(make_episode(turns)))


def test_reads_of_the_prefix_count_as_earlier_occurrences():
    episode = make_episode([read(id=1)] * 3, inherited=2)
    assert repeated_reads(episode) == (False, False, True)
    assert repeated_reads(make_episode([read(id=1)] * 3, inherited=3)) == (False, False, False)


def slow_repeats(turns):
    """Occurrence k of a read is marked if the two nearest earlier equal calls gave the same reply,
    none of the three was faulty, and nothing was written since the first of them."""
    flags = []
    for place, turn in enumerate(turns):
        same = [
            p
            for p in range(place + 1)
            if turns[p].call is not None
            and turn.call is not None
            and turns[p].call == turn.call
            and (turns[p].fault or not turns[p].result.is_error)
        ][-3:]
        flags.append(
            len(same) == 3
            and same[-1] == place
            and all(turns[p].result.text == turn.result.text for p in same)
            and not any(turns[p].fault for p in same)
            and not any(t.changed for t in turns[same[0] : place + 1])
        )
    return flags


TURNS = st.lists(
    st.sampled_from(
        [
            read(id=1),
            read(id=2),
            read(id=1, reply='{"new":1}'),
            read(id=1, injected=fault("missing_rows")),
            refused(id=1),
            refused(id=1, injected=fault()),
            malformed(),
            write(),
        ]
    ),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(TURNS)
def test_repeats_equal_the_slow_rule(turns):
    assert list(repeated_reads(make_episode(turns))) == slow_repeats(turns)


@settings(max_examples=200, deadline=None)
@given(TURNS, st.integers(0, 12), st.lists(st.booleans(), min_size=6, max_size=6))
def test_parts_stay_in_their_ranges(turns, inherited, checks):
    inherited = min(inherited, len(turns))
    episode = make_episode(turns, inherited=inherited, start=checks[:3], final=checks[3:])
    parts = reward_parts(CALENDAR, episode)
    assert parts.success in (0.0, 1.0)
    assert -1 <= parts.progress <= 1
    assert 0 <= parts.quality <= parts.success
    bad, attempted = bad_turns(episode), attempted_turns(episode)
    assert all(a or not b for a, b in zip(attempted, bad, strict=True))
    assert not any(bad[:inherited])


# --- invalid episodes ---------------------------------------------------------------------------
def test_the_rules_can_be_switched_off():
    task = make_task(edges=[("A", "B"), ("A", "C")])
    episode = make_episode([read(), read(), read(), answer()], final=(False, True, True))
    assert reward_parts(task, episode).progress == 0.0
    assert reward_parts(task, episode, RewardRules(gated=False)).progress == pytest.approx(2 / 3)
    assert call_evidence(episode).bad == (False, False, True, False)
    assert call_evidence(episode, RewardRules(repeats=None)).bad == (False,) * 4
    assert call_evidence(episode, RewardRules(repeats=2)).bad == (False, True, True, False)
    assert call_evidence(episode).attempted == (True, True, True, False)


def test_a_call_without_an_answer_is_no_bad_call():
    late = Turn("", ToolCall("get", {}), timeout_receipt(None, 3.0))
    own = Turn("", ToolCall("get", {}), ToolResult('{"error":{"code":"NOT_FOUND"}}', is_error=True))
    episode = make_episode([late, own, write(), answer()])
    assert call_evidence(episode).bad == (False, True, False, False)
    assert reward_parts(make_task(), episode).quality == pytest.approx(2 / 3)


def test_an_episode_whose_reward_fails_or_is_not_finite_is_invalid_and_not_worth_zero():
    task, episode = make_task(), make_episode([write(), answer()])
    assert rewarded(task, episode).reward_parts == reward_parts(task, episode)
    broken = make_episode([write()], error=EpisodeError("sampler", "gone"))
    assert rewarded(task, broken) is broken

    def fails(task, episode):
        raise RewardError("the judge is away")

    for reward, reason in (
        (fails, "the judge is away"),
        (lambda task, episode: RewardParts(0.0, float("nan"), 0.0), "is not finite"),
        (lambda task, episode: RewardParts(0.0, 0.0, float("inf")), "is not finite"),
    ):
        invalid = rewarded(task, episode, reward)
        assert invalid.reward_parts is None and not invalid.success
        assert invalid.error.boundary == "reward" and reason in invalid.error.message


def test_a_failed_episode_has_no_reward():
    episode = make_episode([write()], error=EpisodeError("sampler", "engine died"))
    with pytest.raises(RewardError, match=r"sampler boundary: engine died"):
        reward_parts(make_task(), episode)


@pytest.mark.parametrize(
    ("start", "final"), [((), (True,) * 3), ((True,) * 3, ()), ((True,) * 2, (True,) * 3), ((), ())]
)
def test_missing_checks_are_refused(start, final):
    with pytest.raises(RewardError, match="3 checks"):
        reward_parts(make_task(), make_episode([write()], start=start, final=final))


def test_a_task_without_checks_is_refused():
    with pytest.raises(RewardError, match="at least one check"):
        reward_parts(make_task(()), make_episode([write()], start=(), final=()))


def test_another_tasks_episode_is_refused():
    with pytest.raises(RewardError, match="t2/oracle"):
        reward_parts(make_task(), make_episode([write()], case_id="t2/oracle"))
