"""Each fact on a run that has nothing else wrong, and the look-alike that is none."""

import numpy as np
import pytest

from robustops.monitor.symptoms.facts import facts
from robustops.monitor.taxonomy import FAMILIES
from tests.monitor.runs import healthy_panel, step_to

ROWS = 40
NAN = float("nan")


def columns_of(**replaced):
    """Columns that facts name on the otherwise healthy run."""
    return [finding.evidence.column for finding in facts(healthy_panel(ROWS, **replaced))]


def one(**replaced):
    """The only finding."""
    (found,) = facts(healthy_panel(ROWS, **replaced))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_shows_none(seed: int):
    assert facts(healthy_panel(ROWS, seed)) == []


@pytest.mark.parametrize(
    ("column", "good", "bad", "kind", "rows"),
    [
        ("kl_ref_k3", 0.01, 12.0, "kl_explosion", 2),
        ("kl_ref_k1", 0.01, 12.0, "kl_explosion", 1),
        ("entropy", 1.0, 9.5, "repetition_collapse", 2),
        ("trunc_frac", 0.02, 1.0, "length_long", 3),
        ("empty_frac", 0.0, 0.6, "empty_response", 2),
        ("clip_frac", 0.01, 0.7, "kl_explosion", 3),
        ("samp_logp_absdiff_mean", 0.015, 0.2, "empty_response", 2),
        ("is_ratio_ess", 0.99, 0.3, "update_freeze", 2),
        ("tool_error_frac", 0.05, 0.95, "tool_call_error", 3),
        ("invalid_call_frac", 0.05, 0.95, "tool_call_error", 3),
        ("obs_roundtrip_mismatch_frac", 0.0, 0.01, "observation_corruption", 1),
        ("adv_group_mean_absmax", 1e-16, 0.1, "value_mismatch", 2),
    ],
)
def test_a_bound_counts_from_its_number_of_rows_on(column, good, bad, kind, rows):
    values = np.full(ROWS, good)
    values[10 : 10 + rows] = bad
    found = one(**{column: values})
    assert found.evidence.column == column and found.evidence.step == 11 and found.severity >= 0.5
    assert max(found.votes, key=found.votes.get) == kind
    values[10] = good
    assert column not in columns_of(**{column: values})


def test_a_short_log_counts_where_all_of_its_rows_agree_unless_it_grows():
    panel = healthy_panel(1, trunc_frac=[1.0])
    assert [f.evidence.column for f in facts(panel)] == ["trunc_frac"]
    assert facts(panel, growing=True) == []
    assert facts(healthy_panel(2, trunc_frac=[1.0, 0.5])) == []
    assert facts(healthy_panel(1, clip_frac=[1.0])) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [("grad_nonfinite", 1.0), ("nan_count", 2.0), ("grad_norm", np.inf), ("policy_loss", -np.inf)],
)
def test_values_that_are_not_finite(column, value):
    found = one(**{column: step_to(ROWS, 12, 0.0 if column != "grad_norm" else 0.5, value)})
    assert (found.evidence.invariant, found.evidence.step, dict(found.votes)) == ("numerics", 13, {})


def test_a_value_that_nobody_took_is_not_one_that_is_not_finite():
    assert columns_of(grad_norm=step_to(ROWS, 12, 0.5, NAN), entropy=np.full(ROWS, NAN)) == []


def test_weights_that_do_not_move():
    frozen = step_to(ROWS, 20, 1e-3, 0.0)
    assert one(update_norm_rel=frozen).votes == {"update_freeze": 2.0}
    assert columns_of(update_norm_rel=frozen, lr=step_to(ROWS, 20, 1e-6, 0.0)) == []
    assert columns_of(update_norm_rel=frozen, grad_norm=step_to(ROWS, 20, 0.5, 0.0)) == ["grad_norm"]
    assert columns_of(update_norm_rel=frozen, grad_norm=step_to(ROWS, 20, 0.5, NAN)) == []


def test_no_gradient_although_groups_compare():
    nothing = step_to(ROWS, 20, 0.5, 0.0)
    found = one(grad_norm=nothing, update_norm_rel=None)
    assert found.evidence.step == 21 and found.votes == {"update_freeze": 1.5}
    assert columns_of(grad_norm=nothing, update_norm_rel=None, zero_signal_frac=np.full(ROWS, 0.9)) == []
    assert columns_of(grad_norm=nothing, update_norm_rel=None, lr=np.zeros(ROWS)) == []
    unknown = {"zero_signal_frac": None, "adv_min": None, "adv_max": None}
    assert columns_of(grad_norm=nothing, update_norm_rel=None, **unknown) == []
    spread = {**unknown, "group_reward_std_mean": np.full(ROWS, 0.4)}
    assert columns_of(grad_norm=nothing, update_norm_rel=None, **spread) == ["grad_norm"]


