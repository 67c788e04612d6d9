"""Where a value stops being finite: the token, and for a gradient the episode and token it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def first_nonfinite(named: Mapping[str, Tensor], mask: Tensor) -> tuple[str, int, int, float] | None:
    """Name, row, position and value of the first trained token at which a tensor is NaN or infinite.

    named: (batch, seq) tensors in the order in which they are to be blamed; mask: (batch, seq) bool.
    """
    for name, values in named.items():
        broken = (~values.isfinite() & mask).nonzero()
        if len(broken):
            row, position = broken[0].tolist()
            return name, row, position, float(values[row, position])
    return None


def has_finite_gradient(loss: Tensor, parameters: Sequence[torch.nn.Parameter]) -> bool:
    """Whether every derivative of `loss` is finite; no `.grad` is touched and the graph is kept."""
    gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return all(bool(g.isfinite().all()) for g in gradients if g is not None)


def first_bad_gradient(
    terms: Tensor, log_probs: Tensor, mask: Tensor, parameters: Sequence[torch.nn.Parameter]
) -> int | None:
    """Place of the first of the (tokens,) loss terms whose gradient is not finite, None if all are.

    log_probs: (1, seq), what the terms were computed from; mask: (1, seq), its trained tokens. If the
    derivative by a log-prob is not finite already, that is the token. Otherwise the model's own backward
    pass breaks, and bisection finds the first prefix of the terms with which it does.
    """
    if has_finite_gradient(terms.sum(), parameters):
        return None
    (by_log_prob,) = torch.autograd.grad(terms.sum(), log_probs, retain_graph=True)
    broken = (~by_log_prob[mask].isfinite()).nonzero()
    if len(broken):
        return int(broken[0])
    low, high = 0, len(terms)
    while high - low > 1:
        middle = (low + high) // 2
        if has_finite_gradient(terms[low:middle].sum(), parameters):
            low = middle
        else:
            high = middle
    return low
