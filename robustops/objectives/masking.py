"""Sums and means under a mask: masked values count for nothing, even when they are not finite."""

from __future__ import annotations

import torch
from torch import Tensor


def keep(values: Tensor, mask: Tensor, fill: float = 0.0) -> Tensor:
    """`values` where `mask` (same shape, bool), `fill` elsewhere; no gradient flows where it is False.

    Never multiply by a mask instead: inf * 0 is NaN.
    """
    return torch.where(mask, values, torch.full_like(values, fill))


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum over the mask; 0 where it is empty."""
    kept = keep(values, mask)
    return kept.sum() if dim is None else kept.sum(dim=dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None, *, empty: float = 0.0) -> Tensor:
    """Mean over the mask; `empty` where it has no True (0 for losses, NaN for what was not observed)."""
    count = mask.sum() if dim is None else mask.sum(dim=dim)
    mean = masked_sum(values, mask, dim) / count.clamp(min=1)
    return torch.where(count > 0, mean, torch.full_like(mean, empty))


def masked_max(values: Tensor, mask: Tensor, *, empty: float = float("nan")) -> Tensor:
    """Largest value under the mask (a NaN under the mask wins); `empty` where it has no True."""
    chosen = values[mask]
    return chosen.max() if chosen.numel() else values.new_full((), empty)
