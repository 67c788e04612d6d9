import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.errors import TrainingError
from robustops.objectives.advantages import (
    EPSILON,
    Comparison,
    aggregate,
    all_success,
    batch_z,
    component,
    group_z,
    has_signal,
)
from robustops.records import RewardParts
from robustops.rewards.combine import RewardWeights


# --- slow reference versions --------------------------------------------------------------------
def slow_z(values):
    if len(values) < 2 or max(values) == min(values):
        return [0.0] * len(values)
    mean, std = statistics.fmean(values), statistics.stdev(values)
    return [(value - mean) / (std + EPSILON) for value in values]


def slow_group_z(values, groups):
    scored = [0.0] * len(values)
    for group in set(groups):
        rows = [i for i, g in enumerate(groups) if g == group]
        for row, z in zip(rows, slow_z([values[i] for i in rows]), strict=True):
            scored[row] = z
    return scored


def slow_batch(values, accepted):
    rows = [i for i, a in enumerate(accepted) if a]
    scored = [0.0] * len(values)
    for row, z in zip(rows, slow_z([values[i] for i in rows]), strict=True):
        scored[row] = z
    return scored


def varied_groups(columns, groups):
    return [
        any(len({column[j] for j, g in enumerate(groups) if g == groups[i]}) > 1 for column in columns)
        for i in range(len(groups))
    ]


def slow_aggregate(parts, groups):
    rewards = [p.success + 0.3 * p.progress + 0.1 * p.quality for p in parts]
    return slow_batch(slow_group_z(rewards, groups), varied_groups([rewards], groups))


def slow_component(parts, groups):
    columns = [[p.success for p in parts], [p.progress for p in parts], [p.quality for p in parts]]
    s, p, q = (slow_group_z(column, groups) for column in columns)
    mixed = [a + 0.3 * b + 0.1 * c for a, b, c in zip(s, p, q, strict=True)]
    return slow_batch(mixed, varied_groups(columns, groups))


@st.composite
def batches(draw):
    """Parts as episodes make them: S in {0, 1}, P in quarters, Q in fifths."""
    groups = draw(st.lists(st.integers(0, 4), min_size=1, max_size=16))
    parts = []
    for _ in groups:
        success = draw(st.integers(0, 1))
        parts.append(
            RewardParts(float(success), draw(st.integers(-4, 4)) / 4, success * draw(st.integers(0, 5)) / 5)
        )
    return parts, groups


@settings(max_examples=200, deadline=None)
@given(batches())
def test_both_orders_equal_their_slow_versions(batch):
    parts, groups = batch
    assert aggregate(parts, groups).values.tolist() == pytest.approx(slow_aggregate(parts, groups), abs=1e-9)
    assert component(parts, groups).values.tolist() == pytest.approx(slow_component(parts, groups), abs=1e-9)


# --- hand-made numbers --------------------------------------------------------------------------
def test_group_z_by_hand():
    """Group 7: mean 0.5, sample std sqrt(1/3); group 9: mean 2, sample std 1."""
    z = group_z(torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 3.0, 2.0]), [7, 9, 7, 7, 7, 9, 9], eps=0.0)
    third = math.sqrt(3) / 2
    assert z.tolist() == pytest.approx([third, -1.0, -third, -third, third, 1.0, 0.0])


def test_component_by_hand():
    """One group of four: S splits 2/2; P (1, 1, 1, -1) has std 1; Q follows S."""
    parts = [RewardParts(1, 1, 1), RewardParts(1, 1, 1), RewardParts(0, 1, 0), RewardParts(0, -1, 0)]
    a = math.sqrt(3) / 2
    mixed = [1.1 * a + 0.15, 1.1 * a + 0.15, -1.1 * a + 0.15, -1.1 * a - 0.45]
    scale = statistics.stdev(mixed)
    expected = [value / scale for value in mixed]
    assert component(parts, [0] * 4, eps=0.0).values.tolist() == pytest.approx(expected)


def test_the_two_orders_differ():
    parts = [RewardParts(1, 1, 0.5), RewardParts(0, 0.5, 0), RewardParts(0, 0.25, 0), RewardParts(0, 0, 0)]
    assert not torch.allclose(aggregate(parts, [0] * 4).values, component(parts, [0] * 4).values)


def test_an_all_failed_group_learns_from_progress():
    parts = [RewardParts(0, 0.5, 0), RewardParts(0, 0, 0), RewardParts(0, 0, 0), RewardParts(0, 0, 0)]
    for order in (aggregate, component):
        values = order(parts, [0] * 4).values
        assert values[0] > 1 and bool((values[1:] < 0).all())


# --- constants and rounding ---------------------------------------------------------------------
@given(st.floats(-100, 100, width=32), st.integers(1, 8))
@settings(deadline=None)
def test_equal_values_give_exactly_zero(value, size):
    """Three float32 0.9 give 0.056 through the naive formula."""
    for dtype in (torch.float32, torch.float64):
        assert group_z(torch.full((size,), value, dtype=dtype), [0] * size).eq(0).all()
        assert batch_z(torch.full((size,), value, dtype=dtype)).eq(0).all()


