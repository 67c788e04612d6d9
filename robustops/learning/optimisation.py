"""Optimiser, schedule and checkpoint writing that both stages share."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningModule
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from robustops.errors import TrainingError


def rate(step: int, *, warmup: int, total: int | None, floor: float = 0.1) -> float:
    """Factor on the learning rate at a step (from 0): linear warm-up, then linear decay to `floor`.

    total None: no decay.
    """
    rise = min(1.0, (step + 1) / (warmup + 1))
    if total is None or step < warmup:
        return rise
    return max(floor, 1 - (1 - floor) * (step - warmup) / max(1, total - warmup))


def adamw(
    module: LightningModule,
    learning_rate: float,
    weight_decay: float,
    warmup: int,
    total: int | None,
    epsilon: float = 1e-8,
) -> dict[str, Any]:
    """AdamW (betas 0.9, 0.95) over the trainable parameters, with the schedule of `rate`.

    epsilon: added to the root of the second moment. A larger one spares parameters whose gradients are
    tiny, and hence mostly noise (rows of rare tokens), from steps of full size.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = AdamW(parameters, lr=learning_rate, betas=(0.9, 0.95), eps=epsilon, weight_decay=weight_decay)
    scheduler = LambdaLR(optimizer, lambda step: rate(step, warmup=warmup, total=total))
    return {"optimizer": optimizer, "lr_scheduler": scheduler}


def update(module: LightningModule, grad_clip: float, *, loss: float = 0.0) -> tuple[float, float]:
    """Clip, take one optimiser step, advance the schedule, clear the gradients.

    Returns the gradient norm before clipping and the learning rate used. A gradient, or the step's
    `loss`, that is not finite is an error: the weights stay as they were. (A clamp in a loss can swallow
    the gradient of a NaN, so that the loss alone tells of it.)
    """
    optimizer = module.optimizers()
    assert not isinstance(optimizer, list)
    parameters = [p for p in module.parameters() if p.grad is not None]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, grad_clip)) if parameters else 0.0
    for name, value in (("gradient", norm), ("loss", loss)):
        if not math.isfinite(value):
            raise TrainingError(
                f"the {name} of step {module.global_step + 1} is not finite ({value}); the last checkpoint "
                "is untouched: lower the learning rate or inspect the step's episodes in run.db, then resume"
            )
    used = float(optimizer.param_groups[0]["lr"])
    optimizer.step()
    scheduler = module.lr_schedulers()
    assert scheduler is not None and not isinstance(scheduler, list)
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    return norm, used


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target and renames, so that a killed run never leaves half a checkpoint."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        temporary = f"{path}.tmp"
        super().save_checkpoint(checkpoint, temporary, storage_options)
        os.replace(temporary, path)
