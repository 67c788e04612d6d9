"""Token sequences into padded micro-batches: sorted by length, cut by a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_columns
from torch.nn.utils.rnn import pad_sequence

T = TypeVar("T")

#: Most padding of a forward pass, as a share of its tokens.
MAX_PADDING = 0.08


@dataclass(frozen=True)
class SharedPrefix:
    """So many consecutive rows of a batch begin with the same `length` tokens."""

    rows: int
    length: int


@dataclass(frozen=True)
class Sequences:
    """Right-padded sequences.

    token_ids (batch, seq) long; attention_mask (batch, seq) bool, True = real token; loss_mask
    (batch, seq) bool, True = trained; rows: the place of each row in the list they were made from, -1: a
    filler, of which nothing is trained; shared: prefixes to compute once, of all rows in turn, empty: none.
    """

    token_ids: Tensor
    attention_mask: Tensor
    loss_mask: Tensor
    rows: Tensor
    shared: tuple[SharedPrefix, ...] = ()

    def to(self, device: torch.device) -> Sequences:
        return Sequences(
            self.token_ids.to(device),
            self.attention_mask.to(device),
            self.loss_mask.to(device),
            self.rows.to(device),
            self.shared,
        )


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices cut into batches whose padded size (rows x longest) stays within `budget` tokens.

    Sorted by length, and closed before more than `MAX_PADDING` of a batch is padding; a sequence longer
    than the budget is alone in its batch.
    """
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    batches: list[list[int]] = []
    real = 0
    for index in order:
        real += lengths[index]
        padded = (len(batches[-1]) + 1) * lengths[index] if batches else 0
        if batches and padded <= budget and padded - real <= MAX_PADDING * padded:
            batches[-1].append(index)
        else:
            batches.append([index])
            real = lengths[index]
    return batches


def rank_micro_batches(lengths: Sequence[int], budget: int, rank: int, size: int) -> list[list[int]]:
    """The micro-batches of one of `size` processes that share a step; every process gets as many.

    Where a process has fewer, empty lists fill up; `filler` stands in for those. Work is dealt out so that
    all have about the same number of tokens. With one process: `micro_batches`.
    """
    plans = [
        [[share[i] for i in batch] for batch in micro_batches([lengths[i] for i in share], budget)]
        for share in deal(lengths, size)
    ]
    return fill_up(plans, rank, [])


def deal(costs: Sequence[int], size: int) -> list[list[int]]:
    """Indices dealt out, dearest first, each to the share that costs least so far; sorted in each share."""
    shares: list[list[int]] = [[] for _ in range(size)]
    loads = [0] * size
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        least = loads.index(min(loads))
        shares[least].append(index)
        loads[least] += costs[index]
    return [sorted(share) for share in shares]


def fill_up(plans: Sequence[list[T]], rank: int, empty: T) -> list[T]:
    """The plan of one rank, made as long as the longest."""
    return plans[rank] + [empty] * (max(map(len, plans)) - len(plans[rank]))


def filler() -> Sequences:
    """Two tokens of which none is trained: a forward pass with a gradient of zero."""
    return pad([(0, 0)], [(False, False)], [-1])


def pad(
    token_ids: Sequence[Sequence[int]], loss_masks: Sequence[Sequence[bool]], rows: Sequence[int]
) -> Sequences:
    """Stack sequences of different lengths; padding is masked everywhere."""
    for row, (sequence, mask) in enumerate(zip(token_ids, loss_masks, strict=True)):
        if len(sequence) != len(mask):
            raise ValueError(f"row {row} has {len(sequence)} tokens, but {len(mask)} mask values")
    ids = pad_sequence([torch.tensor(ids) for ids in token_ids], batch_first=True)
    loss = pad_sequence([torch.tensor(mask, dtype=torch.bool) for mask in loss_masks], batch_first=True)
    lengths = torch.tensor([len(sequence) for sequence in token_ids])
    attention = torch.arange(ids.shape[1]) < lengths[:, None]
    return Sequences(ids, attention, loss, torch.tensor(list(rows)))


def pad_values(values: Sequence[Sequence[float] | Tensor], width: int) -> Tensor:
    """Per-token numbers (batch, width), zero where padded."""
    rows = pad_sequence([torch.as_tensor(row, dtype=torch.float32) for row in values], batch_first=True)
    return pad_columns(rows, (0, width - rows.shape[1]))