def test_advantages_that_are_the_rewards():
    random = np.random.default_rng(0)
    low = random.uniform(-0.5, 0.2, ROWS)
    high = low + 0.1
    rewards = {"reward_min": low, "reward_max": high, "reward_mean": (low + high) / 2}
    raw = {"adv_min": low * (1 - 1e-6), "adv_max": high * (1 - 1e-6)}
    assert one(**rewards, **raw).votes == {"value_mismatch": 2.0}
    centred = {"adv_min": np.full(ROWS, -0.05), "adv_max": np.full(ROWS, 0.05)}
    assert columns_of(**rewards, **centred) == []
    # Rewards of -1 and 1 in equal shares have themselves as normalised advantages.
    fair = {"reward_min": np.full(ROWS, -1.0), "reward_max": np.ones(ROWS), "reward_mean": np.zeros(ROWS)}
    assert columns_of(**fair, adv_min=np.full(ROWS, -1.0), adv_max=np.ones(ROWS)) == []


def test_no_signal_to_the_end():
    silent = step_to(ROWS, 15, 0.2, 1.0)
    found = one(zero_signal_frac=silent, reward_mean=step_to(ROWS, 15, 0.6, 0.1))
    assert found.evidence.step == 16 and found.severity >= 0.5
    quiet = np.where((np.arange(ROWS) >= 15) & (np.arange(ROWS) < 25), 1.0, 0.2)
    assert columns_of(zero_signal_frac=quiet, reward_mean=step_to(ROWS, 15, 0.6, 0.1)) == []
    assert columns_of(zero_signal_frac=np.resize([1.0, 1.0, 0.5], ROWS)) == []
    low = step_to(ROWS, ROWS - 8, 0.6, 0.1)
    assert columns_of(zero_signal_frac=step_to(ROWS, ROWS - 7, 0.2, 1.0), reward_mean=low) == []
    assert columns_of(zero_signal_frac=step_to(ROWS, ROWS - 8, 0.2, 1.0), reward_mean=low) == [
        "zero_signal_frac"
    ]


def test_no_signal_at_the_highest_reward_is_a_solved_task():
    found = one(zero_signal_frac=step_to(ROWS, 25, 0.2, 1.0), reward_mean=step_to(ROWS, 25, 0.5, 1.0))
    assert found.severity < 0.5 and "task solved" in found.evidence.text


def test_advantages_of_0_stand_in_for_groups_without_signal():
    flat = step_to(ROWS, 15, 1.0, 0.0)
    found = one(zero_signal_frac=None, adv_min=-flat, adv_max=flat, reward_mean=step_to(ROWS, 15, 0.6, 0.1))
    assert (found.evidence.column, found.evidence.step) == ("adv_max", 16)


def test_reward_that_is_gone_for_good():
    gone = {"reward_mean": step_to(ROWS, 10, 0.5, 0.0), "reward_max": step_to(ROWS, 10, 1.0, 0.0)}
    found = one(**gone)
    assert found.evidence.step == 11 and found.votes == {"reward_collapse": 0.8}
    never = {"reward_mean": np.full(ROWS, -1.0), "reward_min": np.full(ROWS, -1.0)}
    assert one(**never, reward_max=np.full(ROWS, -1.0)).votes == {"reward_collapse": 0.4}
    back = np.where(np.arange(ROWS) < 20, 0.5, 0.0)
    back[26:] = 0.5
    assert columns_of(reward_mean=back) == []
    assert columns_of(reward_mean=np.zeros(ROWS)) == []  # reward_max is 1: a mean of 0 by chance


def test_few_rows_without_reward_are_a_hard_start_while_a_log_grows():
    nothing = {"reward_mean": np.zeros(3), "reward_max": np.zeros(3)}
    assert [f.evidence.column for f in facts(healthy_panel(3, **nothing))] == ["reward_mean"]
    assert facts(healthy_panel(3, **nothing), growing=True) == []


def test_more_reward_than_a_flawless_episode_has():
    honest = {"success_mean": np.full(ROWS, 0.5), "reward_success_gap": np.full(ROWS, 0.1)}
    assert columns_of(**honest) == []
    found = one(**{**honest, "reward_success_gap": step_to(ROWS, 7, 0.1, 0.8)})
    assert found.evidence.step == 8 and max(found.votes, key=found.votes.get) == "reward_spike"


def test_answers_of_one_token():
    short = step_to(ROWS, 10, 200.0, 1.2)
    assert columns_of(len_mean=short) == []  # and rewarded: they may be what is asked for
    unpaid = {"reward_mean": step_to(ROWS, 10, 0.5, 0.0), "reward_max": step_to(ROWS, 10, 1.0, 0.0)}
    assert set(columns_of(len_mean=short, **unpaid)) == {"len_mean", "reward_mean"}


def test_stale_weights_fall_behind_and_a_broken_sampler_is_off_at_once():
    falling = np.clip(0.02 * (np.arange(ROWS) - 9.0), 0.001, None)
    found = one(samp_logp_absdiff_mean=falling)
    assert found.votes == {"update_freeze": 1.0} and "stale" in found.evidence.text
    at_once = one(samp_logp_absdiff_mean=step_to(ROWS, 10, 0.001, 0.3))
    assert max(at_once.votes, key=at_once.votes.get) in FAMILIES["generation"]
    up_to_date = one(samp_logp_absdiff_mean=falling, policy_lag_max=np.zeros(ROWS))
    assert up_to_date.votes == at_once.votes
