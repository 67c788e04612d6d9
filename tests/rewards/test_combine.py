import pytest

from robustops.records import RewardParts
from robustops.rewards.combine import RewardWeights, total


def test_weights_of_the_source():
    assert total(RewardParts(1.0, 0.5, 0.75)) == pytest.approx(1.0 + 0.15 + 0.075)
    assert total(RewardParts(0.0, -1.0, 0.0)) == pytest.approx(-0.3)


def test_a_zero_weight_switches_a_part_off():
    only_success = RewardWeights(success=1.0, progress=0.0, quality=0.0)
    assert total(RewardParts(1.0, -0.9, 0.4), only_success) == 1.0
    assert total(RewardParts(0.0, 0.9, 0.4), only_success) == 0.0
