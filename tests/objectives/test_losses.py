import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.errors import TrainingError
from robustops.objectives.losses import (
    MAX_KL_LOG_RATIO,
    episode_token_weights,
    flow_loss,
    flow_weights,
    kl_k1,
    kl_k3,
    policy_loss,
    sft_token_weights,
    truncated_importance,
)


def tensors(*rows):
    return torch.tensor(rows)


# --- policy loss --------------------------------------------------------------------------------
def slow_token(new, old, advantage, low, high):
    ratio = math.exp(new - old)
    cut = min(max(ratio, 1 - low), 1 + high)
    return -min(ratio * advantage, cut * advantage)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-5, 0), st.floats(-5, 0), st.floats(-3, 3), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_equals_the_slow_formula(tokens):
    new, old, advantages = (torch.tensor([[t[i] for t in tokens]]) for i in range(3))
    mask = torch.tensor([[t[3] for t in tokens]])
    terms = policy_loss(new, old, advantages, mask, clip_low=0.2, clip_high=0.28)
    expected = [slow_token(*t[:3], 0.2, 0.28) if t[3] else 0.0 for t in tokens]
    assert terms.loss[0].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_clips_by_hand():
    """Ratios 1.5, 1.5, 0.5, 0.5 with advantages +1, -1, +1, -1: each clip binds on one side only."""
    log_ratio = torch.tensor([[1.5, 1.5, 0.5, 0.5]]).log()
    advantages = tensors([1.0, -1.0, 1.0, -1.0])
    mask = torch.ones(1, 4, dtype=torch.bool)
    terms = policy_loss(log_ratio, torch.zeros(1, 4), advantages, mask, clip_low=0.2, clip_high=0.3)
    assert terms.loss[0].tolist() == pytest.approx([-1.3, 1.5, -0.5, 0.8])
    assert terms.clip_high[0].tolist() == [True, False, False, False]
    assert terms.clip_low[0].tolist() == [False, False, False, True]


def test_no_gradient_where_a_clip_binds():
    new = torch.tensor([[1.5, 1.5, 0.5, 0.5]]).log().requires_grad_()
    mask = torch.ones(1, 4, dtype=torch.bool)
    policy_loss(new, torch.zeros(1, 4), tensors([1.0, -1.0, 1.0, -1.0]), mask).loss.sum().backward()
    assert new.grad is not None
    assert new.grad[0].tolist() == pytest.approx([0.0, 1.5, -0.5, 0.0])


def test_on_policy_gradient_is_the_policy_gradient():
    new = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    policy_loss(new, new.detach(), tensors([0.7, -0.3]), mask).loss.sum().backward()
    assert new.grad is not None
    torch.testing.assert_close(new.grad, tensors([-0.7, 0.3]))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_masked_token_adds_no_loss_and_no_gradient_whatever_it_holds(level):
    new = torch.tensor([[-1.0, math.inf, math.nan, -3.0]], requires_grad=True)
    old = tensors([-1.5, -math.inf, 2.0, -2.5])
    advantages = tensors([1.0, math.nan, math.inf, -1.0])
    mask = torch.tensor([[True, False, False, True]])
    terms = policy_loss(new, old, advantages, mask, level=level)
    (terms.loss + kl_k3(new, old, mask)).sum().backward()
    assert new.grad is not None
    assert terms.loss.isfinite().all() and new.grad.isfinite().all()
    assert terms.loss[0, 1:3].eq(0).all() and new.grad[0, 1:3].eq(0).all()
    assert terms.ratio[0, 1:3].eq(0).all()


def test_a_huge_log_ratio_stays_finite():
    for dtype in (torch.float32, torch.bfloat16):
        new = torch.tensor([[100.0]], dtype=dtype, requires_grad=True)
        loss = policy_loss(new, torch.zeros(1, 1), tensors([-1.0]), torch.ones(1, 1, dtype=torch.bool)).loss
        loss.sum().backward()
        assert loss.isfinite().all() and new.grad is not None and new.grad.isfinite().all()


