import dataclasses
import math

import pytest

from robustops.monitor.rollouts import observation_digest, rollout_statistics
from robustops.records import EpisodeError, Group, RewardParts, ToolCall, ToolResult, Turn, text_digest
from robustops.rewards.combine import RewardWeights
from tests.rewards.episodes import answer, make_episode, malformed

LIMIT = 4


def call(reply: str, *, text: str = "call", error: bool = False, said: str | None = None) -> Turn:
    """A call with its reply; said: what the world replied, if it was something else."""
    told = text_digest(reply if said is None else said)
    return Turn(text, ToolCall("get", {}), ToolResult(reply, error), said=told)


def episode(turns, parts=(0.0, 0.0, 0.0), *, ids=None, **options):
    """success follows the first part unless `final` is given."""
    options.setdefault("final", (parts[0] == 1.0,) * 3)
    made = make_episode(turns, **options)
    changes = {"reward_parts": None if made.error else RewardParts(*parts)}
    if ids is not None:
        changes["token_ids"] = tuple(ids)
    return dataclasses.replace(made, **changes)


def group(*episodes) -> Group:
    return Group("t1/oracle", "clean", tuple(episodes))


def statistics(*groups, weights=None, max_turns=LIMIT, policy_version=0):
    return rollout_statistics(groups, weights, max_turns=max_turns, policy_version=policy_version)


def test_rewards_by_hand():
    """R of 1.4 and 0.3 in one group, twice 0.1 in the other; one success."""
    first = group(episode([answer()], (1.0, 1.0, 1.0)), episode([answer()], (0.0, 1.0, 0.0)))
    second = group(*(episode([answer()], (0.0, 0.0, 1.0)) for _ in range(2)))
    found = statistics(first, second)
    rewards = [1.4, 0.3, 0.1, 0.1]
    middle = sum(rewards) / 4
    squares = [(r - middle) ** 2 for r in rewards]
    assert found["reward_mean"] == pytest.approx(middle)
    assert found["reward_std"] == pytest.approx(math.sqrt(sum(squares) / 3))
    assert (found["reward_min"], found["reward_max"]) == pytest.approx((0.1, 1.4))
    assert found["rewards.success.mean"] == 0.25 and found["rewards.success.std"] == pytest.approx(0.5)
    assert found["rewards.progress.mean"] == 0.5 and found["rewards.quality.mean"] == 0.75
    assert found["success_mean"] == 0.25
    assert found["reward_success_gap"] == pytest.approx(middle / 1.4 - 0.25)
    assert found["reward_success_corr"] == pytest.approx(
        (1.4 - middle) / (math.sqrt(sum(squares)) * math.sqrt(0.75))
    )
    assert found["group_reward_std_mean"] == pytest.approx(1.1 / math.sqrt(2) / 2)
    assert found["zero_signal_frac"] == 0.5


def test_success_is_that_of_the_state_checks_whatever_the_reward_claims():
    fooled = episode([answer()], (1.0, 1.0, 1.0), final=(True, False, True))
    honest = episode([answer()], (0.0, 0.0, 0.0), final=(True, True, True))
    found = statistics(group(fooled, honest))
    assert found["rewards.success.mean"] == 0.5 == found["success_mean"]
    assert found["reward_success_corr"] == pytest.approx(-1.0), "it pays for the wrong ones"
    assert statistics(group(fooled, fooled))["reward_success_gap"] == pytest.approx(1.0)


def test_weights_are_those_of_the_run():
    pair = group(episode([answer()], (1.0, 0.5, 0.0)), episode([answer()], (0.0, 0.5, 1.0)))
    found = statistics(pair, weights=RewardWeights(0.0, 2.0, 0.0))
    assert found["reward_mean"] == 1.0 and found["zero_signal_frac"] == 1.0
    assert math.isnan(statistics(pair, weights=RewardWeights(0.0, 0.0, 0.0))["reward_success_gap"])


def test_repetition_and_variety_by_hand():
    """Messages of three tokens each: 2-grams (7 7) (7 7) and (7 8) (8 9); 4-grams do not span messages."""
    loop = episode([call("{}"), answer()], ids=[0, 0, 7, 7, 7, 0, 7, 8, 9, 0])
    found = statistics(group(loop))
    assert found["distinct2"] == 0.75
    assert math.isnan(found["rep4"]), "no message has four tokens"
    long = dataclasses.replace(loop, turns=(Turn("x", None, None, 0, 6),), token_ids=(1, 2, 1, 2, 1, 2))
    assert statistics(group(long))["rep4"] == pytest.approx(1 - 2 / 3), "1212 and 2121, the first twice"


