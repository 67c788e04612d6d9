"""A key-value cache with one slot an episode, for transformers models.

Every slot grows at its own pace: a forward pass names the slots it feeds and the position at which each
of them continues. Right-padded chunks are safe, since a padded position is overwritten by the slot's next
tokens and masked until then. Slots may continue a prefix that is stored once for all of them (see `cascade`);
they hold what comes after it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from robustops.rollout.cascade import CachedPrefix, CascadeRows, cascade_rows


def cache_argument(model: PreTrainedModel) -> str:
    """Under which name a model's forward pass takes its cache.

    The name changed in transformers 5.2x; some models still have the old one.
    """
    known = inspect.signature(model.base_model.forward).parameters
    return "cache" if "cache" in known else "past_key_values"


class SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer: (slots, heads, capacity, head width), and those of shared prefixes,
    (rows, heads, prefix capacity, head width).
    """

    is_compileable = False
    is_sliding = False

    def __init__(self, cursor: SlotCursor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cursor = cursor
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.prefix_keys: Tensor | None = None
        self.prefix_values: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        size = (self.cursor.slots, self.cursor.capacity)
        self.keys = _resized(self.keys, key_states, size)
        self.values = _resized(self.values, value_states, size)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if self.cursor.planting:
            return self._plant(key_states, value_states)
        size = (self.cursor.slots, self.cursor.capacity)
        if self.keys is None or (self.keys.shape[0], self.keys.shape[2]) != size:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        return self._put(self.keys, key_states), self._put(self.values, value_states)

    def _plant(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Store whole prefixes, whose tokens see each other only."""
        cursor, width = self.cursor, key_states.shape[2]
        size = (cursor.prefix_rows, cursor.prefix_capacity)
        self.prefix_keys = _resized(self.prefix_keys, key_states, size)
        self.prefix_values = _resized(self.prefix_values, value_states, size)
        self.prefix_keys[cursor.rows, :, :width] = key_states
        self.prefix_values[cursor.rows, :, :width] = value_states
        return key_states, value_states

    def prefixes(self, longest: int) -> tuple[Tensor, Tensor]:
        """Keys and values of all prefixes, (rows, heads, longest, head width) each."""
        assert self.prefix_keys is not None and self.prefix_values is not None
        return self.prefix_keys[:, :, :longest], self.prefix_values[:, :, :longest]

    def _put(self, store: Tensor, states: Tensor) -> Tensor:
        cursor, width = self.cursor, states.shape[2]
        if cursor.contiguous and cursor.level:
            store[: len(cursor.rows), :, cursor.length - width : cursor.length] = states
        else:
            store[cursor.rows[:, None], :, cursor.positions] = states.transpose(1, 2)
        if cursor.length == width:
            return states  # every slot starts here
        if cursor.contiguous:
            return store[: len(cursor.rows), :, : cursor.length]
        return store[cursor.rows, :, : cursor.length]

    def get_seq_length(self) -> int:
        return self.cursor.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cursor.length, 0

    def get_max_length(self) -> int:
        return self.cursor.capacity

    def copy_slot(self, source: int, targets: Tensor, length: int) -> None:
        """Let other slots start with the same tokens."""
        assert self.keys is not None and self.values is not None
        self.keys[targets, :, :length] = self.keys[source, :, :length]
        self.values[targets, :, :length] = self.values[source, :, :length]


def _resized(old: Tensor | None, like: Tensor, size: tuple[int, int]) -> Tensor:
    """With `size` rows and tokens. What holds nothing is zero: a masked NaN would spoil a product."""
    if old is not None and (old.shape[0], old.shape[2]) == size:
        return old
    shape = (size[0], like.shape[1], size[1], like.shape[3])
    if old is None:
        return like.new_zeros(shape)
    new = like.new_empty(shape)
    rows, _, capacity, _ = old.shape
    new[:rows, :, :capacity] = old
    new[:rows, :, capacity:] = 0
    new[rows:] = 0
    return new


class SlotCursor:
    """Which slots the current forward pass feeds, and where; shared by all layers.

    slots, capacity: the size that the layers have, or take at the pass; positions: (batch, width), or (1,
    width) where all slots are at the same place (level); contiguous: the slots are the first ones, in order;
    planting: the pass stores prefixes in `rows`, of prefix_rows x prefix_capacity tokens.
    """

    def __init__(self) -> None:
        self.slots = 0
        self.capacity = 0
        self.rows = torch.zeros(0, dtype=torch.long)
        self.positions = torch.zeros(0, 0, dtype=torch.long)
        self.length = 0
        self.contiguous = False
        self.level = False
        self.planting = False
        self.prefix_rows = 0
        self.prefix_capacity = 0


class SlotCache(Cache):
    """The cache of a whole model; see the module's docstring.

    It takes memory as slots come into use and as they grow longer.
    """

    GROWTH = 32

    def __init__(self, layers: int, slots: int) -> None:
        self.cursor = SlotCursor()
        self.most_slots = slots
        self._last: tuple[tuple[tuple[CachedPrefix | None, ...], int], CascadeRows | None] | None = None
        super().__init__(layers=[SlotLayer(self.cursor) for _ in range(layers)])

    def aim(
        self,
        rows: list[int],
        starts: list[int],
        width: int,
        device: torch.device,
        prefixes: Sequence[CachedPrefix | None] = (),
    ) -> tuple[Tensor, Tensor, CascadeRows | None]:
        """Point the next forward pass at slots `rows` (batch,), continuing at `starts` (batch,).

        prefixes: the one that each slot continues; starts count its tokens. Returns position_ids (batch or 1,
        width), the attention mask (batch or 1, 1, width, prefix + own length) and who reads which prefix.
        """
        cursor, shared = self.cursor, self._cascade(tuple(prefixes), device)
        before = [0 if prefix is None else prefix.length for prefix in prefixes] or [0] * len(rows)
        own = [start - length for start, length in zip(starts, before, strict=True)]
        cursor.planting = False
        cursor.rows = torch.tensor(rows, device=device)
        cursor.level = min(own) == max(own)
        first = torch.tensor(own[:1] if cursor.level else own, device=device)
        cursor.positions = first[:, None] + torch.arange(width, device=device)
        cursor.length = max(own) + width
        cursor.contiguous = rows == list(range(len(rows)))
        self.reserve(max(rows) + 1, cursor.length)
        keys = torch.arange(cursor.length, device=device)
        mask = (keys <= cursor.positions[:, :, None])[:, None]
        if shared is None:
            return cursor.positions, mask, None
        seen = (len(rows), 1, width, -1)
        mask = torch.cat([shared.visible().expand(seen), mask.expand(seen)], dim=-1)
        return cursor.positions + shared.lengths[:, None], mask, shared

    def _cascade(self, prefixes: tuple[CachedPrefix | None, ...], device: torch.device) -> CascadeRows | None:
        """Passes of the same slots follow each other: what was made for the last one is kept."""
        key = (prefixes, self.cursor.prefix_rows)
        if self._last is None or self._last[0] != key:
            self._last = (key, cascade_rows(*key, device))
        return self._last[1]

    def plant(
        self, prefixes: Sequence[CachedPrefix], width: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Point the next forward pass at the rows of new prefixes, which it stores; position_ids (1, width)
        and attention mask (1, 1, width, width).
        """
        cursor = self.cursor
        cursor.planting = True
        cursor.rows = torch.tensor([prefix.row for prefix in prefixes], device=device)
        cursor.length = width
        rows = max(prefix.row for prefix in prefixes) + 1
        cursor.prefix_rows = max(cursor.prefix_rows, rows)
        cursor.prefix_capacity = max(cursor.prefix_capacity, -(-width // self.GROWTH) * self.GROWTH)
        positions = torch.arange(width, device=device)
        return positions[None], (positions <= positions[:, None])[None, None]

    def reserve(self, slots: int, length: int = 0) -> None:
        """Have room for so many slots and tokens from the next pass on."""
        cursor = self.cursor
        if slots > cursor.slots:
            cursor.slots = min(self.most_slots, max(slots, 2 * cursor.slots))
        cursor.capacity = max(cursor.capacity, -(-length // self.GROWTH) * self.GROWTH)

    def copy_slot(self, source: int, targets: list[int], length: int) -> None:
        """Let other slots start with the same `length` tokens."""
        rows = torch.tensor(targets, device=self.cursor.rows.device)
        for layer in self.layers:
            layer.copy_slot(source, rows, length)  # type: ignore[union-attr]
