from __future__ import annotations

import pytest
import torch

from robustops.errors import TrainingError
from robustops.objectives.advantage_guards import AdvantageGuards, guarded
from robustops.objectives.advantages import Advantages, aggregate, component, group_means
from robustops.records import RewardParts

PARTS = [RewardParts(1.0, 0.5, 1.0), RewardParts(0.0, 0.25, 0.0), RewardParts(0.0, 0.0, 0.0)] * 2
GROUPS = [4, 4, 4, 7, 7, 7]


def made(values, quality=None) -> Advantages:
    values = torch.tensor(values, dtype=torch.float64)
    return Advantages(values, torch.zeros_like(values) if quality is None else torch.tensor(quality).double())


def test_means_of_groups_by_hand():
    values = torch.tensor([1.0, 2.0, 6.0, -1.0], dtype=torch.float64)
    assert group_means(values, [9, 2, 9, 2]).tolist() == [3.5, 0.5, 3.5, 0.5]


def test_without_a_rule_nothing_changes():
    given = aggregate(PARTS, GROUPS)
    kept = guarded(given, PARTS, GROUPS, AdvantageGuards())
    assert torch.equal(kept.values, given.values) and torch.equal(kept.quality, given.quality)


@pytest.mark.parametrize("normalise", [aggregate, component])
def test_sound_advantages_are_centred_and_consistent(normalise):
    given = normalise(PARTS, GROUPS)
    for rule in ("centre", "consistent"):
        kept = guarded(given, PARTS, GROUPS, AdvantageGuards(rule))
        assert kept.values.allclose(given.values, atol=1e-12)


def test_centring_takes_back_what_a_whole_group_shares():
    given = aggregate(PARTS, GROUPS)
    wrong = given.baseline - torch.tensor([0.1] * 3 + [-0.3] * 3)
    shifted = Advantages(given.values + torch.tensor([2.0] * 3 + [-5.0] * 3), given.quality, wrong)
    kept = guarded(shifted, PARTS, GROUPS, AdvantageGuards("centre"))
    assert kept.values.allclose(given.values, atol=1e-12) and kept.baseline.allclose(given.baseline)


def test_a_sign_that_contradicts_the_reward_becomes_0():
    """The first of each group has more reward than its mean, the others less."""
    kept = guarded(
        made([-1.0, -2.0, 3.0, 4.0, 5.0, 0.0], [0.5] * 6), PARTS, GROUPS, AdvantageGuards("consistent")
    )
    assert kept.values.tolist() == [0.0, -2.0, 0.0, 4.0, 0.0, 0.0]
    assert kept.quality.tolist() == [0.0, 0.5, 0.0, 0.5, 0.0, 0.5]


def test_the_clip_by_hand():
    """The quality share keeps its proportion to the advantage."""
    kept = guarded(
        made([4.0, -3.0, 0.5, 0.0], [2.0, 1.5, 0.1, 0.3]), PARTS[:4], [0] * 4, AdvantageGuards(clip=2.0)
    )
    assert kept.values.tolist() == [2.0, -2.0, 0.5, 0.0]
    assert kept.quality.tolist() == pytest.approx([1.0, 1.0, 0.1, 0.3])


def test_an_unknown_rule_is_refused():
    with pytest.raises(TrainingError, match="choose one of: none, centre, consistent"):
        guarded(made([0.0]), PARTS[:1], [0], AdvantageGuards("median"))
