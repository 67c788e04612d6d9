import numpy as np
import pytest

from robustops.monitor import schema
from robustops.monitor.symptoms.changes import CHANGES, START_ROWS, changes
from robustops.monitor.taxonomy import TYPES
from tests.monitor.runs import healthy_panel, step_to

ROWS = 40


def rules_of(**replaced):
    return {finding.rule for finding in changes(healthy_panel(ROWS, **replaced))}


@pytest.mark.parametrize("seed", range(20))
def test_a_run_that_learns_slowly_changes_in_nothing(seed: int):
    assert changes(healthy_panel(ROWS, seed)) == []


def test_the_table_names_columns_and_types_that_exist():
    assert {change.column for change in CHANGES} - {"update_per_lr"} <= set(schema.names())
    assert {kind for change in CHANGES for kind in change.votes} <= set(TYPES)
    assert all(0 < change.severity <= 1 and change.text for change in CHANGES)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change.column}-{change.way}")
def test_every_change_is_found_where_it_lasts_and_only_then(change):
    """From a level of 0.5 (a share that falls from 1) to half as much again as the amount asks for."""
    before = 1.0 if change.way == "down" else 0.02 if change.floor is None else change.floor / 20
    target = before * change.amount if change.kind == "ratio" else before + change.amount
    if change.way == "up":
        after = 1.5 * max(target, change.floor or 0.0)
    else:
        after = 0.5 * target if change.kind == "ratio" else before - 1.5 * change.amount
    column = "update_norm_rel" if change.column == "update_per_lr" else change.column
    rule = f"{change.column} {change.way}"
    assert rule in rules_of(**{column: step_to(ROWS, 20, before, after)})
    assert rule not in rules_of(**{column: np.full(ROWS, before)})
    short = np.where((np.arange(ROWS) >= 20) & (np.arange(ROWS) < 23), after, before)
    assert rule not in rules_of(**{column: short})


def test_a_change_is_dated_back_to_where_it_left_the_starts_variation():
    ramp = np.full(ROWS, 0.8)
    ramp[20:30] = np.linspace(0.7, 0.05, 10)
    ramp[30:] = 0.05
    (found,) = changes(healthy_panel(ROWS, entropy=ramp))
    # The first value of the ramp, 0.7, is more than two deviations (5 % of 0.8 each) below the start.
    assert found.evidence.step == 21
    assert "entropy goes down from 0.8" in found.evidence.text


def test_evidence_lies_outside_of_its_bounds_in_the_columns_own_unit():
    for change in ({"entropy": step_to(ROWS, 20, 0.8, 0.02)}, {"kl_ref_k3": step_to(ROWS, 20, 0.01, 3.0)}):
        (found,) = changes(healthy_panel(ROWS, **change))
        assert not found.evidence.low <= found.evidence.value <= found.evidence.high
    slower = {"lr": np.full(ROWS, 1e-6), "update_norm_rel": step_to(ROWS, 20, 1e-3, 1e-5)}
    (found,) = changes(healthy_panel(ROWS, **slower))
    # A start without variation is taken to vary by 5 % of its level; two of these are its band.
    assert (found.evidence.column, found.evidence.value) == ("update_norm_rel", pytest.approx(1e-5))
    assert found.evidence.low == pytest.approx(0.9e-3)


def test_a_change_that_has_passed_is_told_and_counts_half():
    spike = np.full(ROWS, 0.01)
    spike[15:21] = 4.0
    (passed,) = changes(healthy_panel(ROWS, kl_ref_k3=spike))
    (stays,) = changes(healthy_panel(ROWS, kl_ref_k3=step_to(ROWS, 15, 0.01, 4.0)))
    assert passed.severity == stays.severity / 2 < 0.5 and "it has passed since" in passed.evidence.text


def test_noise_of_the_start_must_be_exceeded_too():
    random = np.random.default_rng(1)
    noisy = random.uniform(0.0, 0.6, ROWS)
    noisy[20:] += 0.35
    assert "tool_error_frac up" not in rules_of(tool_error_frac=noisy)


def test_a_schedule_of_the_learning_rate_is_no_freeze():
    rate = np.where(np.arange(ROWS) < 20, 1e-6, 1e-8)
    moved = 1000 * rate
    assert rules_of(lr=rate, update_norm_rel=moved) == set()
    assert rules_of(lr=np.full(ROWS, 1e-6), update_norm_rel=moved) == {"update_per_lr down"}
    assert rules_of(lr=None, update_norm_rel=moved) == {"update_per_lr down"}


def test_a_multiple_of_nothing_says_nothing():
    assert rules_of(grad_norm=step_to(ROWS, 20, 0.0, 0.5)) == set()
    assert rules_of(reward_max=step_to(ROWS, 20, -0.3, 0.2)) == set()


def test_a_collapse_within_the_first_rows_is_measured_from_the_first_two():
    early = np.full(ROWS, 0.03)
    early[:2] = 0.9
    (found,) = changes(healthy_panel(ROWS, entropy=early))
    assert found.rule == "entropy down" and found.evidence.step == 3


def test_few_rows_hold_no_change():
    rows = START_ROWS + 3
    assert changes(healthy_panel(rows, entropy=step_to(rows, 5, 0.9, 0.01))) == []


def test_reward_is_lost_where_more_than_half_of_it_is():
    assert rules_of(reward_mean=step_to(ROWS, 20, 0.6, 0.1)) == {"reward_mean down"}
    assert rules_of(reward_mean=step_to(ROWS, 20, 0.6, 0.4)) == set()
    # From -0.2 to -0.9, where the least is -1.
    low = {"reward_min": np.full(ROWS, -1.0)}
    assert rules_of(reward_mean=step_to(ROWS, 20, -0.2, -0.9), **low) == {"reward_mean down"}
    assert rules_of(reward_mean=step_to(ROWS, 20, -0.2, -0.4), **low) == set()


def test_a_smaller_token_limit_cuts_answers_shorter():
    cut, short = step_to(ROWS, 20, 0.02, 0.7), step_to(ROWS, 20, 200.0, 120.0)
    assert "len_mean down, cut" in rules_of(trunc_frac=cut, len_mean=short)
    assert "len_mean down, cut" not in rules_of(trunc_frac=cut, len_mean=step_to(ROWS, 20, 200.0, 260.0))
    assert rules_of(len_mean=short) == set()
