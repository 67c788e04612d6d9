import pytest

from robustops.monitor import schema
from robustops.monitor.detect import groups


def test_every_column_speaks_for_one_invariant_and_one_stage() -> None:
    for column in schema.names():
        assert groups.invariant_of(column) in groups.INVARIANTS
        assert groups.stage_of(column) in groups.STAGES
    assert len(groups.INVARIANTS) == len(groups.PAPER) + 2 == 7


def test_members_keep_their_order() -> None:
    columns = ["kl_old", "entropy", "kl_ref_k1"]
    assert groups.members("kl", columns) == ["kl_old", "kl_ref_k1"]
    assert all(groups.members(name, schema.names()) for name in groups.INVARIANTS)


def test_parts_of_other_trainers_are_rewards_and_other_names_are_refused() -> None:
    assert groups.invariant_of("rewards.style.mean") == "reward_trajectory"
    assert groups.stage_of("success_mean") == "behaviour"
    with pytest.raises(ValueError, match="loudness"):
        groups.invariant_of("loudness")
