from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robustops.errors import TrainingError
from robustops.learning.adapters import add_lora
from robustops.learning.batching import MAX_PADDING, SharedPrefix, pad, rank_micro_batches
from robustops.learning.data import RolloutTicket
from robustops.learning.forward import score_tokens
from robustops.learning.policy import Policy, Reference
from robustops.learning.shared_prefix import (
    KEYS_PER_TOKEN,
    MicroBatch,
    can_share,
    common_prefix,
    length_buckets,
    padding_share,
    plan_micro_batches,
)
from robustops.objectives.advantages import component
from robustops.settings import LoRASettings
from tests.learning.grpo_cases import (
    LOSS,
    grpo_module,
    one_step,
    reference_model,
    sharing_groups,
    slow_terms,
)
from tests.learning.support import Gradients, Metrics, fit
from tests.tiny_model import prompt, shake, tiny_model

EXACT = {"atol": 1e-6, "rtol": 1e-5}


@pytest.fixture(scope="module")
def model():
    return tiny_model(seed=3, width=32)


@pytest.fixture(scope="module")
def reference():
    return reference_model()


def rows_of(prefix: int, suffixes: list[int], *, untrained: int = 0, seed: int = 0):
    """Token ids and loss masks of a group; every third token of a suffix is not trained, nor the first
    `untrained` ones.
    """
    begin = prompt(prefix, seed=1000 + seed)
    ids = [[*begin, *prompt(n, seed=100 * seed + k)] for k, n in enumerate(suffixes)]
    masks = [[False] * prefix + [k % 3 != 2 and k >= untrained for k in range(n)] for n in suffixes]
    return ids, masks


class Passes:
    """Counts the tokens that a model computes."""

    def __init__(self, model):
        self.tokens: list[int] = []
        self.handle = model.base_model.register_forward_pre_hook(self.see, with_kwargs=True)

    def see(self, module, args, kwargs):
        self.tokens.append(kwargs["input_ids"].numel())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.handle.remove()


# --- the prefix ------------------------------------------------------------------------------------
def test_common_prefix_by_hand():
    masks = [[False] * 4 + [True], [False] * 5]
    assert common_prefix([[1, 2, 3, 4, 5], [1, 2, 9, 4, 5]], masks) == 2
    assert common_prefix([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]], masks) == 3, "token 3 predicts the trained one"
    assert common_prefix([[1, 2, 3], [1, 2, 3, 4]], [[False] * 3, [False] * 4]) == 2, "a token a row is left"
    assert common_prefix([[1, 2, 3, 4]], [[False, False, True, True]]) == 1
    assert common_prefix([[1, 2], [1, 2]], [[True, True], [False, True]]) == 0
    assert common_prefix([[7]], [[False]]) == 0


@given(st.lists(st.lists(st.tuples(st.integers(0, 1), st.booleans()), min_size=1, max_size=9), min_size=1))
def test_a_common_prefix_is_the_longest_without_trained_tokens(rows):
    ids, masks = [[t for t, _ in row] for row in rows], [[m for _, m in row] for row in rows]

    def allowed(n):
        return all(
            i[:n] == ids[0][:n] and len(i) > n and not any(m[: n + 1])
            for i, m in zip(ids, masks, strict=True)
        )

    length = common_prefix(ids, masks)
    assert length == 0 or allowed(length)
    assert not allowed(length + 1)


# --- the plan --------------------------------------------------------------------------------------
GROUPS = st.lists(
    st.tuples(st.integers(1, 90), st.lists(st.integers(1, 60), min_size=1, max_size=6)),
    min_size=1,
    max_size=5,
)


@given(GROUPS, st.integers(1, 900), st.integers(1, 3))
def test_a_plan_holds_every_row_once_within_the_budget_on_one_rank(made, budget, size):
    ids, masks, groups = [], [], []
    for number, (prefix, suffixes) in enumerate(made):
        more = rows_of(prefix, suffixes, seed=number)
        ids, masks, groups = ids + more[0], masks + more[1], groups + [number] * len(suffixes)
    plans = [plan_micro_batches(ids, masks, groups, budget, rank, size) for rank in range(size)]
    assert len({len(plan) for plan in plans}) == 1
    assert sorted(i for plan in plans for part in plan for i in part.rows) == list(range(len(ids)))
    for part in (part for plan in plans for part in plan if part.rows):
        at, longest = 0, max(len(ids[i]) for i in part.rows)
        if not part.shared:
            assert len(part.rows) == 1 or len(part.rows) * longest <= budget
            continue
        assert sum(shared.rows for shared in part.shared) == len(part.rows)
        for shared in part.shared:
            members = part.rows[at : at + shared.rows]
            assert len({groups[i] for i in members}) == 1 and shared.rows > 1
            assert shared.length == common_prefix([ids[i] for i in members], [masks[i] for i in members])
            at += shared.rows
        prefix, rows = max(shared.length for shared in part.shared), len(part.rows)
        suffix = max(len(ids[i]) - s.length for i, s in zip(part.rows, spread(part), strict=True))
        assert len(part.shared) * prefix + rows * suffix + rows * prefix // KEYS_PER_TOKEN <= budget


