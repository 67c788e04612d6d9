"""How Lightning runs a hardware profile: one process, data parallel, or DeepSpeed ZeRO on GPUs or CPUs.

Whatever the strategy, a training step is `backward` for every micro-batch, then one optimiser step:
`optimisation.accumulate` and `optimisation.update` do that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import DeepSpeedPrecision
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, Strategy
from torch import Tensor

from robustops.learning.hardware import ZERO, group_size, tell_deepspeed
from robustops.learning.processes import PATIENCE, leads, partitioned
from robustops.settings import HardwareSettings

#: Gradient elements reduced, and parameter elements gathered, at once.
BUCKET = 50_000_000


def make_strategy(hardware: HardwareSettings, grad_clip: float = 0.0) -> Strategy | str:
    """The value of Lightning's `Trainer(strategy=...)`.

    grad_clip: largest norm of the gradient (0: no limit), which DeepSpeed has to know beforehand.
    """
    if group_size(hardware) == 0:
        return "auto"
    backend = "nccl" if hardware.accelerator == "gpu" else "gloo"
    if hardware.strategy not in ZERO:
        return DDPStrategy(process_group_backend=backend, timeout=PATIENCE)
    config = zero_config(hardware, grad_clip)
    tell_deepspeed(hardware)
    kind = CPUZeroStrategy if hardware.accelerator == "cpu" else ZeroStrategy
    return kind(
        config=config,
        precision_plugin=ZeroPrecision(hardware.precision),  # type: ignore[arg-type]
        process_group_backend=backend,
        timeout=PATIENCE,
    )


def zero_config(hardware: HardwareSettings, grad_clip: float) -> dict[str, Any]:
    """DeepSpeed's config. Gradients are accumulated and reduced in float32 whatever the weights are."""
    stage, offload = ZERO[hardware.strategy]
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": hardware.accelerator == "gpu",
        "contiguous_gradients": True,
        "reduce_bucket_size": BUCKET,
        "allgather_bucket_size": BUCKET,
    }
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        if stage == 3:
            zero["offload_param"] = {"device": "cpu"}
    config: dict[str, Any] = {
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": grad_clip,
        "train_micro_batch_size_per_gpu": 1,
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
    }
    if hardware.precision.startswith("bf16"):
        config["bf16"] = {"enabled": True, "check_grad_overflow": True}
    return config


def backward(module: LightningModule, compute: Callable[[], Tensor], *, last: bool) -> Tensor:
    """Forward and backward pass of one micro-batch; returns the detached loss that `compute` made.

    The gradient is that of the loss summed over processes. It is complete, on every process, after the
    `last` micro-batch of a step; every process must have as many.
    """
    strategy, size = module.trainer.strategy, module.trainer.world_size
    synchronise: AbstractContextManager[None] = nullcontext()
    if isinstance(strategy, ZeroStrategy):
        strategy.deepspeed_engine.set_gradient_accumulation_boundary(last)
        loss: Tensor = strategy.deepspeed_engine(compute)
    else:
        loss = compute()
        if isinstance(strategy, DDPStrategy) and not last:
            synchronise = strategy.block_backward_sync()
    with synchronise:
        # Lightning's strategies average gradients over processes.
        module.manual_backward(loss * size if size > 1 else loss)
    return loss.detach()


@contextmanager
def gathered(module: torch.nn.Module) -> Iterator[None]:
    """All parameters whole on every process, to be read, as long as this lasts (ZeRO-3 has them in parts).

    Every process must enter and leave it together with the others.
    """
    parts = partitioned(module)
    if not parts:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(parts, modifier_rank=None):
        yield


class ZeroPrecision(DeepSpeedPrecision):
    """DeepSpeed's precision for batches that are no tensors: a module makes its micro-batches itself."""

    def convert_input(self, data: Any) -> Any:
        return data


class ZeroStrategy(DeepSpeedStrategy):
    """DeepSpeed ZeRO, stages 2 and 3, for modules that call `backward` in their training step.

    Every micro-batch goes through the engine's forward pass, as DeepSpeed wants of every backward pass
    (ZeRO-3 would otherwise overwrite the gradient of the micro-batch before). Lightning sends the whole
    training step through it instead.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._whole: list[tuple[Tensor, Tensor]] = []

    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        # No gradient yet: `step` leaves the weights alone.
        self.deepspeed_engine.set_gradient_accumulation_boundary(False)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        assert self.lightning_module is not None
        with self.precision_plugin.train_step_context():
            return self.lightning_module.training_step(*args, **kwargs)

    def on_train_end(self) -> None:
        super().on_train_end()
        if self.zero_stage_3:
            assert self.lightning_module is not None
            with gathered(self.lightning_module):
                named = list(self.lightning_module.named_parameters()) if leads() else []
                self._whole = [(parameter, parameter.detach().cpu().clone()) for _, parameter in named]

    def teardown(self) -> None:
        """The leading process keeps a whole model; those of the others are of no use after ZeRO-3."""
        super().teardown()
        for parameter, value in self._whole:
            parameter.data = value
        self._whole = []

    def finish_step(self) -> float:
        """Norm of the gradient that the step before took (0 without one; not finite where it took none)."""
        engine = self.deepspeed_engine
        if not engine.is_gradient_accumulation_boundary():
            return 0.0
        engine.set_gradient_accumulation_boundary(False)
        return float(engine.get_global_grad_norm()) if engine.was_step_applied() else math.nan


class CPUZeroStrategy(ZeroStrategy):
    """ZeRO on CPU processes, which Lightning's check for CUDA would refuse."""

    @property
    def root_device(self) -> torch.device:
        # DeepSpeed wants a device with an index.
        return torch.device("cpu", self.local_rank)

    def setup_environment(self) -> None:
        import deepspeed

        assert self.accelerator is not None
        self.accelerator.setup_device(self.root_device)
        self.set_world_ranks()
        # It would be compiled here, by every process at once; gloo does the same.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed("gloo", timeout=PATIENCE)
