from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robustops.learning.batching import (
    MAX_PADDING,
    filler,
    micro_batches,
    pad,
    pad_values,
    rank_micro_batches,
)

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


@given(LENGTHS, st.integers(1, 200))
def test_micro_batches_cut_every_sequence_once_within_the_budget(lengths, budget):
    batches = micro_batches(lengths, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[i] for i in batch)
        assert len(batch) == 1 or len(batch) * longest <= budget
        padding = len(batch) * longest - sum(lengths[i] for i in batch)
        assert padding <= MAX_PADDING * len(batch) * longest
    assert [lengths[i] for batch in batches for i in batch] == sorted(lengths)


@given(LENGTHS, st.integers(1, 200))
def test_a_batch_is_closed_only_when_the_next_sequence_does_not_fit(lengths, budget):
    batches = micro_batches(lengths, budget)
    for batch, following in pairwise(batches):
        more = [*batch, following[0]]
        padded = len(more) * lengths[following[0]]
        padding = padded - sum(lengths[i] for i in more)
        assert padded > budget or padding > MAX_PADDING * padded


def test_micro_batches_by_hand():
    # 2+2 padded 4 fit 10; a third row of 5 would make 15.
    assert micro_batches([5, 2, 30, 2, 5], budget=10) == [[1, 3], [0, 4], [2]]
    # 25, 26 and 27 padded to 27 leave 3 of 81 tokens to padding; with 30 it would be 12 of 120.
    assert micro_batches([27, 30, 26, 25], budget=1000) == [[3, 2, 0], [1]]
    assert micro_batches([], budget=10) == []


@given(LENGTHS, st.integers(1, 200), st.integers(1, 5))
def test_every_rank_has_as_many_micro_batches_and_every_sequence_is_on_one_rank(lengths, budget, size):
    plans = [rank_micro_batches(lengths, budget, rank, size) for rank in range(size)]
    assert len({len(plan) for plan in plans}) == 1
    assert sorted(i for plan in plans for batch in plan for i in batch) == list(range(len(lengths)))
    for batch in (batch for plan in plans for batch in plan if batch):
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget
    assert rank_micro_batches(lengths, budget, 0, 1) == micro_batches(lengths, budget)


@given(LENGTHS, st.integers(2, 5))
def test_ranks_get_about_the_same_number_of_tokens(lengths, size):
    plans = [rank_micro_batches(lengths, 10**9, rank, size) for rank in range(size)]
    loads = [sum(lengths[i] for batch in plan for i in batch) for plan in plans]
    assert max(loads) - min(loads) <= max(lengths)


def test_rank_micro_batches_by_hand():
    # Dealt out from the longest on: 30 | 5, 5, 2, 2; the second rank needs two batches of 10 tokens.
    lengths = [5, 2, 30, 2, 5]
    assert rank_micro_batches(lengths, 10, 0, 2) == [[2], []]
    assert rank_micro_batches(lengths, 10, 1, 2) == [[1, 3], [0, 4]]
    assert rank_micro_batches([3], 10, 1, 2) == [[]]


def test_of_a_filler_nothing_is_trained():
    batch = filler()
    assert batch.rows.tolist() == [-1] and not batch.loss_mask.any() and batch.attention_mask.all()


def test_pad_by_hand():
    batch = pad([[7, 8, 9], [4]], [[False, True, True], [True]], rows=[5, 2])
    assert batch.token_ids.tolist() == [[7, 8, 9], [4, 0, 0]]
    assert batch.attention_mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.loss_mask.tolist() == [[False, True, True], [True, False, False]]
    assert batch.rows.tolist() == [5, 2]
    assert batch.token_ids.dtype == torch.long and batch.loss_mask.dtype == torch.bool


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=6))
def test_padding_can_be_taken_off_again(sequences):
    batch = pad(sequences, [[t % 2 == 0 for t in ids] for ids in sequences], range(len(sequences)))
    for row, ids in enumerate(sequences):
        assert batch.token_ids[row][batch.attention_mask[row]].tolist() == ids
        assert batch.loss_mask[row].sum() == sum(t % 2 == 0 for t in ids)
    assert not (batch.loss_mask & ~batch.attention_mask).any()


def test_a_mask_of_another_length_is_refused():
    with pytest.raises(ValueError, match="row 0 has 2 tokens, but 1 mask"):
        pad([[1, 2]], [[True]], [0])
    with pytest.raises(ValueError):
        pad([[1, 2], [3]], [[True, True]], [0, 1])


def test_pad_values_by_hand():
    values = pad_values([[0.5, -1.0], [2.0]], width=3)
    assert values.tolist() == [[0.5, -1.0, 0.0], [2.0, 0.0, 0.0]]
    assert values.dtype == torch.float32


def test_sequences_move_as_a_whole():
    batch = pad([[1, 2]], [[False, True]], [3]).to(torch.device("meta"))
    parts = (batch.token_ids, batch.attention_mask, batch.loss_mask, batch.rows)
    assert {part.device.type for part in parts} == {"meta"}