def spread(part: MicroBatch) -> list[SharedPrefix]:
    return [shared for shared in part.shared for _ in range(shared.rows)]


def test_a_plan_by_hand():
    """A prefix of 49 (its last token predicts the first trained one) and suffixes; then short rows."""
    long, short = rows_of(50, [10, 20, 10], seed=1), rows_of(8, [10, 12], seed=2)
    ids, masks = long[0] + short[0], long[1] + short[1]
    plan = plan_micro_batches(ids, masks, [0, 0, 0, 1, 1], 1000)
    assert plan == [MicroBatch((3, 4)), MicroBatch((0, 1, 2), (SharedPrefix(3, 49),))]
    # Two rows fit into 49 + 2 x 11 + 2 x 49 / 8 = 83 tokens; the third is left alone.
    assert plan_micro_batches(ids, masks, [0, 0, 0, 1, 1], 83)[-1] == MicroBatch(
        (0, 2), (SharedPrefix(2, 49),)
    )
    assert [part.rows for part in plan_micro_batches(ids, masks, [0, 0, 0, 1, 1], 82)] == [
        tuple(rows) for rows in rank_micro_batches([len(i) for i in ids], 82, 0, 1)
    ]
    assert plan_micro_batches(ids, masks, [0, 0, 0, 1, 1], 1000, 1, 2) == [MicroBatch((3, 4))]


def test_unlike_prefixes_are_not_padded_to_each_other():
    ids, masks = rows_of(50, [5, 5], seed=1)
    more, others = rows_of(90, [5, 5], seed=2)
    plan = plan_micro_batches(ids + more, masks + others, [0, 0, 1, 1], 10_000)
    assert [part.rows for part in plan] == [(0, 1), (2, 3)]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(0, 200))
def test_length_buckets_keep_the_padding_bound_and_cost_no_more_than_one_a_row(lengths, call):
    buckets = length_buckets(lengths, call)
    assert sorted(i for bucket in buckets for i in bucket) == list(range(len(lengths)))
    assert [lengths[i] for bucket in buckets for i in bucket] == sorted(lengths)
    padded = sum(len(bucket) * max(lengths[i] for i in bucket) for bucket in buckets)
    assert padded - sum(lengths) <= MAX_PADDING * padded
    assert padded + len(buckets) * call <= sum(lengths) + len(lengths) * call


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(0, 20))
def test_length_buckets_are_the_cheapest_of_all_cuts_where_the_cheapest_keeps_the_bound(lengths, call):
    rows = sorted(lengths)
    prices = {}
    for cuts in product([False, True], repeat=len(rows) - 1):
        ends = [n for n, cut in enumerate(cuts, 1) if cut] + [len(rows)]
        padded = sum((end - at) * rows[end - 1] for at, end in zip([0, *ends], ends, strict=False))
        prices[padded + len(ends) * call] = max(padded, prices.get(padded + len(ends) * call, 0))
    least = min(prices)
    buckets = length_buckets(lengths, call)
    price = sum(len(bucket) * lengths[bucket[-1]] + call for bucket in buckets)
    assert price >= least
    if prices[least] - sum(rows) <= MAX_PADDING * prices[least]:
        assert price == least


def test_length_buckets_by_hand():
    assert length_buckets([9, 1, 9, 1, 8], call=3) == [[1, 3], [4, 0, 2]]
    # One bucket would be cheapest, but 17 of its 45 tokens would be padding.
    assert length_buckets([9, 1, 9, 1, 8], call=100) == [[1, 3], [4, 0, 2]]
    # 1 of 27 tokens may be padding.
    assert length_buckets([9, 9, 8], call=3) == [[2, 0, 1]]


def test_padding_share_of_plain_batches_by_hand():
    # Rows 4 and 2 padded to 4: 8 cells for 6 tokens; row 10 alone: 10 of 10. 16 tokens in 18 cells.
    assert padding_share([4, 2, 10], [MicroBatch((0, 1)), MicroBatch((2,))]) == pytest.approx(1 - 16 / 18)
    assert padding_share([3, 3], [MicroBatch((0, 1))]) == 0
    assert padding_share([], []) == 0