def test_sequence_level_uses_the_mean_log_ratio_of_each_row():
    log_ratio = tensors([0.1, 0.3, 9.0], [-0.2, 0.2, 0.0])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    advantages = torch.ones(2, 3)
    terms = policy_loss(
        log_ratio, torch.zeros(2, 3), advantages, mask, clip_low=0.9, clip_high=0.9, level="sequence"
    )
    assert terms.ratio[0].tolist() == pytest.approx([math.exp(0.2)] * 2 + [0.0])
    assert terms.ratio[1].tolist() == pytest.approx([1.0] * 3)
    assert terms.loss[0].tolist() == pytest.approx([-math.exp(0.2)] * 2 + [0.0])


def test_an_unknown_level_is_refused():
    with pytest.raises(TrainingError, match="sequence, token"):
        one = torch.zeros(1, 1)
        policy_loss(one, one, one, one.bool(), level="word")  # type: ignore[arg-type]


# --- KL -----------------------------------------------------------------------------------------
@given(st.floats(-8, 8), st.floats(-8, 1))
@settings(deadline=None)
def test_k3_equals_its_formula_and_is_never_negative(new, ref):
    d = ref - new
    if d > MAX_KL_LOG_RATIO:
        return
    value = kl_k3(torch.tensor([new]), torch.tensor([ref])).item()
    assert value == pytest.approx(math.exp(d) - d - 1, rel=1e-3, abs=2e-6)
    assert value >= -1e-6


def test_k3_is_zero_with_zero_gradient_where_the_policies_agree():
    new = torch.tensor([-0.3, -7.0], requires_grad=True)
    value = kl_k3(new, new.detach())
    value.sum().backward()
    assert value.abs().max() < 1e-6 and new.grad is not None and new.grad.abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_k3_of_a_log_ratio_of_100_is_finite_with_a_bounded_gradient(gap, dtype):
    new = torch.tensor([0.0], dtype=dtype, requires_grad=True)
    value = kl_k3(new, torch.tensor([gap], dtype=dtype))
    value.sum().backward()
    assert value.isfinite().all() and value.item() > 90
    assert new.grad is not None
    assert 0 < abs(new.grad.item()) <= math.exp(MAX_KL_LOG_RATIO) * 1.01


def test_k3_joins_its_tangent_smoothly():
    gaps = torch.tensor([MAX_KL_LOG_RATIO - 1e-3, MAX_KL_LOG_RATIO, MAX_KL_LOG_RATIO + 1e-3])
    new = torch.zeros(3, requires_grad=True)
    value = kl_k3(new, gaps)
    value.sum().backward()
    assert new.grad is not None
    steps = value.diff() / 1e-3
    assert steps[0].item() == pytest.approx(steps[1].item(), rel=0.02)
    assert new.grad.max().item() == pytest.approx(new.grad.min().item(), rel=0.01)


def test_both_estimators_estimate_the_kl_divergence():
    """Exact expectation over a three-way choice."""
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    exact = (policy * (policy / reference).log()).sum().item()
    for estimator in (kl_k1, kl_k3):
        expected = (policy * estimator(policy.log(), reference.log())).sum().item()
        assert expected == pytest.approx(exact, abs=1e-6)


# --- flows --------------------------------------------------------------------------------------
def test_flow_weights_by_hand():
    assert flow_weights(10, 40) == (0.05, 0.0125)
    assert flow_weights(10, 0) == (0.1, 0.0)
    assert flow_weights(0, 4) == (0.0, 0.25)
    assert flow_weights(0, 0) == (0.0, 0.0)
    with pytest.raises(TrainingError, match="negative"):
        flow_weights(-1, 3)


def test_flow_loss_by_hand():
    """Clean mean 3, fault mean 1: equal weight whatever the token counts."""
    assert flow_loss(torch.tensor(6.0), 2, torch.tensor(100.0), 100).item() == pytest.approx(2.0)
    assert flow_loss(torch.tensor(6.0), 2, torch.tensor(0.0), 0).item() == pytest.approx(3.0)
    assert flow_loss(torch.tensor(0.0), 0, torch.tensor(0.0), 0).item() == 0.0


