import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.errors import TrainingError
from robustops.objectives.advantages import Advantages
from robustops.objectives.credit import (
    NO_LOCAL_CREDIT,
    LocalCredit,
    quality_weights,
    spread,
    token_advantages,
)
from robustops.rewards.parts import CallEvidence, call_evidence
from tests.rewards.episodes import answer, make_episode, malformed, read, refused, write

FAILED = (True, False, True)


def flagged(*bad: bool) -> CallEvidence:
    return CallEvidence(attempted=tuple(True for _ in bad), bad=bad)


def fine(turns: int) -> CallEvidence:
    return flagged(*[False] * turns)


def by_turn(values, episode):
    """The value of each own turn's span (one value a span, by construction), and 0 all around."""
    inside = torch.zeros(len(values), dtype=torch.bool)
    found = []
    for turn in episode.own_turns:
        span = values[turn.start : turn.end]
        assert span.eq(span[0]).all()
        found.append(span[0].item())
        inside[turn.start : turn.end] = True
    assert values[~inside].eq(0).all()
    return found


def test_bad_turns_of_a_good_episode_are_pushed_down():
    episode = make_episode([read(), refused(), write(), answer()])
    values = token_advantages(1.5, episode, call_evidence(episode))
    assert by_turn(values, episode) == [1.5, -0.5, 1.5, 1.5]


def test_a_cap_never_lifts():
    episode = make_episode([read(), malformed(), answer()], final=FAILED)
    values = token_advantages(-2.0, episode, call_evidence(episode))
    assert by_turn(values, episode) == [-2.0, -2.0, -2.0]
    mild = token_advantages(-0.2, episode, call_evidence(episode))
    assert by_turn(mild, episode) == pytest.approx([-0.2, -0.5, -0.2])


def test_a_failed_stop_earns_nothing_and_earlier_work_keeps_its_credit():
    episode = make_episode([read(), write(), answer()], final=FAILED)
    assert by_turn(token_advantages(0.8, episode, fine(3)), episode) == pytest.approx([0.8, 0.8, 0.0])


def test_a_successful_stop_is_rewarded():
    episode = make_episode([write(), answer()])
    assert by_turn(token_advantages(0.8, episode, fine(2)), episode) == pytest.approx([0.8, 0.8])


@pytest.mark.parametrize("stop", ["max_turns", "context", "malformed"])
def test_a_call_that_a_budget_of_the_episode_made_the_last_is_not_capped(stop):
    episode = make_episode([read(), read(id=2)], final=FAILED, stop=stop)
    assert by_turn(token_advantages(0.8, episode, fine(2)), episode) == pytest.approx([0.8, 0.8])


def test_a_message_that_never_ended_earns_nothing():
    failed = make_episode([read(), answer()], final=FAILED, stop="answer_budget")
    assert by_turn(token_advantages(0.8, failed, fine(2)), failed) == pytest.approx([0.8, 0.0])
    assert by_turn(token_advantages(-0.8, failed, fine(2)), failed) == pytest.approx([-0.8, -0.8])
    done = make_episode([write(), answer()], stop="answer_budget")
    assert by_turn(token_advantages(0.8, done, fine(2)), done) == pytest.approx([0.8, 0.8])


def test_inherited_turns_and_tool_replies_get_nothing():
    episode = make_episode([read(), write(), answer()], inherited=1)
    values = token_advantages(1.0, episode, fine(3))
    assert by_turn(values, episode) == [1.0, 1.0]
    assert values[episode.turns[0].start : episode.turns[0].end].eq(0).all()


def test_both_caps_can_be_switched_off():
    episode = make_episode([refused(), answer()], final=FAILED)
    evidence = flagged(True, False)
    for rule in (LocalCredit(bad_cap=None, stop_cap=None), NO_LOCAL_CREDIT):
        assert by_turn(token_advantages(1.0, episode, evidence, rule), episode) == [1.0, 1.0]
    stronger = LocalCredit(bad_cap=-1.0, stop_cap=-0.25)
    assert by_turn(token_advantages(1.0, episode, evidence, stronger), episode) == [-1.0, -0.25]
    cut = make_episode([refused(), answer()], final=FAILED, stop="answer_budget")
    for cap, wanted in ((0.0, 0.0), (None, 1.0)):
        rule = LocalCredit(bad_cap=None, cut_cap=cap)
        assert by_turn(token_advantages(1.0, cut, evidence, rule), cut) == [1.0, wanted]