def test_the_padding_share_is_of_the_tokens_that_are_computed(model):
    ids, masks = rows_of(60, [5, 70, 66, 9], seed=1)
    more, others = rows_of(63, [40, 44], seed=2)
    ids, masks = ids + more + [list(prompt(30, seed=9))], masks + others + [[False] * 29 + [True]]
    plan = plan_micro_batches(ids, masks, [0, 0, 0, 0, 1, 1, 2], 10_000)
    with Passes(model) as passes, torch.no_grad():
        for part in plan:
            given = pad([ids[i] for i in part.rows], [masks[i] for i in part.rows], part.rows)
            score_tokens(model, replace(given, shared=part.shared))
    lengths = [len(row) for row in ids]
    real = sum(lengths) - 3 * 59 - 62
    assert len(plan) == 2 and len(passes.tokens) == 5, "a plain pass; the prefixes, three of suffixes"
    assert padding_share(lengths, plan) == pytest.approx(1 - real / sum(passes.tokens)) and real < sum(
        passes.tokens
    )
    assert padding_share([], []) == 0 == padding_share([3], [MicroBatch((0,)), MicroBatch()])


def test_uneven_episodes_leave_less_than_a_tenth_to_padding():
    generator = torch.Generator().manual_seed(1)
    draw = lambda low, high: int(torch.randint(low, high, (1,), generator=generator))  # noqa: E731
    ids, masks, groups = [], [], []
    for number in range(8):
        more = rows_of(draw(180, 240), [draw(60, 200) for _ in range(8)], seed=number)
        ids, masks, groups = ids + more[0], masks + more[1], groups + [number] * 8
    plan = plan_micro_batches(ids, masks, groups, 8192)
    assert all(part.shared for part in plan)
    assert 0 < padding_share([len(row) for row in ids], plan) < 0.1


# --- the forward pass ------------------------------------------------------------------------------
CASES = {
    "equal": [(40, [12, 12, 12], 0)],
    "uneven": [(40, [3, 150, 30, 31], 0)],
    "one token of its own": [(40, [1, 20], 0)],
    "nothing trained in a row": [(40, [2, 20], 2)],
    "trained late": [(40, [20, 24], 9)],
    "one row": [(40, [12], 0)],
    "two groups": [(40, [12, 5], 0), (44, [9, 30, 2], 0)],
}


def both(case):
    """The batch of a case, plain and with its prefixes."""
    ids, masks, shared = [], [], []
    for seed, (prefix, suffixes, untrained) in enumerate(case):
        more = rows_of(prefix, suffixes, untrained=untrained, seed=seed)
        ids, masks = ids + more[0], masks + more[1]
        shared.append(SharedPrefix(len(suffixes), common_prefix(*more)))
    plain = pad(ids, masks, range(len(ids)))
    return plain, replace(plain, shared=tuple(shared))


