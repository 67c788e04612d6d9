import dataclasses
import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.objectives.advantage_statistics import (
    advantage_statistics,
    baseline_statistics,
    correlation,
    credit_statistics,
    lagged_correlation,
    value_statistics,
)
from robustops.objectives.advantages import Advantages, aggregate, component
from robustops.records import RewardParts
from robustops.rewards.combine import RewardWeights, total

GROUPS = [0, 0, 0, 1, 1]


def made(values, baseline=None) -> Advantages:
    given_baseline = None if baseline is None else torch.tensor(baseline)
    return Advantages(torch.tensor(values), torch.zeros(len(values)), given_baseline)


def test_advantages_by_hand():
    found = advantage_statistics(torch.tensor([1.0, -3.0, 2.0, 0.5, -0.5]), GROUPS)
    assert found["adv_mean"] == 0.0 and found["adv_group_mean_absmax"] == 0.0
    assert found["adv_std"] == pytest.approx(math.sqrt(14.5 / 4))
    assert (found["adv_min"], found["adv_max"], found["adv_absmax"]) == (-3.0, 2.0, 3.0)
    fourth = (1 + 81 + 16 + 0.0625 * 2) / 5
    assert found["adv_kurt"] == pytest.approx(fourth / (14.5 / 5) ** 2 - 3)


def test_two_points_have_the_least_kurtosis_and_equal_values_none():
    assert advantage_statistics(torch.tensor([-1.0, 1.0]), [0, 0])["adv_kurt"] == pytest.approx(-2.0)
    still = advantage_statistics(torch.zeros(4), [0, 0, 1, 1])
    assert math.isnan(still["adv_kurt"]) and still["adv_std"] == 0.0
    assert math.isnan(advantage_statistics(torch.tensor([1.0]), [0])["adv_std"])


def test_a_group_that_is_off_centre_shows():
    found = advantage_statistics(torch.tensor([1.0, 1.0, 1.0, -1.0, -2.0]), GROUPS)
    assert found["adv_group_mean_absmax"] == 1.5


def test_the_baseline_by_hand():
    """Group means are 2 and 5; left out, (2.5, 2, 1.5) and (6, 4)."""
    rewards, baseline = torch.tensor([1.0, 2.0, 3.0, 4.0, 6.0]), [2.0, 2.0, 2.0, 5.0, 5.0]
    found = baseline_statistics(rewards, made([-1.0, 0.0, 1.0, -1.0, 1.0], baseline), GROUPS)
    assert found["return_mean"] == 3.2 and found["baseline_bias"] == 0.0
    assert found["baseline_mae"] == pytest.approx(0.8)
    assert found["adv_reward_corr"] == pytest.approx(1.0)
    rest = [1 - 2.5, 0.0, 3 - 1.5, 4 - 6.0, 6 - 4.0]
    expected = 1 - statistics.variance(rest) / statistics.variance(rewards.tolist())
    assert found["ev_loo"] == pytest.approx(expected)


def test_credit_of_tokens_against_their_episodes_by_hand():
    """Gaps 0, 1.5 and, in the second episode, 0.25: the tokens that are not trained do not count."""
    credit = [torch.tensor([9.0, 0.5, -1.0]), torch.tensor([-0.25, 9.0])]
    masks = [(False, True, True), (True, False)]
    found = credit_statistics(torch.tensor([0.5, -0.5]), credit, masks)
    assert found["adv_token_gap"] == pytest.approx((0 + 1.5 + 0.25) / 3)
    even = [torch.full((3,), 0.1), torch.full((2,), -0.3)]
    exact = torch.tensor([0.1, -0.3], dtype=torch.float64)
    assert credit_statistics(exact, even, masks)["adv_token_gap"] == 0.0
    assert math.isnan(credit_statistics(torch.zeros(0), [], [])["adv_token_gap"])


def test_a_value_head_by_hand():
    found = value_statistics(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 2.0]))
    assert found["vf_loss"] == pytest.approx(1 / 3)
    assert found["vf_ev"] == pytest.approx(1 - statistics.variance([0, 0, 1]) / 1.0)
    assert math.isnan(value_statistics(torch.zeros(2), torch.ones(2))["vf_ev"])


