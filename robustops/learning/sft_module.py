"""Supervised fine-tuning on valid assistant decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from robustops.learning.batching import Sequences, pad_values
from robustops.learning.data import DemonstrationBatch
from robustops.learning.forward import score_tokens
from robustops.learning.optimisation import PolicyModule, accumulate, adamw, update
from robustops.learning.policy import set_training_mode
from robustops.learning.processes import total
from robustops.learning.weight_change import Weights
from robustops.monitor.schema import SCHEMA_VERSION
from robustops.objectives.losses import sft_token_weights


@dataclass
class _Counts:
    """Sums over this process's trained tokens of a step."""

    entropy: float = 0.0
    tokens: float = 0.0


class SFTModule(PolicyModule):
    """Negative log-likelihood of demonstrated decisions.

    Every trajectory of a step weighs the same; its weight is shared equally among its valid decisions,
    then among the tokens of each (RobustOps, SFT loss). learning_rate decays linearly to a tenth over
    `total_steps` after `warmup_steps`.
    """

    stage = "sft"

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        learning_rate: float,
        total_steps: int,
        warmup_steps: int = 0,
        weight_decay: float = 0.0,
        grad_clip: float = 1.0,
    ) -> None:
        super().__init__()
        self.model = model
        self.learning_rate = learning_rate
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.weight_decay = weight_decay
        self.grad_clip = grad_clip

    def configure_optimizers(self) -> Any:
        return adamw(self, self.learning_rate, self.weight_decay, self.warmup_steps, self.total_steps)

    def training_step(self, batch: DemonstrationBatch, batch_idx: int) -> None:
        counts, before = _Counts(), Weights(self)
        local = accumulate(self, [partial(self._loss, batch, part, counts) for part in batch.parts])
        loss, entropy, tokens = total([local, counts.entropy, counts.tokens])
        norm, used = update(self, self.grad_clip, loss=loss)
        metrics = {
            "entropy": entropy / tokens if tokens else math.nan,
            "grad_norm": norm,
            "grad_nonfinite": 0.0,  # a norm that is not finite is an error
            "update_norm_rel": before.change(),
            "lr": used,
            "train/loss": loss,
            "train/tokens": tokens,
            "train/trajectories": float(len(batch.demonstrations)),
        }
        self.keep_record(metrics, {"schema_version": SCHEMA_VERSION})

    def _loss(self, batch: DemonstrationBatch, part: Sequences, counts: _Counts) -> Tensor:
        """A micro-batch's share of the step's loss."""
        part = part.to(self.device)
        scores = score_tokens(self.model, part)
        weights = self._weights(batch, part.rows, part.token_ids.shape[1]).to(self.device)
        counts.entropy += scores.entropy.sum().item()
        counts.tokens += float(part.loss_mask.sum())
        return -(weights * scores.log_probs).sum() * (1 / len(batch.demonstrations))

    @staticmethod
    def _weights(batch: DemonstrationBatch, rows: Tensor, width: int) -> Tensor:
        """Token weights (batch, seq) of a micro-batch; the weights of a trajectory sum to one."""
        chosen = [batch.demonstrations[row] if row >= 0 else None for row in rows.tolist()]
        values: list[Sequence[float] | Tensor] = [
            [] if d is None else sft_token_weights(d.loss_mask, d.decisions) for d in chosen
        ]
        return pad_values(values, width)

    def on_train_start(self) -> None:
        set_training_mode(self.model)