@pytest.mark.parametrize("max_logits", [2**25, 4096], ids=["whole", "sliced"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_scores_and_gradients_are_those_of_whole_rows(model, case, max_logits):
    plain, shared = both(case)
    weights = torch.rand(plain.token_ids.shape, generator=torch.Generator().manual_seed(1))
    found = []
    for batch in (plain, shared):
        scores = score_tokens(model, batch, temperature=0.8, max_logits=max_logits)
        gradients = torch.autograd.grad((scores.log_probs * weights).sum(), list(model.parameters()))
        found.append((scores, torch.cat([g.flatten() for g in gradients])))
    (wanted, exact), (got, near) = found
    torch.testing.assert_close(got.log_probs, wanted.log_probs, atol=5e-6, rtol=1e-6)
    torch.testing.assert_close(got.entropy, wanted.entropy, atol=5e-6, rtol=1e-6)
    assert exact.norm() > 0.1 and (near - exact).norm() < 1e-5 * exact.norm()


def test_the_prefix_is_computed_once(model):
    _, shared = both(CASES["equal"])
    with Passes(model) as passes:
        score_tokens(model, shared)
    assert passes.tokens == [39, 3 * 13]


def test_a_change_in_the_prefix_reaches_all_rows(model):
    plain, shared = both(CASES["two groups"])
    before = score_tokens(model, shared).log_probs
    ids = shared.token_ids.clone()
    ids[:2, 5] = 77
    after = score_tokens(model, replace(shared, token_ids=ids)).log_probs
    moved = (before != after) & plain.loss_mask
    assert moved[0].any() and moved[1].any() and not moved[2:].any()


def test_models_that_cannot_share_are_told(model):
    assert can_share(model)
    for attribute, value in (
        ("_attn_implementation", "eager"),
        ("layer_types", ["full_attention", "sliding_attention"]),
    ):
        other = tiny_model(seed=3, width=32)
        setattr(other.config, attribute, value)
        assert not can_share(other)
    checkpointed = tiny_model(seed=3, width=32)
    checkpointed.activation_checkpointing_enable({"use_reentrant": False})
    assert can_share(checkpointed.eval()) and not can_share(checkpointed.train())
    spread_out = tiny_model(seed=3, width=32)
    next(spread_out.parameters()).ds_id = 0
    assert not can_share(spread_out)


# --- a training step -------------------------------------------------------------------------------
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("aggregation", ["token", "trajectory"])
def test_loss_and_gradient_are_those_of_the_slow_reference(tmp_path, reference, aggregation, share):
    model, loss = tiny_model(seed=3, width=32), replace(LOSS, aggregation=aggregation)
    slow = slow_terms(model, reference, sharing_groups(), component, loss)
    slow.backward()
    trained = tiny_model(seed=3, width=32)
    with Passes(trained) as passes:
        metrics, gradient, _ = one_step(
            tmp_path, reference, sharing_groups(), model=trained, loss=loss, share_prefix=share
        )
    assert (sum(passes.tokens) < 300) == share, "six rows of 343 tokens in all"
    assert metrics["train/loss"] == pytest.approx(slow.item(), abs=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradient[f"model.{name}"], parameter.grad, **EXACT)


def test_the_micro_batch_budget_changes_neither_loss_nor_gradient(tmp_path, reference):
    plain_metrics, wanted, _ = one_step(tmp_path, reference, sharing_groups(), share_prefix=False)
    for budget in (1, 100, 170, 10_000):
        metrics, gradient, _ = one_step(tmp_path, reference, sharing_groups(), micro_batch_tokens=budget)
        for name in ("train/loss", "ratio_max", "kl_ref_k3", "clip_frac", "entropy", "grad_norm"):
            assert metrics[name] == pytest.approx(plain_metrics[name], rel=1e-5, abs=1e-6)
        for name in wanted:
            torch.testing.assert_close(gradient[name], wanted[name], **EXACT)


def test_old_log_probs_are_put_back_to_their_episodes(reference):
    loss = replace(LOSS, importance_cap=2.0)
    found = []
    for share in (True, False):
        module = grpo_module(reference, loss=loss, mini_batches=2, share_prefix=share)
        groups = sharing_groups()
        rows, _ = module._prepare(groups, [e for group in groups for e in group.episodes])
        found.append(rows)
    for one, two in zip(*found, strict=True):
        assert len(one.old_log_probs) == len(one.episode.token_ids)
        torch.testing.assert_close(one.old_log_probs, two.old_log_probs, atol=5e-6, rtol=1e-6)


def test_a_nan_logit_names_step_episode_and_token(tmp_path, reference):
    """The third trained token of the second member of the clean group."""
    calls = []

    def spoil(head, inputs, logits):
        calls.append(len(logits))
        if len(calls) > 1:
            return logits
        logits = logits.clone()
        logits[11 + 2, 5] = float("nan")
        return logits

    module = grpo_module(reference)
    module.model.get_output_embeddings().register_forward_hook(spoil)
    with pytest.raises(TrainingError) as caught:
        fit(tmp_path, module, 1, lambda step: RolloutTicket(step, [sharing_groups()[0]]))
    assert calls == [11 + 7 + 1], "one micro-batch"
    assert str(caught.value).startswith("step 1: log-prob under the trained policy is nan at token 42 ")
    assert "of episode 2 of made/oracle (clean)" in str(caught.value)


def test_the_reference_beneath_adapters_shares_prefixes_too(tmp_path):
    found = []
    for share in (True, False):
        model = tiny_model(seed=3, width=32)
        add_lora(model, LoRASettings(rank=4, alpha=8.0))
        shake(model, seed=4)
        module = grpo_module(None, model=model, share_prefix=share)
        module.reference = Policy(model, None, None).reference()
        assert isinstance(module.reference, Reference) and module.reference.adapted
        metrics, gradients = Metrics(), Gradients()
        fit(tmp_path, module, 1, lambda step: RolloutTicket(step, sharing_groups()), metrics, gradients)
        found.append((metrics.steps[0], gradients.steps[0]))
    (one, near), (two, exact) = found
    assert one["kl_ref_k3"] > 1e-3
    for name in ("train/loss", "kl_ref_k3", "train/kl_ref_max", "grad_norm"):
        assert one[name] == pytest.approx(two[name], rel=1e-4)
    assert near.keys() == exact.keys() and all(".lora_" in name for name in near)
    for name in near:
        torch.testing.assert_close(near[name], exact[name], atol=1e-5, rtol=1e-4)
