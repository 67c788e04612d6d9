"""Attention of slots that share a prefix: its keys and values are stored once and read once for all of them.

Known as cascade or shared-prefix attention. transformers asks a registered function for each layer's
attention; without a shared prefix it is that of PyTorch (`sdpa`), to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

#: Name of the attention implementation in transformers' register.
NAME = "robustops_cascade"
#: Name of the argument of a model's forward pass that reaches the attention function.
ARGUMENT = "cascade"
#: Most scores that are held at once; wider passes copy the prefixes for PyTorch's kernels. 64 MiB in float32.
MAX_SCORES = 2**24


@dataclass(frozen=True)
class CachedPrefix:
    """Tokens whose keys and values several slots read. row: where they are stored."""

    row: int
    length: int


@dataclass(frozen=True)
class CascadeRows:
    """Which rows of a pass read which prefix.

    stored: (groups,) rows of the store; gathered: (groups x most,) rows of the pass by prefix, one of a group
    again where it has fewer than `most`; back: (batch,) where among these a row of the pass stands; owner:
    (batch,) row of the store of each row, 0 without a prefix; lengths: (batch,) tokens of the prefix, 0
    without; longest: of all; in_order: all rows of the store are read, in order; some_without: some rows of
    the pass read none.
    """

    stored: Tensor
    gathered: Tensor
    back: Tensor
    owner: Tensor
    lengths: Tensor
    longest: int
    in_order: bool
    some_without: bool

    @property
    def groups(self) -> int:
        return len(self.stored)

    def visible(self) -> Tensor:
        """(batch, 1, 1, longest) bool: what each row sees of its prefix."""
        return (torch.arange(self.longest, device=self.lengths.device) < self.lengths[:, None])[:, None, None]


def cascade_rows(
    prefixes: Sequence[CachedPrefix | None], stored: int, device: torch.device
) -> CascadeRows | None:
    """The rows of a pass by prefix; None where no row has one. stored: rows of the store."""
    members: dict[CachedPrefix, list[int]] = {}
    for row, prefix in enumerate(prefixes):
        if prefix is not None:
            members.setdefault(prefix, []).append(row)
    if not members:
        return None
    most = max(map(len, members.values()))
    gathered = [row for rows in members.values() for row in rows + rows[:1] * (most - len(rows))]
    back = [0] * len(prefixes)
    for number, rows in enumerate(members.values()):
        for place, row in enumerate(rows):
            back[row] = number * most + place

    def indices(numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, device=device)

    return CascadeRows(
        stored=indices([prefix.row for prefix in members]),
        gathered=indices(gathered),
        back=indices(back),
        owner=indices([0 if prefix is None else prefix.row for prefix in prefixes]),
        lengths=indices([0 if prefix is None else prefix.length for prefix in prefixes]),
        longest=max(prefix.length for prefix in members),
        in_order=[prefix.row for prefix in members] == list(range(stored)),
        some_without=None in prefixes,
    )


def supports_cascade(model: PreTrainedModel) -> bool:
    """Whether the model's attention is plain: all tokens of the past, softmax, float32.

    Half precision is left to PyTorch's kernels, which sum in float32 what a product of matrices would not.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None) if not kinds else None
    attention = [m for m in model.modules() if hasattr(m, "num_key_value_groups") and hasattr(m, "layer_idx")]
    return (
        config._attn_implementation in ("sdpa", NAME)
        and kinds <= {"full_attention"}
        and window is None
        and len(attention) == config.num_hidden_layers
        and not any(hasattr(m, "sinks") for m in attention)
        and getattr(config, "attn_logit_softcapping", None) is None
        and all(parameter.dtype == torch.float32 for parameter in model.parameters())
    )


def cascade_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *args: Any,
    cascade: tuple[CascadeRows, Any] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention output (batch, width, heads, head width).

    query: (batch, heads, width, head width); key, value: (batch, key heads, own length, head width), of the
    rows' own tokens; attention_mask: (batch or 1, 1, width, longest + own length) bool, prefix first;
    cascade: the rows by prefix and the layers that store prefixes, None: nothing is shared.
    """
    if cascade is not None:
        rows, layers = cascade
        keys, values = layers[module.layer_idx].prefixes(rows.longest)
        if query.shape[:3].numel() * (rows.longest + key.shape[2]) <= MAX_SCORES:
            assert attention_mask is not None
            scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
            stored = (keys, values) if rows.in_order else (keys[rows.stored], values[rows.stored])
            found = _joined(query * scaling, key, value, attention_mask, *stored, rows)
            return found.transpose(1, 2).contiguous(), None
        key = torch.cat([keys.index_select(0, rows.owner), key], dim=2)
        value = torch.cat([values.index_select(0, rows.owner), value], dim=2)
    output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, *args, **kwargs)
    return output, None


def _joined(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    prefix_keys: Tensor,
    prefix_values: Tensor,
    rows: CascadeRows,
) -> Tensor:
    """(batch, heads, width, head width): one softmax over the scores of prefix and own tokens; the prefix's
    products are made for all rows of a group at once.

    Heads that read the same key head, and the tokens of a row, count as its queries: (batch, key heads,
    queries, ...). prefix_keys, prefix_values: (groups, key heads, longest, head width).
    """
    batch, heads, width, size = query.shape
    kinds, own = key.shape[1], key.shape[2]
    query = query.reshape(batch, kinds, -1, size)
    shared = _by_row(_by_group(query, rows) @ prefix_keys.transpose(-1, -2), batch, rows)
    scores = torch.cat([shared, query @ key.transpose(-1, -2)], dim=-1)
    by_head = scores.view(batch, kinds, heads // kinds, width, rows.longest + own)
    weights = by_head.masked_fill_(~mask[:, :, None], -torch.inf).softmax(dim=-1).view(scores.shape)
    found = _by_row(_by_group(weights[..., : rows.longest], rows) @ prefix_values, batch, rows)
    if rows.some_without:  # such a row stands for none of its group: what is found is another's
        found = found * (rows.lengths > 0)[:, None, None, None]
    return (found + weights[..., rows.longest :] @ value).view(batch, heads, width, size)


def _by_group(values: Tensor, rows: CascadeRows) -> Tensor:
    """(batch, key heads, queries, n) -> (groups, key heads, most x queries, n)."""
    _, kinds, queries, last = values.shape
    gathered = values.index_select(0, rows.gathered).view(rows.groups, -1, kinds, queries, last)
    return gathered.transpose(1, 2).reshape(rows.groups, kinds, -1, last)


def _by_row(values: Tensor, batch: int, rows: CascadeRows) -> Tensor:
    """(groups, key heads, most x queries, n) -> (batch, key heads, queries, n)."""
    groups, kinds, _, last = values.shape
    each = values.view(groups, kinds, len(rows.gathered) // groups, -1, last).transpose(1, 2)
    return each.reshape(-1, kinds, each.shape[3], last).index_select(0, rows.back)


AttentionInterface.register(NAME, cascade_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