# --- quality over time --------------------------------------------------------------------------
def test_quality_credit_by_hand():
    """A good, a bad and a good call, and the answer: to go are 2, 1, 1, 0 good and 1, 1, 0, 0 bad ones."""
    episode = make_episode([read(), refused(), write(), answer()])
    evidence = call_evidence(episode)
    assert by_turn(quality_weights(episode, evidence, better=True), episode) == [2.0, 1.0, 1.0, 0.0]
    assert by_turn(quality_weights(episode, evidence, better=False), episode) == [2.0, 2.0, 0.0, 0.0]
    none = LocalCredit(None, None, None)
    credited = token_advantages(1.0, episode, evidence, none, quality=0.2)
    assert by_turn(credited, episode) == pytest.approx([1.2, 1.0, 1.0, 0.8])
    blamed = token_advantages(1.0, episode, evidence, none, quality=-0.2)
    assert by_turn(blamed, episode) == pytest.approx([0.8, 0.8, 1.2, 1.2])
    even = LocalCredit(None, None, None, "uniform")
    assert by_turn(token_advantages(1.0, episode, evidence, even, quality=-0.2), episode) == [1.0] * 4


def test_quality_credit_is_even_where_no_call_bears_it():
    episode = make_episode([answer()])
    for better in (True, False):
        assert by_turn(quality_weights(episode, call_evidence(episode), better=better), episode) == [1.0]


def test_the_caps_come_after_quality_credit():
    episode = make_episode([read(), refused(), write(), answer()])
    values = token_advantages(1.0, episode, call_evidence(episode), quality=-0.2)
    assert by_turn(values, episode) == pytest.approx([0.8, -0.5, 1.2, 1.2])


def slow_quality_weight(episode, evidence, place, better):
    """How many of the calls that count are made at or after the message that this token belongs to."""

    def to_go(at):
        (number,) = [n for n, turn in enumerate(episode.turns) if turn.start <= at < turn.end]
        later = range(number, len(episode.turns))
        return sum(evidence.attempted[n] and evidence.bad[n] == (not better) for n in later)

    trained = [at for at, mask in enumerate(episode.loss_mask) if mask]
    whole = sum(to_go(at) for at in trained)
    return to_go(place) * len(trained) / whole if whole else 1.0


def slow(advantage, episode, evidence, quality):
    """Token by token, straight from the formulas."""
    values = []
    for place in range(len(episode.token_ids)):
        if not episode.loss_mask[place]:
            values.append(0.0)
            continue
        weight = slow_quality_weight(episode, evidence, place, quality > 0)
        value = advantage - quality + quality * weight
        for number, turn in enumerate(episode.turns):
            inside = turn.start <= place < turn.end
            if inside and evidence.bad[number]:
                value = min(value, -0.5)
            last = number == len(episode.turns) - 1
            if inside and last and episode.stop == "final_answer" and not all(episode.checks_final):
                value = min(value, 0.0)
        values.append(value)
    return values


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([read(), refused(), malformed(), write()]), min_size=1, max_size=8),
    st.floats(-3, 3, width=32),
    st.floats(-1, 1, width=32),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
)
def test_equals_the_slow_version(turns, advantage, quality, success, stops, inherited):
    turns = [*turns, answer()] if stops else turns
    final = (True, success, True)
    inherited = min(inherited, len(turns) - 1)
    stop = "final_answer" if stops else "max_turns"
    episode = make_episode(turns, final=final, stop=stop, inherited=inherited)
    evidence = call_evidence(episode)
    values = token_advantages(advantage, episode, evidence, quality=quality)
    assert values.tolist() == pytest.approx(slow(advantage, episode, evidence, quality), abs=1e-5)


def test_spread_keeps_order_and_lengths():
    episodes = [make_episode([write()]), make_episode([write(), answer()])]
    both = Advantages(torch.tensor([1.0, -1.0]), torch.zeros(2))
    rows = spread(both, episodes, [fine(1), fine(2)])
    assert [len(row) for row in rows] == [len(e.token_ids) for e in episodes]
    assert by_turn(rows[0], episodes[0]) == [1.0]
    assert by_turn(rows[1], episodes[1]) == [-1.0, -1.0]


def test_refusals():
    episode = make_episode([write(), answer()])
    with pytest.raises(TrainingError, match="evidence of 1 turns for 2 turns"):
        token_advantages(1.0, episode, flagged(True))
    with pytest.raises(TrainingError, match="one of each"):
        spread(Advantages(torch.zeros(2), torch.zeros(2)), [episode], [fine(2)])
    unplaced = type(episode)(**{**vars(episode), "turns": (write(),)})
    with pytest.raises(TrainingError, match="span 0:0"):
        token_advantages(1.0, unplaced, flagged(True))