def test_the_naive_formula_does_fail_on_equal_float32_values():
    values = torch.full((3,), 0.9)
    naive = (values - values.mean()) / (values.std() + EPSILON)
    assert naive.abs().max() > 0.01
    assert group_z(values, [0, 0, 0]).eq(0).all()


def test_rounding_noise_is_no_signal():
    values = torch.tensor([0.3, 0.1 + 0.2, 0.3, 0.3], dtype=torch.float64)
    assert values[0] != values[1]
    assert group_z(values, [0] * 4).eq(0).all()


def test_a_lone_failure_is_not_blown_up():
    values = torch.tensor([0.35] * 7 + [0.0])
    z = group_z(values, [0] * 8)
    assert z[7].item() == pytest.approx(-7 / math.sqrt(8), abs=1e-4)
    assert z[:7].abs().max() < 0.36


def test_a_group_of_one_is_zero():
    assert group_z(torch.tensor([5.0, 1.0, 0.0]), [0, 1, 1])[0] == 0


# --- the accepted batch -------------------------------------------------------------------------
SIGNAL = [RewardParts(1, 1, 1), RewardParts(0, 0.5, 0), RewardParts(0, 0, 0), RewardParts(0, 0, 0)]
SILENT = [RewardParts(0, 0.25, 0)] * 4


@pytest.mark.parametrize("order", [aggregate, component])
def test_zero_signal_members_change_nothing_and_get_nothing(order):
    alone = order(SIGNAL, [0] * 4).values
    mixed = order(SIGNAL + SILENT, [0] * 4 + [1] * 4).values
    assert torch.equal(mixed[:4], alone)
    assert mixed[4:].eq(0).all()
    assert order(SILENT, [0] * 4).values.eq(0).all()


@given(batches())
@settings(max_examples=100, deadline=None)
def test_whitened(batch):
    parts, groups = batch
    accepted = has_signal(parts, groups)
    values = component(parts, groups).values[accepted]
    if len(values) and values.abs().max() > 0:
        assert values.mean().abs() < 1e-9
        assert values.std().item() == pytest.approx(1.0, abs=1e-4)


