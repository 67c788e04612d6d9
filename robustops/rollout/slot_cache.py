"""A key-value cache with one slot an episode, for transformers models.

Every slot grows at its own pace: a forward pass names the slots it feeds and the position at which each
of them continues. Right-padded chunks are safe, since a padded position is overwritten by the slot's next
tokens and masked until then.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin


def cache_argument(model: PreTrainedModel) -> str:
    """Under which name a model's forward pass takes its cache.

    The name changed in transformers 5.2x; some models still have the old one.
    """
    known = inspect.signature(model.base_model.forward).parameters
    return "cache" if "cache" in known else "past_key_values"


class SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer: (slots, heads, capacity, head width)."""

    is_compileable = False
    is_sliding = False

    def __init__(self, cursor: SlotCursor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cursor = cursor
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = self._resized(self.keys, key_states)
        self.values = self._resized(self.values, value_states)
        self.is_initialized = True

    def _resized(self, old: Tensor | None, like: Tensor) -> Tensor:
        """The part that holds nothing yet is zero: a masked NaN would still spoil a product."""
        shape = (self.cursor.slots, like.shape[1], self.cursor.capacity, like.shape[3])
        if old is None:
            return like.new_zeros(shape)
        new = like.new_empty(shape)
        slots, _, capacity, _ = old.shape
        new[:slots, :, :capacity] = old
        new[:slots, :, capacity:] = 0
        new[slots:] = 0
        return new

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        size = (self.cursor.slots, self.cursor.capacity)
        if self.keys is None or (self.keys.shape[0], self.keys.shape[2]) != size:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        return self._put(self.keys, key_states), self._put(self.values, value_states)

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


class SlotCursor:
    """Which slots the current forward pass feeds, and where; shared by all layers.

    slots, capacity: the size that the layers have, or take at the pass; positions: (batch, width), or (1,
    width) where all slots are at the same place (level); contiguous: the slots are the first ones, in order.
    """

    def __init__(self) -> None:
        self.slots = 0
        self.capacity = 0
        self.rows = torch.zeros(0, dtype=torch.long)
        self.positions = torch.zeros(0, 0, dtype=torch.long)
        self.length = 0
        self.contiguous = False
        self.level = False


class SlotCache(Cache):
    """The cache of a whole model; see the module's docstring.

    It takes memory as slots come into use and as they grow longer.
    """

    GROWTH = 32

    def __init__(self, layers: int, slots: int) -> None:
        self.cursor = SlotCursor()
        self.most_slots = slots
        super().__init__(layers=[SlotLayer(self.cursor) for _ in range(layers)])

    def aim(
        self, rows: list[int], starts: list[int], width: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Point the next forward pass at slots `rows` (batch,), continuing at `starts` (batch,).

        Returns position_ids (batch or 1, width) and the attention mask (batch or 1, 1, width, length).
        """
        cursor = self.cursor
        cursor.rows = torch.tensor(rows, device=device)
        cursor.level = min(starts) == max(starts)
        first = torch.tensor(starts[:1] if cursor.level else starts, device=device)
        cursor.positions = first[:, None] + torch.arange(width, device=device)
        cursor.length = max(starts) + width
        cursor.contiguous = rows == list(range(len(rows)))
        self.reserve(max(rows) + 1, cursor.length)
        keys = torch.arange(cursor.length, device=device)
        return cursor.positions, (keys <= cursor.positions[:, :, None])[:, None]

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
