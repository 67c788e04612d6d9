import math

import numpy as np
import pytest

from robustops.monitor import schema
from robustops.monitor.detect import invariants_exact as exact
from robustops.monitor.detect.groups import INVARIANTS
from robustops.monitor.panel import Panel
from tests.monitor.detect.runs import changed, run, runs

#: Columns of a step that break an invariant, in a run that holds all.
BREAKING = {
    "finite": {"grad_norm": math.inf},
    "bounds": {"trunc_frac": 1.5},
    "order": {"reward_max": -5.0, "reward_min": 0.0},
    "update_moves": {"update_norm_rel": 0.0},
    "rate_schedule": {"lr": 1.0},
    "kl_weight": {"kl_coef": 0.1},
    "clip_sum": {"clip_frac": 0.1, "clip_low": 0.05, "clip_high": 0.02},
    "same_log_probs": {"samp_logp_absdiff_mean": 0.02},
    "no_lag": {"policy_lag_max": 1.0},
    "group_mean": {"adv_group_mean_absmax": 0.1},
    "batch_mean": {"adv_mean": -0.01},
    "baseline": {"baseline_bias": 0.2},
    "batch_deviation": {"adv_std": 1.2},
    "own_rewards": {"adv_reward_corr": 0.3},
    "true_success": {"rewards.success.mean": 0.99},
    "flawless": {"reward_max": 1.45},
    "reward_follows_success": {"reward_success_corr": 0.7},
    "replies_arrive": {"obs_roundtrip_mismatch_frac": 0.01},
    "one_answer": {"turns_mean": 3.0},
    "ends_explained": {"no_answer_frac": 0.9},
}
#: Columns that the made-up runs do not have, at healthy values.
FURTHER = {
    "reward_min": 0.0,
    "clip_frac": 0.03,
    "clip_low": 0.02,
    "clip_high": 0.01,
    "policy_lag_max": 0.0,
    "baseline_bias": 1e-17,
    "reward_success_corr": 0.998,
}


def whole(seed: int = 0) -> Panel:
    panel = run(seed)
    return changed(panel, **{name: np.full(len(panel), value) for name, value in FURTHER.items()})


def with_step(panel: Panel, row: int, columns: dict[str, float]) -> Panel:
    new = {}
    for name, value in columns.items():
        new[name.replace(".", "__")] = np.where(np.arange(len(panel)) == row, value, panel[name])
    return changed(panel, **new)


def test_a_healthy_run_holds_all() -> None:
    for seed in range(20):
        assert exact.broken(whole(seed), exact.BY_NAME) == {}


@pytest.mark.parametrize("name", exact.BY_NAME)
def test_each_is_broken_by_a_step_that_breaks_it_and_by_no_other(name: str) -> None:
    found = exact.BY_NAME[name].broken(with_step(whole(), 7, BREAKING[name]))
    assert found[7]
    assert not found[:7].any()
    assert not found[9:].any()


@pytest.mark.parametrize("name", exact.BY_NAME)
def test_what_is_not_observed_breaks_nothing(name: str) -> None:
    empty = Panel(np.arange(1, 4))
    assert not exact.BY_NAME[name].broken(empty).any()
    panel = whole()
    for column in exact.BY_NAME[name].columns:
        hidden = changed(panel, **{column.replace(".", "__"): np.full(40, np.nan)})
        assert not exact.BY_NAME[name].broken(hidden).any()


@pytest.mark.parametrize("name", exact.BY_NAME)
def test_each_is_causal(name: str) -> None:
    panel = with_step(whole(), 25, BREAKING[name])
    assert np.array_equal(exact.BY_NAME[name].broken(panel)[:20], exact.BY_NAME[name].broken(panel.until(20)))


def test_entries_are_complete() -> None:
    for entry in exact.EXACT:
        assert entry.invariant in INVARIANTS
        assert entry.reason
        assert set(entry.columns) <= set(schema.names())
    assert exact.BY_NAME["batch_mean"].tier == "P"
    assert exact.BY_NAME["group_mean"].tier == "I"
    assert "batch_mean" not in exact.ALWAYS
    assert "clip_sum" in exact.ALWAYS


def test_a_rule_that_healthy_runs_break_is_not_armed() -> None:
    other = [changed(whole(seed), adv_mean=np.full(40, 0.02)) for seed in range(5)]
    assert "batch_mean" not in exact.armed(other)
    assert "group_mean" in exact.armed(other)
    assert "vf_loss" not in exact.armed(runs(3))
    assert "clip_sum" not in exact.armed(runs(3))  # no run tells it


def test_a_rate_may_rise_in_the_warm_up_and_fall_later_but_not_rise_again() -> None:
    panel = run(0)
    warm = np.minimum(np.arange(1, 41) / 3, 1) * 3e-4 * np.linspace(1, 0.5, 40)
    assert not exact.BY_NAME["rate_schedule"].broken(changed(panel, lr=warm)).any()
    again = np.where(np.arange(40) == 20, 6e-3, warm)
    assert np.flatnonzero(exact.BY_NAME["rate_schedule"].broken(changed(panel, lr=again))).tolist() == [20]


def test_a_kl_weight_may_adapt_slowly() -> None:
    panel = run(0)
    assert not exact.BY_NAME["kl_weight"].broken(changed(panel, kl_coef=0.01 * 1.1 ** np.arange(40))).any()
    switched = np.where(np.arange(40) < 9, 0.0, 0.01)
    assert np.flatnonzero(exact.BY_NAME["kl_weight"].broken(changed(panel, kl_coef=switched))).tolist() == [9]


def test_violations_tell_where_and_why_in_order() -> None:
    panel = with_step(with_step(whole(), 12, BREAKING["group_mean"]), 4, BREAKING["no_lag"])
    first, second = exact.violations(panel, exact.BY_NAME)
    assert (first.column, first.step, first.value) == ("policy_lag_max", 5, 1.0)
    assert (second.column, second.step) == ("adv_group_mean_absmax", 13)
    assert math.isinf(second.score)
    assert "step 13" in second.text and "sum to 0" in second.text
    (bound,) = exact.violations(with_step(whole(), 3, {"entropy": -1.0}))
    assert bound.column == "entropy"
