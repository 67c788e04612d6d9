import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.errors import TrainingError
from robustops.objectives.credit import LocalCredit, failed_ending, spread, token_advantages
from robustops.rewards.parts import bad_turns
from tests.rewards.episodes import answer, make_episode, malformed, read, refused, write

FAILED = (True, False, True)


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
    values = token_advantages(1.5, episode, bad_turns(episode))
    assert by_turn(values, episode) == [1.5, -0.5, 1.5, 1.5]


def test_a_cap_never_lifts():
    episode = make_episode([read(), malformed(), answer()], final=FAILED)
    values = token_advantages(-2.0, episode, bad_turns(episode))
    assert by_turn(values, episode) == [-2.0, -2.0, -2.0]
    mild = token_advantages(-0.2, episode, bad_turns(episode))
    assert by_turn(mild, episode) == pytest.approx([-0.2, -0.5, -0.2])


def test_a_failed_stop_earns_nothing_and_earlier_work_keeps_its_credit():
    episode = make_episode([read(), write(), answer()], final=FAILED)
    assert by_turn(token_advantages(0.8, episode, [False] * 3), episode) == pytest.approx([0.8, 0.8, 0.0])


def test_a_successful_stop_is_rewarded():
    episode = make_episode([write(), answer()])
    assert by_turn(token_advantages(0.8, episode, [False] * 2), episode) == pytest.approx([0.8, 0.8])


@pytest.mark.parametrize("stop", ["max_turns", "context", "malformed"])
def test_a_call_that_a_budget_of_the_episode_made_the_last_is_not_capped(stop):
    episode = make_episode([read(), read(id=2)], final=FAILED, stop=stop)
    assert failed_ending(episode) is None
    assert by_turn(token_advantages(0.8, episode, [False] * 2), episode) == pytest.approx([0.8, 0.8])


def test_a_message_that_never_ended_earns_nothing():
    failed = make_episode([read(), answer()], final=FAILED, stop="answer_budget")
    assert by_turn(token_advantages(0.8, failed, [False] * 2), failed) == pytest.approx([0.8, 0.0])
    assert by_turn(token_advantages(-0.8, failed, [False] * 2), failed) == pytest.approx([-0.8, -0.8])
    done = make_episode([write(), answer()], stop="answer_budget")
    assert by_turn(token_advantages(0.8, done, [False] * 2), done) == pytest.approx([0.8, 0.8])


def test_inherited_turns_and_tool_replies_get_nothing():
    episode = make_episode([read(), write(), answer()], inherited=1)
    values = token_advantages(1.0, episode, [False] * 3)
    assert by_turn(values, episode) == [1.0, 1.0]
    assert values[episode.turns[0].start : episode.turns[0].end].eq(0).all()


def test_both_caps_can_be_switched_off():
    episode = make_episode([refused(), answer()], final=FAILED)
    rule = LocalCredit(bad_cap=None, stop_cap=None)
    assert by_turn(token_advantages(1.0, episode, [True, False], rule), episode) == [1.0, 1.0]
    stronger = LocalCredit(bad_cap=-1.0, stop_cap=-0.25)
    assert by_turn(token_advantages(1.0, episode, [True, False], stronger), episode) == [-1.0, -0.25]


def slow(advantage, episode, bad):
    """Token by token, straight from the two formulas."""
    values = []
    for place in range(len(episode.token_ids)):
        value = advantage
        for number, turn in enumerate(episode.turns):
            inside = turn.start <= place < turn.end
            if inside and bad[number]:
                value = min(value, -0.5)
            last = number == len(episode.turns) - 1
            if inside and last and episode.stop == "final_answer" and not all(episode.checks_final):
                value = min(value, 0.0)
        values.append(value if episode.loss_mask[place] else 0.0)
    return values


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([read(), refused(), malformed(), write()]), min_size=1, max_size=8),
    st.floats(-3, 3, width=32),
    st.booleans(),
    st.booleans(),
)
def test_equals_the_slow_version(turns, advantage, success, stops):
    turns = [*turns, answer()] if stops else turns
    final = (True, success, True)
    episode = make_episode(turns, final=final, stop="final_answer" if stops else "max_turns")
    bad = bad_turns(episode)
    assert token_advantages(advantage, episode, bad).tolist() == slow(advantage, episode, bad)


def test_spread_keeps_order_and_lengths():
    episodes = [make_episode([write()]), make_episode([write(), answer()])]
    rows = spread(torch.tensor([1.0, -1.0]), episodes, [[False], [False, False]])
    assert [len(row) for row in rows] == [len(e.token_ids) for e in episodes]
    assert by_turn(rows[0], episodes[0]) == [1.0]
    assert by_turn(rows[1], episodes[1]) == [-1.0, -1.0]


def test_refusals():
    episode = make_episode([write(), answer()])
    with pytest.raises(TrainingError, match="1 bad-turn flags for 2 turns"):
        token_advantages(1.0, episode, [True])
    with pytest.raises(TrainingError, match="one of each"):
        spread([1.0, 2.0], [episode], [[False, False]])
    unplaced = type(episode)(**{**vars(episode), "turns": (write(),)})
    with pytest.raises(TrainingError, match="span 0:0"):
        token_advantages(1.0, unplaced, [True])
