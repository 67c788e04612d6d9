from __future__ import annotations

import pytest
import torch

from robustops.learning.value_head import Critic, ValueHead, prompt_features
from robustops.objectives.advantages import against_values
from robustops.records import RewardParts
from robustops.rewards.combine import RewardWeights
from tests.learning.support import made_episode
from tests.tiny_model import tiny_model


def always(optimizer) -> bool:
    return True


def test_it_learns_a_linear_map_and_begins_at_zero():
    features = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    returns = features @ torch.tensor([0.5, -1.0, 2.0]) + 0.25
    head = ValueHead(3, 0.05)
    assert head.values(features).tolist() == [0.0] * 64
    head.learn(features, returns, 400, always)
    assert head.values(features).float().allclose(returns, atol=1e-2)


def test_updates_that_are_refused_or_at_rate_0_change_nothing_and_rates_last_for_one_update():
    features, returns = torch.ones(4, 2), torch.ones(4)
    head = ValueHead(2, 0.1)
    head.learn(features, returns, 3, lambda optimizer: False)
    assert head.values(features).tolist() == [0.0] * 4

    def frozen(optimizer) -> bool:
        optimizer.param_groups[0]["lr"] *= 0
        return True

    head.learn(features, returns, 3, frozen)
    assert head.values(features).tolist() == [0.0] * 4
    head.learn(features, returns, 1, always)
    assert head.values(features)[0] > 0 and head.optimizer.param_groups[0]["lr"] == 0.1


def test_what_was_saved_goes_on_exactly_at_the_rate_of_the_run():
    features, returns = torch.randn(8, 3), torch.randn(8)
    whole, first, rest = (ValueHead(3, 0.05) for _ in range(3))
    whole.learn(features, returns, 6, always)
    first.learn(features, returns, 3, always)
    rest.load_state_dict(first.state_dict())
    rest.learn(features, returns, 3, always)
    assert torch.equal(whole.values(features), rest.values(features))
    other = ValueHead(3, 0.5)
    other.load_state_dict(first.state_dict())
    assert other.optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("budget", [1, 30, 4096])
def test_features_are_the_states_of_the_last_token_before_the_first_trained_one(budget):
    model = tiny_model(width=32)
    episodes = [made_episode([(n, n + 4)], 14, seed=n % 2) for n in (4, 4, 6, 9)]
    found = prompt_features(model, episodes, torch.device("cpu"), budget)
    for episode, own in zip(episodes, found, strict=True):
        prompt = torch.tensor([episode.token_ids[: episode.loss_mask.index(True)]])
        slow = model.base_model(input_ids=prompt).last_hidden_state[0, -1]
        assert own.allclose(slow, atol=1e-5)
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("least", "explained", "believed"),
    [(None, -3.0, True), (0.0, 0.1, True), (0.0, -0.1, False), (0.0, float("nan"), False), (1.1, 1.0, False)],
)
def test_a_head_that_explains_too_little_is_not_believed(least, explained, believed):
    assert Critic(ValueHead(1, 0.1), least).believed(explained) == believed


def test_advantages_against_values_by_hand():
    parts = [RewardParts(*row) for row in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 0.0))]
    weights = RewardWeights(1.0, 0.5, 0.0)
    values = torch.tensor([0.5, 0.25, 0.25])
    plain = against_values(parts, values, weights, whiten=False)
    assert plain.values.tolist() == [0.5, 0.25, -0.25] and plain.quality.tolist() == [0.0] * 3
    assert plain.baseline.tolist() == values.tolist() and plain.without_own
    white = against_values(parts, values, weights).values
    expected = (plain.values - plain.values.mean()) / plain.values.std()
    assert white.allclose(expected, atol=1e-5)