@given(batches(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_order_and_group_names_do_not_matter(batch, random):
    parts, groups = batch
    order = list(range(len(parts)))
    random.shuffle(order)
    moved = component([parts[i] for i in order], [100 - 3 * groups[i] for i in order]).values
    assert moved.tolist() == pytest.approx(component(parts, groups).values[order].tolist(), abs=1e-9)


def test_batch_z_by_hand_each_trajectory_once():
    values = torch.tensor([1.0, -1.0, 2.0, -2.0])
    std = math.sqrt(10 / 3)
    assert batch_z(values, eps=0.0).tolist() == pytest.approx([1 / std, -1 / std, 2 / std, -2 / std])


def test_the_quality_share_by_hand():
    """R = 1.1, 0.3, 0, 0 has mean 0.35; Q = 1, 0, 0, 0 has mean 0.25 and sample deviation 0.5."""
    parts = [RewardParts(1, 0, 1), RewardParts(0, 1, 0), RewardParts(0, 0, 0), RewardParts(0, 0, 0)]
    one = component(parts, [0] * 4, eps=0.0, whiten=False)
    assert one.quality.tolist() == pytest.approx([0.15, -0.05, -0.05, -0.05])
    other = aggregate(parts, [0] * 4, eps=0.0, whiten=False)
    std = statistics.stdev([1.1, 0.3, 0.0, 0.0])
    assert other.values.tolist() == pytest.approx([0.75 / std, -0.05 / std, -0.35 / std, -0.35 / std])
    assert other.quality.tolist() == pytest.approx([0.075 / std, *[-0.025 / std] * 3])


@given(batches())
@settings(max_examples=100, deadline=None)
def test_without_its_quality_share_an_advantage_is_that_of_the_other_parts(batch):
    parts, groups = batch
    whole = component(parts, groups, whiten=False)
    rest = component(parts, groups, RewardWeights(1.0, 0.3, 0.0), whiten=False)
    assert (whole.values - whole.quality).tolist() == pytest.approx(rest.values.tolist(), abs=1e-9)


@given(batches())
@settings(max_examples=100, deadline=None)
@pytest.mark.parametrize("order", [aggregate, component])
def test_whitening_scales_the_quality_share_as_it_scales_differences(order, batch):
    parts, groups = batch
    raw, white = order(parts, groups, whiten=False), order(parts, groups)
    differences = raw.values - raw.values.roll(1)
    for i in range(len(parts)):
        if abs(differences[i]) > 1e-6 and white.values[i] != 0 and white.values[i - 1] != 0:
            scale = (white.values[i] - white.values[i - 1]) / differences[i]
            assert white.quality[i].item() == pytest.approx((raw.quality[i] * scale).item(), abs=1e-6)


# --- signal -------------------------------------------------------------------------------------
def test_has_signal_by_part_and_weight():
    groups = [0] * 2 + [1] * 2 + [2] * 2 + [3]
    parts = [
        *(RewardParts(1, 0.5, 0.5), RewardParts(0, 0.5, 0.0)),
        *(RewardParts(0, 0.5, 0.0), RewardParts(0, 0.25, 0.0)),
        *(RewardParts(0, 0.5, 0.0), RewardParts(0, 0.5, 0.0)),
        RewardParts(1, 1, 1),
    ]
    assert has_signal(parts, groups).tolist() == [True] * 4 + [False] * 3
    success_only = RewardWeights(1.0, 0.0, 0.0)
    assert has_signal(parts, groups, success_only).tolist() == [True] * 2 + [False] * 5


def test_all_success_groups_are_named_although_quality_differs():
    parts = [RewardParts(1, 1, 1), RewardParts(1, 1, 0.5), RewardParts(1, 1, 1), RewardParts(0, 1, 0)]
    groups = [4, 4, 2, 2]
    assert has_signal(parts, groups).all()
    assert all_success(parts, groups).tolist() == [True, True, False, False]


# --- refusals -----------------------------------------------------------------------------------
def test_a_reward_that_is_not_finite_is_named():
    parts = [RewardParts(1, 0, 0), RewardParts(0, math.nan, 0)]
    for order in (aggregate, component, has_signal):
        with pytest.raises(TrainingError, match="progress of episode 1 is nan"):
            order(parts, [0, 0])


def test_wrong_lengths_are_refused():
    with pytest.raises(TrainingError, match="2 episodes but 3 group ids"):
        component(SIGNAL[:2], [0, 0, 0])
    with pytest.raises(TrainingError, match="without episodes"):
        aggregate([], [])


# --- other comparisons -----------------------------------------------------------------------------
def slow_scores(values, groups, comparison, eps):
    """Loops over episodes."""
    scored = []
    for place, value in enumerate(values):
        mates = [v for v, g in zip(values, groups, strict=True) if g == groups[place]]
        if len(mates) < 2 or max(mates) - min(mates) <= 1e-6 * max(1, *map(abs, mates)):
            scored.append(0.0)
            continue
        others = list(mates)
        if comparison.leave_one_out:
            others.remove(value)
        deviation = max(statistics.stdev(mates), comparison.std_floor)
        scored.append((value - statistics.fmean(others)) / (deviation + eps))
    return scored


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-4, 4)), min_size=1, max_size=12),
    st.booleans(),
    st.sampled_from([0.0, 0.5, 2.0]),
)
def test_every_comparison_agrees_with_a_slow_one(rows, leave_one_out, floor):
    groups, values = [g for g, _ in rows], [v / 4 for _, v in rows]
    comparison = Comparison(leave_one_out, floor)
    fast = group_z(torch.tensor(values), groups, 1e-6, comparison)
    assert fast.tolist() == pytest.approx(slow_scores(values, groups, comparison, 1e-6), abs=1e-9)


def test_leave_one_out_by_hand():
    """Of 1, 2, 6 the others' means are 4, 3.5, 1.5; the deviation is sqrt(7)."""
    parts = [RewardParts(float(v), 0.0, 0.0) for v in (1, 2, 6)]
    made = aggregate(parts, [0, 0, 0], whiten=False, comparison=Comparison(leave_one_out=True))
    expected = [v / 7**0.5 for v in (1 - 4, 2 - 3.5, 6 - 1.5)]
    assert made.values.tolist() == pytest.approx(expected, rel=1e-5)
    assert made.baseline.tolist() == [4.0, 3.5, 1.5] and made.without_own
    whole = component(parts, [0, 0, 0], comparison=Comparison(leave_one_out=True))
    assert whole.values.allclose(component(parts, [0, 0, 0]).values, atol=1e-5), "one factor for all"
    assert whole.baseline.tolist() == [4.0, 3.5, 1.5]


def test_a_floor_on_the_deviation_by_hand():
    """Deviations 0.01 and 1: the first group would make as much of 0.02 as the second of 2."""
    parts = [RewardParts(v, 0.0, 0.0) for v in (0.49, 0.5, 0.51, -1.0, 0.0, 1.0)]
    groups = [0, 0, 0, 1, 1, 1]
    free = aggregate(parts, groups, whiten=False).values
    assert free.tolist() == pytest.approx([-1, 0, 1, -1, 0, 1], abs=1e-3)
    held = aggregate(parts, groups, whiten=False, comparison=Comparison(std_floor=0.1)).values
    assert held.tolist() == pytest.approx([-0.1, 0, 0.1, -1, 0, 1], abs=1e-3)
    off = aggregate(parts, groups, comparison=Comparison(std_floor=0.0)).values
    assert torch.equal(off, aggregate(parts, groups).values)
