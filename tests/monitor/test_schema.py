import math
import re

import pytest

from robustops.monitor import schema
from robustops.monitor.schema import (
    ELSEWHERE,
    FACTS,
    NEEDS,
    QUANTITIES,
    caps,
    check_metrics,
    in_order,
    names,
    quantity,
)


def observed() -> dict[str, float]:
    """A line in which everything was observed; 0 is within the bounds of nearly every quantity."""
    return {q.name: max(0.0, q.low) for q in QUANTITIES}


def test_every_entry_says_what_it_is():
    for q in QUANTITIES:
        assert q.formula and q.unit and q.tier in ("P", "I") and q.over in ("sampled", "trained", "step")
        assert set(q.needs) <= set(NEEDS) and q.low < q.high
        assert re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z_]+\.(mean|std))?", q.name), (
            "no slash: it is the schema's"
        )
    assert len(names()) == len(set(names())) == len(QUANTITIES)
    assert not set(names()) & (set(FACTS) | set(ELSEWHERE)), "one name, one place"


def test_tiers_divide_the_schema():
    assert set(names("P")) | set(names("I")) == set(names()) == set(names("P", "I"))
    assert not set(names("P")) & set(names("I"))
    assert {"reward_mean", "grad_norm", "kl_old", "trunc_frac"} <= set(names("P"))
    assert {"success_mean", "update_norm_rel", "ev_loo", "obs_roundtrip_mismatch_frac"} <= set(names("I"))


def test_the_columns_of_a_source_are_those_whose_needs_it_meets():
    assert caps() == names()
    assert set(names()) - set(caps(["value_head"])) == {"vf_loss", "vf_ev"}
    assert set(names()) - set(caps(["reference"])) == {"kl_ref_k1", "kl_ref_k3"}
    assert "update_norm_rel" not in caps(["whole_weights", "reference"])
    with pytest.raises(KeyError):
        caps(["a_critic"])


def test_a_line_in_which_all_is_observed_or_nothing_is_fine():
    assert check_metrics(observed()) == []
    assert check_metrics(dict.fromkeys(names(), math.nan)) == []
    assert check_metrics({**observed(), "rollout/rounds": -3.0, "rewards.format.mean": 7.0}) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clip_frac", 1.5),
        ("clip_frac", -0.1),
        ("reward_success_corr", 1.01),
        ("len_mean", -1.0),
        ("grad_norm", -1.0),
        ("nan_count", 0.5),
        ("ev_loo", 1.5),
        ("vf_ev", 2.0),
        ("adv_kurt", -2.5),
    ],
)
def test_an_impossible_value_is_named(name, value):
    (problem,) = check_metrics({**observed(), name: value})
    assert problem.startswith(f"{name} is {value}")


def test_infinity_is_a_fact_where_it_can_be_and_rounding_is_none():
    assert check_metrics({**observed(), "ratio_max": math.inf, "adv_reward_corr": 1 + 1e-12}) == []
    assert check_metrics({**observed(), "clip_frac": math.inf})


def test_missing_and_unknown_names_are_named():
    whole = observed()
    del whole["entropy"]
    assert check_metrics(whole) == ["entropy is missing"]
    assert check_metrics(whole, complete=False) == []
    (unknown,) = check_metrics({**observed(), "loss": 0.5})
    assert unknown.startswith("loss is not in schema 1")


def test_a_line_has_the_schemas_order_and_nan_for_what_is_missing():
    line = in_order({"train/loss": 1.0, "entropy": 0.5})
    assert tuple(line) == (*names(), "train/loss")
    assert line["entropy"] == 0.5 and line["train/loss"] == 1.0
    assert sum(math.isnan(value) for value in line.values()) == len(names()) - 1


def test_the_wall_clock_is_not_in_the_schema():
    assert {"step_time", "t_wall", "run_id"} <= set(ELSEWHERE)
    assert quantity("lr").tier == "P"
    with pytest.raises(KeyError):
        quantity("step_time")
    assert schema.SCHEMA_VERSION == 1