def test_a_baseline_that_leaves_out_the_own_reward_is_taken_as_it_is():
    rewards = torch.tensor([1.0, 2.0, 3.0, 4.0, 6.0])
    means = baseline_statistics(rewards, made([0.0] * 5, [2.0, 2.0, 2.0, 5.0, 5.0]), GROUPS)
    others = dataclasses.replace(made([0.0] * 5, [2.5, 2.0, 1.5, 6.0, 4.0]), without_own=True)
    assert baseline_statistics(rewards, others, GROUPS)["ev_loo"] == pytest.approx(means["ev_loo"])


def test_a_wrong_baseline_shows():
    rewards = torch.tensor([1.0, 2.0, 3.0, 4.0, 6.0])
    right = baseline_statistics(rewards, made([-1.0, 0.0, 1.0, -1.0, 1.0], [2.0, 2.0, 2.0, 5.0, 5.0]), GROUPS)
    swapped = baseline_statistics(
        rewards, made([-4.0, -3.0, -2.0, 2.0, 4.0], [5.0, 5.0, 5.0, 2.0, 2.0]), GROUPS
    )
    assert swapped["ev_loo"] < right["ev_loo"] - 1 and swapped["baseline_mae"] > right["baseline_mae"]
    assert swapped["baseline_bias"] == pytest.approx(0.6)


def test_what_the_normalisation_does_not_tell_is_nan():
    found = baseline_statistics(torch.tensor([1.0, 2.0]), made([-1.0, 1.0]), [0, 0])
    assert found.pop("return_mean") == 1.5
    assert len(found) == 4 and all(math.isnan(value) for value in found.values())


def test_groups_of_one_have_no_leave_one_out_baseline():
    rewards = torch.tensor([1.0, 3.0, 9.0])
    with_one = baseline_statistics(rewards, made([-1.0, 1.0, 0.0], [2.0, 2.0, 9.0]), [0, 0, 1])
    without = baseline_statistics(rewards[:2], made([-1.0, 1.0], [2.0, 2.0]), [0, 0])
    assert with_one["ev_loo"] == pytest.approx(without["ev_loo"])
    assert math.isnan(baseline_statistics(torch.ones(2), made([0.0, 0.0], [1.0, 1.0]), [0, 0])["ev_loo"])


def test_credit_that_comes_a_step_late_goes_with_the_step_before():
    earlier, now = torch.tensor([1.0, -1.0, 2.0, -2.0]), torch.tensor([-1.0, 1.0, 1.0, -1.0])
    assert lagged_correlation(earlier.clone(), earlier) == pytest.approx(1.0)
    assert abs(lagged_correlation(now, earlier)) < 0.5
    assert lagged_correlation(earlier[:3], torch.cat([earlier, now])) == pytest.approx(1.0), (
        "places in common"
    )
    assert math.isnan(lagged_correlation(now, None)) and math.isnan(lagged_correlation(now[:1], earlier))


parts = st.builds(RewardParts, *(st.sampled_from([0.0, 0.25, 0.5, 1.0]) for _ in range(3)))


@pytest.mark.parametrize("normalise", [aggregate, component])
@settings(deadline=None)
@given(st.lists(parts, min_size=5, max_size=5))
def test_the_normalisations_tell_the_mean_reward_of_the_group(normalise, given_parts):
    weights = RewardWeights(1.0, 0.5, 0.25)
    advantages = normalise(given_parts, GROUPS, weights)
    rewards = [total(part, weights) for part in given_parts]
    slow = [statistics.mean(rewards[:3])] * 3 + [statistics.mean(rewards[3:])] * 2
    assert advantages.baseline.tolist() == pytest.approx(slow)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=3, max_size=20))
def test_correlation_is_that_of_the_slow_version(pairs):
    first, second = (list(column) for column in zip(*pairs, strict=True))
    found = correlation(torch.tensor(first).double(), torch.tensor(second).double())
    if min(max(column) - min(column) for column in (first, second)) < 1e-3:
        return
    assert found == pytest.approx(statistics.correlation(first, second), abs=1e-6)
