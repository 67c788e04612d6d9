"""Optimiser and schedule that both stages share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from robustops.errors import TrainingError
from robustops.learning.hooks import NO_TRAINING_HOOKS, TrainingHooks
from robustops.learning.strategies import ZeroStrategy, backward
from robustops.monitor.telemetry import StepRecord


def rate(step: int, *, warmup: int, total: int | None, floor: float = 0.1, begin: int = 0) -> float:
    """Factor on the learning rate at a step (from 0): linear warm-up, then linear decay to `floor`.

    total None: no decay; begin: the decay sets in after so many steps, and not before the end of the warm-up.
    """
    rise, begin = min(1.0, (step + 1) / (warmup + 1)), max(warmup, begin)
    if total is None or step < begin:
        return rise
    return max(floor, 1 - (1 - floor) * (step - begin) / max(1, total - begin))


def adamw(
    module: LightningModule,
    learning_rate: float,
    weight_decay: float,
    warmup: int,
    total: int | None,
    epsilon: float = 1e-8,
    begin: int = 0,
) -> dict[str, Any]:
    """AdamW (betas 0.9, 0.95) over the trainable parameters, with the schedule of `rate`.

    epsilon: added to the root of the second moment. A larger one spares parameters whose gradients are
    tiny, and hence mostly noise (rows of rare tokens), from steps of full size.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = AdamW(
        parameters, lr=learning_rate, betas=(0.9, 0.95), eps=epsilon, weight_decay=weight_decay, fused=True
    )
    scheduler = LambdaLR(optimizer, lambda step: rate(step, warmup=warmup, total=total, begin=begin))
    return {"optimizer": optimizer, "lr_scheduler": scheduler}


def hold_to(module: LightningModule, wanted: Sequence[Mapping[str, Any]]) -> None:
    """Give a restored optimiser the rates of this run: its checkpoint brings along those that it had.

    wanted: `own_rates` of each parameter group, as it was made. Nothing changes where they are the same.
    DeepSpeed's optimisers are left as they are.
    """
    optimizer, scheduler = module.optimizers(), module.lr_schedulers()
    if isinstance(module.trainer.strategy, ZeroStrategy) or not isinstance(scheduler, LambdaLR):
        return
    assert not isinstance(optimizer, list)
    scheduler.base_lrs = [own["initial_lr"] for own in wanted]
    for group, own, factor in zip(optimizer.param_groups, wanted, scheduler.lr_lambdas, strict=True):
        group.update(own)
        group["lr"] = own["initial_lr"] * factor(scheduler.last_epoch)