def test_lengths_are_the_policys_own_tokens():
    one = episode([call("{}"), call("{}"), answer()], inherited=1)
    two = episode([answer()])
    found = statistics(group(one, two))
    assert (found["len_min"], found["len_max"], found["len_mean"]) == (3, 6, 4.5)
    assert found["len_std"] == pytest.approx(math.sqrt(4.5))
    assert found["turns_mean"] == 1.5 and found["turns_max"] == 2, "inherited turns are not its own"
    assert found["tool_calls_mean"] == 0.5


def test_texts_of_a_group_are_compared_with_each_other_only():
    same = [episode([call("{}", text="a"), answer()]) for _ in range(3)]
    other = episode([call("{}", text="b"), answer()])
    found = statistics(group(*same, other), group(other, other))
    assert found["group_unique_frac"] == pytest.approx((2 / 4 + 1 / 2) / 2)


def test_ways_to_end():
    answered = episode([answer()])
    cut = episode([Turn("tail", None, None)], stop="answer_budget")
    full = episode([call("{}")], stop="context")
    at_limit = episode([call("{}")] * LIMIT, stop="max_turns")
    thrown_out = episode([call("{}")], stop="max_turns")
    inherited = episode([call("{}")] * LIMIT, stop="max_turns", inherited=2)
    empty = episode([Turn("  ", None, None)])
    found = statistics(group(answered, cut, full, at_limit, thrown_out, inherited, empty, answered))
    assert found["trunc_frac"] == 2 / 8 and found["empty_frac"] == 1 / 8
    assert found["early_term_frac"] == 1 / 8, "the limit counts inherited turns"
    assert found["no_answer_frac"] == 5 / 8


def test_tools_by_hand():
    one = episode([call("12345"), call("123", error=True), malformed(), answer()], stop="final_answer")
    two = episode([call("1"), answer()])
    found = statistics(group(one, two))
    assert found["tool_calls_mean"] == 1.5 and found["tool_error_frac"] == pytest.approx(1 / 3)
    assert found["invalid_call_frac"] == 0.25, "one of four attempts could not be read"
    assert found["obs_len_mean"] == 3.0 and found["obs_len_std"] == 2.0
    assert found["obs_roundtrip_mismatch_frac"] == 0.0


def test_a_reply_that_is_not_what_the_world_said_is_a_mismatch():
    honest, torn = call("42"), call("24", said="42")
    found = statistics(group(episode([honest, torn, honest, answer()])))
    assert found["obs_roundtrip_mismatch_frac"] == pytest.approx(1 / 3)
    untold = dataclasses.replace(honest, said=None)
    assert math.isnan(statistics(group(episode([untold])))["obs_roundtrip_mismatch_frac"])


def test_the_digest_is_of_what_the_worlds_said():
    clean, torn = call("42"), call("24", said="42")
    one, two = (observation_digest([group(episode([turn, answer()]))]) for turn in (clean, torn))
    other = observation_digest([group(episode([call("43"), answer()]))])
    assert one == two != other and len(one) == 16
    assert observation_digest([group(episode([malformed()]))]) == observation_digest([])


def test_the_lag_is_in_updates():
    ages = [dataclasses.replace(episode([answer()]), weight_version=version) for version in (4, 6)]
    found = statistics(group(*ages), policy_version=6)
    assert (found["policy_lag_mean"], found["policy_lag_max"]) == (1.0, 2)


def test_invalid_episodes_count_nowhere():
    broken = episode([call("zzz")], error=EpisodeError("world", "x"), stop="error")
    good = [episode([call("1"), answer()], (float(n), 0.0, 0.0)) for n in range(2)]
    assert statistics(group(*good, broken), group(broken)) == pytest.approx(
        statistics(group(*good)), nan_ok=True
    )


def test_nothing_sampled_is_nan_everywhere_and_a_lone_value_has_no_deviation():
    assert all(math.isnan(value) for value in statistics().values())
    found = statistics(group(episode([answer()], (1.0, 0.0, 0.0))))
    for name in ("reward_std", "len_std", "group_reward_std_mean", "zero_signal_frac", "group_unique_frac"):
        assert math.isnan(found[name])
    assert math.isnan(found["tool_error_frac"]) and math.isnan(found["obs_len_mean"]), (
        "no call, no error rate"
    )
    assert found["tool_calls_mean"] == 0.0, "but no call is a fact"
