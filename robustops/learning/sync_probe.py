"""Does the sampler really sample from the weights that it was given?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from robustops.errors import TrainingError
from robustops.learning.batching import pad
from robustops.learning.forward import score_tokens
from robustops.rollout.sampler import Completion, Request, Sampler
from robustops.seeding import child_seed

#: The probe's session number; episodes count from 0.
SESSION = -1
#: Largest difference between two exact implementations in float32, and between bfloat16 ones, in nats.
FLOAT32_TOLERANCE, BFLOAT16_TOLERANCE = 1e-4, 0.5


@dataclass(frozen=True)
class SyncProbe:
    """A prompt that is sampled after every synchronisation and scored by the trainer as well.

    A sampler that holds old weights, some old weights, or keys and values of old weights, gives other
    log-probs. token_ids: the prompt; tolerance: largest difference of a token's log-probs in nats;
    temperature: the sampler's (0 counts as 1); new_tokens: how many are sampled; seed: of their sampling;
    patience_s: how long the sampler may take; guard: what a larger difference does, stop (an error) | resync
    (the weights are handed over once more; an error if that does not help) | report (the run goes on).
    """

    token_ids: tuple[int, ...]
    tolerance: float
    temperature: float = 1.0
    new_tokens: int = 8
    seed: int = 0
    patience_s: float = 600.0
    guard: str = "stop"

    def check(
        self,
        sampler: Sampler,
        model: PreTrainedModel,
        device: torch.device,
        version: int,
        resync: Callable[[], None] | None = None,
    ) -> float:
        """The largest difference of log-probs, in nats. resync: hands the weights over once more.

        Raises:
            TrainingError: it is beyond the tolerance, or the sampler did not answer.
        """
        gap = self._gap(sampler, model, device, version)
        if not float(gap.max()) <= self.tolerance and self.guard == "resync" and resync is not None:
            resync()
            gap = self._gap(sampler, model, device, version)
        largest = float(gap.max())
        if not (largest <= self.tolerance or self.guard == "report"):
            raise TrainingError(
                f"after the synchronisation of weights (version {version}) sampler and trainer "
                f"differ by {largest:.3g} nats at token {int(gap.argmax())} of a probe (limit "
                f"{self.tolerance:g}). The sampler holds stale, incomplete or differently rounded weights; "
                "restart it, or set grpo.sync_tolerance if the difference is one of precision"
            )
        return largest

    def _gap(self, sampler: Sampler, model: PreTrainedModel, device: torch.device, version: int) -> Tensor:
        """(new tokens,) differences of log-probs in nats."""
        done = self._sample(sampler, version)
        own = self._score(model, done.token_ids, device)
        return (own - torch.tensor(done.log_probs, dtype=own.dtype)).abs()

    def _sample(self, sampler: Sampler, version: int) -> Completion:
        seed = child_seed(self.seed, "probe", version)
        sampler.submit(Request(SESSION, self.token_ids, self.new_tokens, seed))
        end = time.monotonic() + self.patience_s
        done: list[Completion] = []
        while not done and time.monotonic() < end:
            done = sampler.poll()
        sampler.release(SESSION)
        reason = done[0].error if done else f"no answer within {self.patience_s:g} s"
        if reason is not None:
            raise TrainingError(
                f"the sampler failed on a probe after the synchronisation of weights (version {version}): "
                f"{reason}"
            )
        return done[0]

    @torch.no_grad()
    def _score(self, model: PreTrainedModel, sampled: tuple[int, ...], device: torch.device) -> Tensor:
        """(new tokens,) log-probs of the sampled tokens under the trainer's weights."""
        ids = (*self.token_ids, *sampled)
        mask = [False] * len(self.token_ids) + [True] * len(sampled)
        batch = pad([ids], [mask], [0]).to(device)
        scores = score_tokens(model, batch, temperature=self.temperature or 1.0)
        return scores.log_probs[batch.loss_mask].cpu()
