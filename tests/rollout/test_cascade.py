"""Shared prefixes: the attention is that of whole rows, and a sampler that shares samples the same tokens."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM

from robustops.rollout import cascade, hf
from robustops.rollout.cascade import (
    NAME,
    CachedPrefix,
    cascade_attention,
    cascade_rows,
    supports_cascade,
)
from robustops.rollout.hf import HFSampler
from robustops.rollout.sampler import Request

CPU = torch.device("cpu")
STOP = 2


def model(seed: int = 0, key_heads: int = 2, dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=key_heads,
        head_dim=8,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return Qwen3ForCausalLM(config).to(dtype).eval()


# ------------------------------------------------------------------------------------ who reads what
def test_rows_by_prefix_by_hand():
    long, short = CachedPrefix(3, 5), CachedPrefix(0, 2)
    rows = cascade_rows([long, None, short, long], 4, CPU)
    assert rows is not None
    assert rows.stored.tolist() == [3, 0] and rows.owner.tolist() == [3, 0, 0, 3]
    assert rows.gathered.tolist() == [0, 3, 2, 2]  # the group of one is padded with its own row
    assert rows.back.tolist() == [0, 0, 2, 1]
    assert (rows.longest, rows.in_order, rows.some_without) == (5, False, True)
    assert rows.visible()[:, 0, 0].tolist() == [
        [True] * 5,
        [False] * 5,
        [True, True, False, False, False],
        [True] * 5,
    ]


def test_without_a_prefix_there_is_nothing_to_share():
    assert cascade_rows([None, None], 2, CPU) is None


# ------------------------------------------------------------------------------------ attention
def slow_attention(query, keys, values):
    """One row, one query: softmax over its own tokens, by hand."""
    scores = torch.tensor([float(query @ key) / len(query) ** 0.5 for key in keys])
    weights = torch.softmax(scores, 0)
    return sum(
        (weight * value for weight, value in zip(weights, values, strict=True)), torch.zeros(len(query))
    )


@settings(max_examples=40, deadline=None)
@given(
    owners=st.lists(st.sampled_from([None, 0, 1, 2]), min_size=1, max_size=5),
    lengths=st.tuples(*[st.integers(1, 6)] * 3),
    width=st.integers(1, 3),
    own=st.integers(0, 4),
    share=st.sampled_from([1, 2]),
    most=st.sampled_from([1, cascade.MAX_SCORES]),
)
def test_attention_is_that_of_whole_rows(owners, lengths, width, own, share, most):
    """For groups of any size, rows without a prefix, several queries, key heads that heads share; whether the
    prefixes are copied (most=1) or not.
    """
    generator = torch.Generator().manual_seed(1)
    heads, kinds, size = 2 * share, 2, 4
    prefixes = [None if owner is None else CachedPrefix(owner, lengths[owner]) for owner in owners]
    rows, total = cascade_rows(prefixes, 3, CPU), own + width
    store = [torch.randn(3, kinds, 8, size, generator=generator) for _ in range(2)]
    query = torch.randn(len(owners), heads, width, size, generator=generator)
    key, value = (torch.randn(len(owners), kinds, total, size, generator=generator) for _ in range(2))
    causal = torch.arange(total) <= own + torch.arange(width)[:, None]
    seen = (len(owners), 1, width, -1)
    mask = causal[None, None].expand(seen)
    given_cascade = None
    if rows is not None:
        mask = torch.cat([rows.visible().expand(seen), mask], dim=-1)
        layer = SimpleNamespace(prefixes=lambda longest: tuple(part[:, :, :longest] for part in store))
        given_cascade = (rows, [layer])
    module = SimpleNamespace(layer_idx=0, num_key_value_groups=share, is_causal=True, training=False)
    before, cascade.MAX_SCORES = cascade.MAX_SCORES, most
    try:
        found, _ = cascade_attention(
            module, query, key, value, mask, scaling=size**-0.5, dropout=0.0, cascade=given_cascade
        )
    finally:
        cascade.MAX_SCORES = before
    for row, prefix in enumerate(prefixes):
        for head in range(heads):
            for token in range(width):
                kind, till = head // share, own + token + 1
                keys, values = list(key[row, kind, :till]), list(value[row, kind, :till])
                if prefix is not None:
                    keys = [*store[0][prefix.row, kind, : prefix.length], *keys]
                    values = [*store[1][prefix.row, kind, : prefix.length], *values]
                want = slow_attention(query[row, head, token], keys, values)
                torch.testing.assert_close(found[row, token, head], want, atol=1e-5, rtol=1e-4)


def test_without_shared_prefixes_a_model_computes_what_it_did_to_the_bit():
    plain, registered = model(), model()
    HFSampler(registered, {STOP})
    assert registered.config._attn_implementation == NAME
    ids = torch.randint(3, 96, (3, 20), generator=torch.Generator().manual_seed(0))
    assert torch.equal(plain(ids).logits, registered(ids).logits)


@pytest.mark.parametrize(
    ("change", "supported"),
    [
        ({}, True),
        ({"dtype": torch.bfloat16}, False),
    ],
)
def test_which_models_are_supported(change, supported):
    assert supports_cascade(model(**change)) is supported


def test_a_sliding_window_is_not_supported():
    windowed = model()
    windowed.config.layer_types = ["sliding_attention", "full_attention"]
    assert not supports_cascade(windowed)


# ------------------------------------------------------------------------------------ the sampler
def conversation(sampler: HFSampler, histories: dict[int, list[int]], turns: dict[int, int]):
    """All messages of all sessions, with replies between them that differ in length."""
    said: dict[int, list] = {session: [] for session in histories}
    grown = {session: list(tokens) for session, tokens in histories.items()}
    for session, tokens in grown.items():
        sampler.submit(Request(session, tuple(tokens), 8, seed=session))
    open_sessions = set(grown)
    while open_sessions:
        for completion in sampler.poll():
            session = completion.session
            said[session].append(completion)
            if len(said[session]) < turns[session]:
                grown[session] += [*completion.token_ids, *[5] * (1 + session % 4)]
                seed = 1000 * session + len(said[session])
                sampler.submit(Request(session, tuple(grown[session]), 8, seed=seed))
            else:
                sampler.release(session)
                open_sessions.remove(session)
    return said


@pytest.mark.parametrize("slots", [4, 32])
@pytest.mark.parametrize("prefill_tokens", [50, 8192])
@pytest.mark.parametrize("key_heads", [2, 4])
def test_sharing_prefixes_changes_no_token(monkeypatch, slots, prefill_tokens, key_heads):
    """Groups of several lengths, and histories that nobody shares; sessions end at different times."""
    draw = random.Random(0)
    prompts = [[draw.randrange(3, 96) for _ in range(length)] for length in (12, 30, 21, 9)]
    histories = {session: prompts[session % 3] for session in range(12)} | {12: prompts[3]}
    turns = {session: 1 + session % 3 for session in histories}
    found = []
    for least in (4, 10**9):
        monkeypatch.setattr(hf, "MIN_PREFIX", least)
        sampler = HFSampler(
            model(key_heads=key_heads), {STOP}, max_in_flight=slots, prefill_tokens=prefill_tokens
        )
        found.append((conversation(sampler, histories, turns), sampler))
    (shared, sampler), (copied, _) = found
    assert sampler.cascades
    for session in histories:
        for one, other in zip(shared[session], copied[session], strict=True):
            assert one.token_ids == other.token_ids
            assert one.log_probs == pytest.approx(other.log_probs, abs=2e-5)


def test_a_prefix_is_computed_and_stored_once(monkeypatch):
    """Of six sessions in two groups, the store has two rows, and slots hold what comes after."""
    monkeypatch.setattr(hf, "MIN_PREFIX", 8)
    shared, tokens = model(), []
    original = shared.base_model.forward

    def counted(*args, **kwargs):
        tokens.append(kwargs["input_ids"].numel())
        return original(*args, **kwargs)

    monkeypatch.setattr(shared.base_model, "forward", counted)
    sampler = HFSampler(shared, {STOP}, max_in_flight=8)
    for session in range(6):
        start = [3 + session % 2] * 60
        sampler.submit(Request(session, tuple(start), 4, seed=session))
    sampler.poll()
    assert tokens == [2 * 59]
    sampler.poll()
    assert tokens == [2 * 59, 6]
    layer = sampler._cache.layers[0]
    assert layer.prefix_keys.shape[0] == 2 and layer.keys.shape[2] < 60
    stats = sampler.prefix_cache_stats()
    assert (stats["queried_tokens"], stats["hit_tokens"]) == (360, 4 * 59)


def test_new_weights_forget_prefixes(monkeypatch):
    monkeypatch.setattr(hf, "MIN_PREFIX", 8)
    sampler = HFSampler(model(), {STOP}, max_in_flight=4)
    start = (7,) * 20

    def first(seed: int):
        for session in (0, 1):
            sampler.submit(Request(session, start, 1, seed=seed))
        done = []
        while len(done) < 2:
            done += sampler.poll()
        return done

    old = first(0)
    with torch.no_grad():
        for parameter in sampler.model.parameters():
            parameter.mul_(0.5)
    sampler.sync([], 1)
    new = first(0)
    fresh = HFSampler(sampler.model, {STOP}, max_in_flight=4)
    for session in (0, 1):
        fresh.submit(Request(session, start, 1, seed=0))
    fresh.poll()
    want = fresh.poll()
    assert [c.log_probs for c in new] == [c.log_probs for c in want] != [c.log_probs for c in old]


def test_a_history_that_changes_within_its_prefix_is_read_again(monkeypatch):
    monkeypatch.setattr(hf, "MIN_PREFIX", 8)
    sampler = HFSampler(model(), {STOP}, max_in_flight=4)

    def ask(session: int, tokens: tuple[int, ...]):
        sampler.submit(Request(session, tokens, 1, seed=3))
        while not (done := sampler.poll()):
            pass
        return done

    for session in (0, 1):
        sampler.submit(Request(session, (7,) * 20, 1, seed=3))
    while len(sampler.poll()) < 2:
        pass
    other = (7,) * 10 + (9,) * 10
    (changed,) = ask(0, other)
    (fresh,) = ask(5, other)
    assert changed.token_ids == fresh.token_ids
    assert changed.log_probs == pytest.approx(fresh.log_probs, abs=1e-6)
