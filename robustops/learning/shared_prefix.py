"""The tokens that the rows of a group have in common, computed once for all of them.

The members of a group begin with the same prompt, those of a fault group with the same dialogue up to the
faulty reply. A micro-batch of such groups takes one forward pass over a prefix of each, and one or more
over the rows' remaining tokens (suffixes), whose attention reads the keys and values of the prefix. The
gradient goes through these, so it is that of the whole rows. No prefix holds a trained token, nor the token
before one.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from robustops.learning.batching import MAX_PADDING, Sequences, SharedPrefix, deal, fill_up, micro_batches
from robustops.learning.policy import recomputes_activations
from robustops.learning.processes import partitioned
from robustops.rollout.cascade import NAME as CASCADE
from robustops.rollout.slot_cache import cache_argument

#: Tokens of a prefix that is worth a pass of its own, and the share of a group's tokens it has to save.
MIN_PREFIX = 32
MIN_SAVING = 0.25
#: What a further forward pass costs beside its tokens, in tokens: suffixes of unlike lengths are padded
#: rather than split as long as that is cheaper, and `MAX_PADDING` is kept.
CALL_TOKENS = 64
#: Rows of prefix keys and values that take the memory of one token's activations, at the least.
KEYS_PER_TOKEN = 8


@dataclass(frozen=True)
class MicroBatch:
    """rows: row numbers, empty: a filler stands in; shared: what consecutive ones of them have in common,
    empty: nothing that is computed once.
    """

    rows: tuple[int, ...] = ()
    shared: tuple[SharedPrefix, ...] = ()


@dataclass(frozen=True)
class _Unit:
    """Rows that stay together. prefix: tokens computed once, 0: none; longest: tokens of a suffix; tokens:
    computed ones.
    """

    rows: tuple[int, ...]
    prefix: int
    longest: int
    tokens: int


# planning -----------------------------------------------------------------------------------------
def common_prefix(token_ids: Sequence[Sequence[int]], loss_masks: Sequence[Sequence[bool]]) -> int:
    """Length of the prefix that rows can share: equal in all; neither a trained token, nor the token before
    one, nor the last token of a row is in it.
    """
    ordered = sorted(map(tuple, token_ids))
    low, high = ordered[0], ordered[-1]
    equal = next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    first = min((list(mask).index(True) for mask in loss_masks if any(mask)), default=equal + 1)
    return max(0, min(equal, first - 1, min(map(len, token_ids)) - 1))


def plan_micro_batches(
    token_ids: Sequence[Sequence[int]],
    loss_masks: Sequence[Sequence[bool]],
    groups: Sequence[Hashable],
    budget: int,
    rank: int = 0,
    size: int = 1,
) -> list[MicroBatch]:
    """The micro-batches of one of `size` processes that share a step; every process gets as many.

    groups: what the rows of a group have in common. Rows of a group stay together where its prefix pays and
    they fit into `budget`; the others are batched by length as `batching.rank_micro_batches` does it. The
    budget counts padded tokens, and a share for the keys and values that each row reads (`KEYS_PER_TOKEN`),
    so that a micro-batch takes no more memory than a plain one.
    """
    lengths = [len(ids) for ids in token_ids]
    units: list[_Unit] = []
    for group in dict.fromkeys(groups):
        rows = [row for row, other in enumerate(groups) if other == group]
        prefix = common_prefix([token_ids[i] for i in rows], [loss_masks[i] for i in rows])
        units += _units(rows, lengths, prefix, budget)
    units.sort(key=lambda unit: unit.rows)
    shares = deal([unit.tokens for unit in units], size)
    return fill_up(
        [_pack([units[i] for i in share], lengths, budget) for share in shares], rank, MicroBatch()
    )


def _units(rows: Sequence[int], lengths: Sequence[int], prefix: int, budget: int) -> list[_Unit]:
    """A group as one unit, or cut into several that fit the budget; single rows where it does not pay."""
    parts: list[list[int]] = []
    for row in sorted(rows, key=lambda i: (lengths[i], i)):
        if parts and _cost(1, prefix, len(parts[-1]) + 1, lengths[row] - prefix) <= budget:
            parts[-1].append(row)
        else:
            parts.append([row])
    units = []
    for part in parts:
        tokens, longest = sum(lengths[i] for i in part), max(lengths[i] for i in part)
        saved = (len(part) - 1) * prefix
        if prefix >= MIN_PREFIX and saved >= MIN_SAVING * tokens:
            units.append(_Unit(tuple(sorted(part)), prefix, longest - prefix, tokens - saved))
        else:
            units += [_Unit((i,), 0, lengths[i], lengths[i]) for i in part]
    return units


def _cost(prefixes: int, prefix: int, rows: int, suffix: int) -> int:
    """Padded tokens that stand for the memory of a micro-batch."""
    return prefixes * prefix + rows * suffix + rows * prefix // KEYS_PER_TOKEN


def _pack(units: Sequence[_Unit], lengths: Sequence[int], budget: int) -> list[MicroBatch]:
    """Micro-batches of plain rows, then those of units with prefixes of about the same length."""
    alone = [unit.rows[0] for unit in units if not unit.prefix]
    plain = micro_batches([lengths[i] for i in alone], budget)
    packed: list[list[_Unit]] = []
    for unit in sorted((u for u in units if u.prefix), key=lambda u: (u.prefix, u.longest, u.rows)):
        if packed and _fits([*packed[-1], unit], budget):
            packed[-1].append(unit)
        else:
            packed.append([unit])
    return [MicroBatch(tuple(alone[i] for i in batch)) for batch in plain] + [
        MicroBatch(
            tuple(row for unit in batch for row in unit.rows),
            tuple(SharedPrefix(len(unit.rows), unit.prefix) for unit in batch),
        )
        for batch in packed
    ]


def _fits(units: Sequence[_Unit], budget: int) -> bool:
    prefix = max(unit.prefix for unit in units)
    padded = len(units) * prefix
    if padded - sum(unit.prefix for unit in units) > MAX_PADDING * padded:
        return False
    rows = sum(len(unit.rows) for unit in units)
    return _cost(len(units), prefix, rows, max(unit.longest for unit in units)) <= budget


def length_buckets(lengths: Sequence[int], call: int = CALL_TOKENS) -> list[list[int]]:
    """Indices, sorted by length, cut so that at most `MAX_PADDING` of all tokens is padding.

    Among such cuts one at which the padded tokens and a price for each bucket are least in all: `call`,
    or less of it where the padding asks for more buckets.
    """
    while True:
        buckets = _cheapest_buckets(lengths, call)
        padded = sum(len(bucket) * lengths[bucket[-1]] for bucket in buckets)
        if padded - sum(lengths) <= MAX_PADDING * padded:
            return buckets
        call //= 2


def _cheapest_buckets(lengths: Sequence[int], call: int) -> list[list[int]]:
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    ends = [
        n for n in range(1, len(order) + 1) if n == len(order) or lengths[order[n - 1]] < lengths[order[n]]
    ]
    best, cuts = {0: 0}, {0: 0}
    for end in ends:
        longest = lengths[order[end - 1]]
        best[end], cuts[end] = min((best[at] + (end - at) * longest + call, at) for at in list(best))
    buckets, end = [], len(order)
    while end:
        buckets.append(order[cuts[end] : end])
        end = cuts[end]
    return buckets[::-1]


def padding_share(lengths: Sequence[int], batches: Sequence[MicroBatch]) -> float:
    """Share of the computed tokens that is padding."""
    real = padded = 0
    for batch in filter(lambda batch: batch.rows, batches):
        starts = [shared.length for shared in batch.shared for _ in range(shared.rows)] or [0] * len(
            batch.rows
        )
        suffixes = [lengths[i] - start for i, start in zip(batch.rows, starts, strict=True)]
        buckets = length_buckets(suffixes) if batch.shared else [list(range(len(suffixes)))]
        prefixes = [shared.length for shared in batch.shared]
        real += sum(suffixes) + sum(prefixes)
        padded += len(prefixes) * max(prefixes, default=0)
        padded += sum(len(bucket) * max(suffixes[i] for i in bucket) for bucket in buckets)
    return 1 - real / padded if padded else 0.0


# forward pass -------------------------------------------------------------------------------------
def can_share(model: PreTrainedModel) -> bool:
    """Whether the suffixes of rows can read the keys and values of a prefix that is computed once.

    Needs full attention by PyTorch's kernels in all layers, and a forward pass that takes a cache and
    positions. Not under gradient checkpointing, which computes a layer again without its cache, nor where
    weights are spread over processes (ZeRO-3), which must all take as many passes.
    """
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) if kinds is None else None
    known = inspect.signature(model.base_model.forward).parameters
    return (
        getattr(config, "_attn_implementation", None) in ("sdpa", CASCADE)
        and set(kinds or ()) <= {"full_attention"}
        and window is None
        and "position_ids" in known
        and cache_argument(model) in known
        and not (model.training and recomputes_activations(model))
        and not partitioned(model)
    )


def trained_states(model: PreTrainedModel, batch: Sequences) -> Tensor:
    """(trained tokens, hidden) last hidden states before the trained tokens, row by row.

    batch.shared covers all rows. The same as those of whole rows, up to rounding.
    """
    device, width = batch.token_ids.device, batch.token_ids.shape[1]
    counts = torch.tensor([shared.rows for shared in batch.shared], device=device)
    lengths = torch.tensor([shared.length for shared in batch.shared], device=device)
    units = torch.repeat_interleave(torch.arange(len(counts), device=device), counts)
    name, prefix = cache_argument(model), DynamicCache()
    heads = batch.token_ids[counts.cumsum(0) - counts, : int(lengths.max())]
    model.base_model(input_ids=heads, use_cache=True, **{name: prefix})
    suffixes = batch.attention_mask.sum(1) - lengths[units]
    states, places = [], []
    for bucket in length_buckets(suffixes.tolist()):
        rows = torch.tensor(bucket, device=device)
        starts = lengths[units[rows]]
        after = starts[:, None] + torch.arange(int(suffixes[rows].max()), device=device)
        columns = after.clamp(max=width - 1)
        hidden = model.base_model(
            input_ids=batch.token_ids[rows[:, None], columns],
            attention_mask=_visible(starts, heads.shape[1], after.shape[1]),
            position_ids=columns,
            use_cache=True,
            **{name: _read_by(prefix, units[rows])},
        ).last_hidden_state
        following = (after + 1).clamp(max=width - 1)
        trained = batch.loss_mask[rows[:, None], following] & (after + 1 < width)
        states.append(hidden[trained])
        places.append((rows[:, None] * width + following)[trained])
    return torch.cat(states)[torch.cat(places).argsort()]


def _visible(starts: Tensor, prefix: int, suffix: int) -> Tensor:
    """(rows or 1, 1, suffix, prefix + suffix) bool: the row's own prefix, and its suffix up to the token."""
    if bool((starts == prefix).all()):
        starts = starts[:1]
    own = torch.arange(prefix, device=starts.device) < starts[:, None]
    causal = torch.ones(suffix, suffix, dtype=torch.bool, device=starts.device).tril()
    shape = (len(starts), 1, suffix, -1)
    return torch.cat([own[:, None, None].expand(shape), causal.expand(shape)], dim=-1)


def _read_by(prefix: DynamicCache, units: Tensor) -> Cache:
    """The prefixes' keys and values, one copy for each row; nothing is written to those given."""
    layers: list[Any] = []
    counts = torch.bincount(units)
    # Where each prefix has as many rows, in order, the gradient of the copies is a plain sum, which is much
    # faster than what index_select has to do.
    even = bool((counts == counts[0]).all()) and bool((units.diff() >= 0).all())
    for given in prefix.layers:
        assert isinstance(given, DynamicLayer) and given.keys is not None and given.values is not None
        even = even and len(counts) == len(given.keys)
        layer = DynamicLayer()  # type: ignore[no-untyped-call]
        layer.lazy_initialization(given.keys, given.values)
        layer.keys, layer.values = (
            _repeated(values, int(counts[0])) if even else values.index_select(0, units)
            for values in (given.keys, given.values)
        )
        layers.append(layer)
    return Cache(layers=layers)


def _repeated(values: Tensor, count: int) -> Tensor:
    return values[:, None].expand(-1, count, -1, -1, -1).flatten(0, 1)
