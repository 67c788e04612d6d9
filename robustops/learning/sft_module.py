"""Supervised fine-tuning on valid assistant decisions."""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor
from transformers import PreTrainedModel

from robustops.learning.batching import pad_values
from robustops.learning.data import DemonstrationBatch
from robustops.learning.forward import score_tokens
from robustops.learning.optimisation import adamw, update
from robustops.objectives.losses import sft_token_weights


class SFTModule(LightningModule):
    """Negative log-likelihood of demonstrated decisions.

    Every trajectory of a step weighs the same; its weight is shared equally among its valid decisions,
    then among the tokens of each (RobustOps, SFT loss). learning_rate decays linearly to a tenth over
    `total_steps` after `warmup_steps`.
    """

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
        self.automatic_optimization = False
        self.model = model
        self.learning_rate = learning_rate
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.weight_decay = weight_decay
        self.grad_clip = grad_clip
        self.step_metrics: dict[str, float] = {}

    def configure_optimizers(self) -> Any:
        return adamw(self, self.learning_rate, self.weight_decay, self.warmup_steps, self.total_steps)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Micro-batches are moved one by one."""
        return batch

    def training_step(self, batch: DemonstrationBatch, batch_idx: int) -> None:
        share = 1 / len(batch.demonstrations)
        loss, entropy, tokens = 0.0, 0.0, 0
        for part in batch.parts:
            part = part.to(self.device)
            scores = score_tokens(self.model, part)
            weights = self._weights(batch, part.rows, part.token_ids.shape[1]).to(self.device)
            value: Tensor = -(weights * scores.log_probs).sum() * share
            self.manual_backward(value)
            loss += value.item()
            entropy += scores.entropy.sum().item()
            tokens += int(part.loss_mask.sum())
        norm, used = update(self, self.grad_clip, loss=loss)
        self.step_metrics = {
            "loss": loss,
            "entropy": entropy / max(1, tokens),
            "grad_norm": norm,
            "learning_rate": used,
            "tokens": float(tokens),
            "trajectories": float(len(batch.demonstrations)),
        }

    @staticmethod
    def _weights(batch: DemonstrationBatch, rows: Tensor, width: int) -> Tensor:
        """Token weights (batch, seq) of a micro-batch; the weights of a trajectory sum to one."""
        chosen = [batch.demonstrations[row] for row in rows.tolist()]
        return pad_values([sft_token_weights(d.loss_mask, d.decisions).tolist() for d in chosen], width)

    def on_train_start(self) -> None:
        torch.set_grad_enabled(True)
        self.model.train()