def own_rates(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """What `hold_to` gives back to an optimiser that has a schedule, by parameter group."""
    names = ("initial_lr", "weight_decay", "eps")
    return [{name: group[name] for name in names} for group in optimizer.param_groups]


class PolicyModule(LightningModule):
    """A policy in training: manual optimisation, micro-batch by micro-batch.

    A training step of a subclass calls `accumulate` and then `update`. grad_clip: largest norm of the
    gradient, 0: no limit; updates_per_step: how often it does so; stage: its name in the run's records.
    `record` is that of the last step, the same on every process: it is built once, by `keep_record`.
    """

    stage: ClassVar[str] = ""
    grad_clip: float
    updates_per_step: int = 1

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.record = StepRecord(0, self.stage)

    @property
    def steps_done(self) -> int:
        """Training steps that are complete (Lightning's `global_step` counts optimiser updates)."""
        return self.global_step // self.updates_per_step

    @property
    def step_metrics(self) -> dict[str, float]:
        """The numbers of the last step."""
        return dict(self.record.metrics)

    def keep_record(self, metrics: Mapping[str, float], facts: Mapping[str, Any] | None = None) -> None:
        """Make the record of the step, after its last update."""
        self.record = StepRecord(self.steps_done, self.stage, metrics, facts or {})

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        """What a strategy's wrapper calls: `compute` may use every part of this module."""
        return compute()

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Micro-batches are moved one by one."""
        return batch


def accumulate(module: PolicyModule, losses: Sequence[Callable[[], Tensor]]) -> float:
    """Forward and backward pass of a step's micro-batches on this process; returns the sum of their losses.

    losses: functions that compute the scalar loss of one micro-batch each, as many on every process. The
    gradient is that of the sum over all of them on all processes (not the mean).
    """
    count = len(losses)
    parts = (backward(module, loss, last=place == count) for place, loss in enumerate(losses, 1))
    return sum((part.item() for part in parts), 0.0)


def update(
    module: LightningModule,
    grad_clip: float,
    *,
    loss: float = 0.0,
    step: int = 0,
    hooks: TrainingHooks = NO_TRAINING_HOOKS,
    whole: bool = False,
) -> tuple[float, float]:
    """Clip, take one optimiser step, advance the schedule, clear the gradients.

    grad_clip: largest norm of the gradient, 0: no limit (DeepSpeed has it from its config); loss: the
    step's loss over all processes; hooks are asked in the name of `step` (not with DeepSpeed); whole: what
    the optimiser is about to do is held against what was computed, see `_made_whole`. Returns the
    gradient norm before clipping and the learning rate of the schedule. A gradient or a loss that is not
    finite is an error on every process: the weights stay as they were. (A clamp in a loss can swallow the
    gradient of a NaN, so that the loss alone tells of it.) Without a gradient, the weights stay as they are.
    """
    optimizer, number = module.optimizers(), module.global_step + 1
    assert not isinstance(optimizer, list)
    used = float(optimizer.param_groups[0]["lr"])
    strategy = module.trainer.strategy
    if isinstance(strategy, ZeroStrategy):
        _check_finite(number, "loss", loss)
        optimizer.step()  # DeepSpeed computes the norm here, and takes no step where it is not finite
        norm = strategy.finish_step()
        _check_finite(number, "gradient", norm)
    else:
        hooks.on_gradient(step, [p for p in module.parameters() if p.requires_grad])
        norm = _clip(module, grad_clip)
        _check_finite(number, "gradient", norm)
        _check_finite(number, "loss", loss)
        computed = [(p, p.grad) for group in optimizer.param_groups for p in group["params"]]
        with _own_rates(optimizer) as rates:
            made = hooks.on_update(step, optimizer)
            if whole:
                made = _made_whole(optimizer, computed, rates)
            if not made:
                # The step is still counted, but without a gradient neither weights nor moments change.
                optimizer.zero_grad(set_to_none=True)
            optimizer.step()
    scheduler = module.lr_schedulers()
    assert scheduler is not None and not isinstance(scheduler, list)
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    return norm, used


def _made_whole(
    optimizer: Any, computed: Sequence[tuple[Any, Tensor | None]], rates: Sequence[float]
) -> bool:
    """An update is made, of every weight that has a gradient, and at the rates of the schedule."""
    for parameter, gradient in computed:
        parameter.grad = gradient
    for group, rate_of_schedule in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate_of_schedule
    return True


@contextmanager
def _own_rates(optimizer: Any) -> Iterator[list[float]]:
    """Learning rates that are changed in here go back to what they were."""
    rates = [group["lr"] for group in optimizer.param_groups]
    yield rates
    for group, before in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = before


def _clip(module: LightningModule, grad_clip: float) -> float:
    """Clip in place; returns the norm before."""
    parameters = [p for p in module.parameters() if p.grad is not None]
    if not parameters:
        return 0.0
    return float(torch.nn.utils.clip_grad_norm_(parameters, grad_clip or math.inf))


def _check_finite(step: int, name: str, value: float) -> None:
    if not math.isfinite(value):
        raise TrainingError(
            f"the {name} of step {step} is not finite ({value}); the last checkpoint is untouched: inspect "
            "the step's episodes in run.db, then resume, or start a run of its own with a lower learning rate"
        )