def make_step(rows=9, width=11):
    torch.manual_seed(3)
    values = {
        "features": torch.randn(rows, width, 5, dtype=torch.float64),
        "old": -torch.rand(rows, width, dtype=torch.float64),
        "ref": -torch.rand(rows, width, dtype=torch.float64),
        "advantages": torch.randn(rows, width, dtype=torch.float64),
        "mask": torch.rand(rows, width) < 0.6,
        "fault": torch.tensor([row % 3 == 0 for row in range(rows)]),
    }
    values["mask"][4] = False  # an episode without a trained token
    return values


def step_loss(step, split, level, aggregation="token"):
    """Loss and gradient of a linear model when the rows are worked off in the given batches."""
    model = torch.full((5,), 0.1, dtype=torch.float64, requires_grad=True)
    counts = step["mask"].sum(dim=1).tolist()
    weights = torch.tensor(episode_token_weights(counts, step["fault"].tolist(), aggregation))
    loss = 0.0
    for rows in split:
        part = {name: value[rows] for name, value in step.items()}
        new = (part["features"] @ model).tanh() - 1
        terms = policy_loss(new, part["old"], part["advantages"], part["mask"], level=level).loss
        terms = terms + 0.01 * kl_k3(new, part["ref"], part["mask"])
        piece = (weights[rows][:, None] * part["mask"] * terms).sum()
        piece.backward()
        loss += piece.item()
    return loss, model.grad


@pytest.mark.parametrize("aggregation", ["token", "trajectory"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_loss_and_gradient_do_not_depend_on_the_micro_batches(level, aggregation):
    step = make_step()
    whole, whole_gradient = step_loss(step, [list(range(9))], level, aggregation)
    for seed in range(8):
        order = list(range(9))
        random.Random(seed).shuffle(order)
        size = seed % 4 + 1
        split = [order[i : i + size] for i in range(0, 9, size)]
        loss, gradient = step_loss(step, split, level, aggregation)
        assert loss == pytest.approx(whole, abs=1e-6)
        torch.testing.assert_close(gradient, whole_gradient, atol=1e-6, rtol=0)


def test_token_weights_reproduce_the_flow_loss():
    step = make_step()
    terms = torch.randn(9, 11)
    fault, mask = step["fault"], step["mask"]
    clean_sum, fault_sum = (terms[rows][mask[rows]].sum() for rows in (~fault, fault))
    counts = int(mask[~fault].sum()), int(mask[fault].sum())
    weights = torch.tensor(episode_token_weights(mask.sum(dim=1).tolist(), fault.tolist()))
    weighted = (weights[:, None] * mask * terms).sum()
    torch.testing.assert_close(weighted, flow_loss(clean_sum, counts[0], fault_sum, counts[1]))


def test_trajectory_weights_are_the_mean_of_each_flow_s_trajectory_means():
    step = make_step()
    terms = torch.randn(9, 11)
    fault, mask = step["fault"], step["mask"]
    weights = torch.tensor(episode_token_weights(mask.sum(dim=1).tolist(), fault.tolist(), "trajectory"))
    flows = []
    for rows in (~fault, fault):
        means = [row[keep].mean() for row, keep in zip(terms[rows], mask[rows], strict=True) if keep.any()]
        flows.append(torch.stack(means).mean())
    torch.testing.assert_close((weights[:, None] * mask * terms).sum(), torch.stack(flows).mean())


def test_episode_token_weights_by_hand():
    """Two clean episodes of 2 and 6 tokens, one of the fault flow with 5, one without a trained token."""
    tokens, is_fault = [2, 6, 5, 0], [False, False, True, True]
    assert episode_token_weights(tokens, is_fault) == [1 / 16, 1 / 16, 1 / 10, 1 / 10]
    assert episode_token_weights(tokens, is_fault, "trajectory") == [1 / 8, 1 / 24, 1 / 10, 0.0]
    assert episode_token_weights([2, 6], [False, False], "trajectory") == [1 / 4, 1 / 12]
    assert episode_token_weights([], []) == []
    with pytest.raises(TrainingError, match="unknown aggregation 'row'; choose one of: token, trajectory"):
        episode_token_weights(tokens, is_fault, "row")


# --- SFT ----------------------------------------------------------------------------------------
def test_decisions_share_equally_then_their_tokens():
    """Three decisions of 1, 2 and 4 tokens: a third each."""
    mask = [False, True, False, True, True, False, True, True, True, True]
    weights = sft_token_weights(mask, [(1, 2), (3, 5), (6, 10)])
    sixth, twelfth = 1 / 6, 1 / 12
    assert weights.tolist() == pytest.approx([0, 2 * sixth, 0, sixth, sixth, 0, *[twelfth] * 4])


def test_invalid_decisions_leave_their_share_to_the_others():
    mask = [False, True, True, False, False, True, True]
    weights = sft_token_weights(mask, [(1, 3), (3, 5), (5, 7)])
    assert weights.tolist() == pytest.approx([0, 0.25, 0.25, 0, 0, 0.25, 0.25])
    only_first = sft_token_weights(mask, [(1, 3)])
    assert only_first.tolist() == pytest.approx([0, 0.5, 0.5, 0, 0, 0, 0])


def test_partly_masked_decision():
    weights = sft_token_weights([False, True, False, True], [(1, 4)])
    assert weights.tolist() == [0.0, 0.5, 0.0, 0.5]


def test_a_trajectory_without_valid_decisions_weighs_nothing():
    assert sft_token_weights([False] * 4, [(1, 3)]).eq(0).all()
    assert sft_token_weights([True] * 4, []).eq(0).all()
    assert sft_token_weights([True], [(0, 1)]).eq(0).all()


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.booleans(), min_size=1, max_size=5)), max_size=6))
@settings(deadline=None)
def test_weights_sum_to_one(decisions):
    mask, spans = [False], []
    for gap, tokens in decisions:
        mask += [False] * gap
        spans.append((len(mask), len(mask) + len(tokens)))
        mask += tokens
    weights = sft_token_weights(mask, spans)
    shares = [weights[a:b].sum().item() for a, b in spans if any(mask[a:b])]
    assert weights.sum().item() == pytest.approx(1.0 if shares else 0.0, abs=1e-5)
    assert shares == pytest.approx([1 / len(shares)] * len(shares) if shares else [])
    assert bool((weights[~torch.tensor(mask)] == 0).all())


