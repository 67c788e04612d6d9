"""How far a step has moved the trained weights."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from robustops.learning.processes import partitioned

#: Most bytes of trained weights that are copied to be compared: beside a larger model the copy could be what
#: does not fit.
MAX_BYTES = 2 * 2**30


class Weights:
    """A copy of the trained weights as they are, on their device, to be held against what they become.

    It is measured, not derived from the optimiser's state: updates that were left out, or that a short
    float has rounded away, show. No copy is made where the weights are spread over processes (ZeRO-3) or
    larger than `MAX_BYTES`: `held` is then False.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.held = holds_weights(module)
        self._weights = trained_weights(module) if self.held else []
        self._before = [weight.detach().clone() for weight in self._weights]

    def change(self) -> float:
        """||now - then|| / ||then|| over all trained weights; NaN without a copy, or where all were 0."""
        if not self._before:
            return math.nan
        pairs = zip(self._weights, self._before, strict=True)
        size = _norm(self._before)
        return _norm(weight.detach() - old for weight, old in pairs) / size if size else math.nan


def trained_weights(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Parameters that the optimiser has, each once."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def holds_weights(module: torch.nn.Module) -> bool:
    """Whether `Weights` makes a copy of this module's."""
    size = sum(weight.numel() * weight.element_size() for weight in trained_weights(module))
    return size <= MAX_BYTES and not partitioned(module)


def _norm(tensors: Iterable[Tensor]) -> float:
    """L2 norm of all tensors together, summed in float32 or better; one transfer from the device."""
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors]
    return float(torch.linalg.vector_norm(torch.stack(norms).double()))
