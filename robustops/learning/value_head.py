"""A value head: what a start state is worth, by a linear map of what the policy's trunk makes of its prompt.

It stands beside the policy, not in it: the trunk gets no gradient from it, and its optimiser is its own, so
that neither gradient norms nor clipping of the policy change. It learns the returns by mean squared error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer
from transformers import PreTrainedModel

from robustops.learning.batching import pad
from robustops.records import Episode

#: Asked before each update of the head: False, it is not made.
Asked = Callable[[Optimizer], bool]


class ValueHead:
    """V(s) = w h(s) + b in float32 on the CPU, 0 at first. width: of the trunk's hidden states."""

    def __init__(self, width: int, learning_rate: float) -> None:
        self.linear = torch.nn.Linear(width, 1)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)
        self.learning_rate = learning_rate
        self.optimizer = AdamW(self.linear.parameters(), lr=learning_rate, weight_decay=0.0)

    @torch.no_grad()
    def values(self, features: Tensor) -> Tensor:
        """(episodes,) float64 values of (episodes, width) features."""
        found: Tensor = self.linear(features)[:, 0].double()
        return found

    def learn(self, features: Tensor, targets: Tensor, updates: int, asked: Asked) -> None:
        """So many updates towards (episodes,) returns; `asked` may change the rate for one of them."""
        for _ in range(updates):
            self.optimizer.zero_grad()
            self._rate(self.learning_rate)
            loss = torch.nn.functional.mse_loss(self.linear(features)[:, 0], targets.float())
            loss.backward()  # type: ignore[no-untyped-call]
            if asked(self.optimizer):
                self.optimizer.step()
        self._rate(self.learning_rate)

    def state_dict(self) -> dict[str, Any]:
        """All that learning goes on from."""
        return {"linear": self.linear.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`; the learning rate stays that of this run."""
        self.linear.load_state_dict(state["linear"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._rate(self.learning_rate)

    def _rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate


@dataclass(frozen=True)
class Critic:
    """How a value head takes part. least_ev: explained variance of a step below which advantages come from
    the groups' means instead, None: it is always believed; whiten: z-score of R - V over the batch.
    """

    head: ValueHead
    least_ev: float | None = None
    whiten: bool = True

    def believed(self, explained: float) -> bool:
        """Whether this step's advantages come from the head; explained: its vf_ev, NaN is below any bound."""
        return self.least_ev is None or explained >= self.least_ev


@torch.no_grad()
def prompt_features(
    model: PreTrainedModel, episodes: Sequence[Episode], device: torch.device, budget: int
) -> Tensor:
    """(episodes, width) float32 hidden states at the token before the first that is trained.

    Episodes that begin with the same tokens (those of a group) share one pass over them; passes have at most
    `budget` padded tokens, or one prompt.
    """
    prompts = [tuple(e.token_ids[: max(1, e.loss_mask.index(True))]) for e in episodes]
    different = sorted(dict.fromkeys(prompts), key=len)
    found: dict[tuple[int, ...], Tensor] = {}
    start = 0
    while start < len(different):
        end = start + 1
        while end < len(different) and (end + 1 - start) * len(different[end]) <= budget:
            end += 1
        part = different[start:end]
        batch = pad(part, [[False] * len(ids) for ids in part], range(len(part))).to(device)
        hidden = model.base_model(input_ids=batch.token_ids, use_cache=False).last_hidden_state
        for row, ids in enumerate(part):
            found[ids] = hidden[row, len(ids) - 1].float().cpu()
        start = end
    return torch.stack([found[ids] for ids in prompts])