@pytest.mark.parametrize("spans", [[(1, 3), (2, 4)], [(3, 9)], [(2, 2)], [(-1, 2)]])
def test_bad_spans_are_refused(spans):
    with pytest.raises(TrainingError, match="decision span"):
        sft_token_weights([False, True, True, True], spans)


# --- mismatch of sampler and trainer -------------------------------------------------------------
def test_truncated_importance_by_hand():
    """Twice as likely for the trainer, half as likely, and ten times: cut at 3."""
    trainer = tensors([math.log(2.0), math.log(0.5), math.log(10.0), 0.0]).requires_grad_()
    mask = torch.tensor([[True, True, True, False]])
    weights = truncated_importance(trainer, torch.zeros(1, 4), mask, cap=3.0)
    assert weights[0].tolist() == pytest.approx([2.0, 0.5, 3.0, 0.0])
    assert not weights.requires_grad


@given(st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0), st.booleans()), min_size=1, max_size=9))
@settings(deadline=None)
def test_truncated_importance_equals_its_slow_version(tokens):
    trainer, sampler = (torch.tensor([[t[i] for t in tokens]]) for i in range(2))
    mask = torch.tensor([[t[2] for t in tokens]])
    weights = truncated_importance(trainer, sampler, mask, cap=2.0)
    expected = [min(math.exp(t[0] - t[1]), 2.0) if t[2] else 0.0 for t in tokens]
    assert weights[0].tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("estimator", [kl_k1, kl_k3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_a_log_ratio_of_a_hundred_gives_a_finite_kl_and_a_bounded_gradient(estimator, dtype, gap):
    new = torch.tensor([[-1.0]], dtype=dtype, requires_grad=True)
    kl = estimator(new, torch.tensor([[-1.0 + gap]], dtype=dtype), torch.ones(1, 1, dtype=torch.bool))
    kl.sum().backward()
    assert kl.isfinite().all() and new.grad is not None
    assert new.grad.isfinite().all() and new.grad.abs().max() < 3e4
