"""What two connected processes do in the tests of strategies; each leaves what it saw in a file of its own.

torchrun --standalone --nproc-per-node 2 -m tests.learning.two_processes FOLDER
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from robustops.errors import TrainingError
from robustops.learning import stages
from robustops.learning.checkpoints import Checkpoints, StageCheckpoint, StreamCheckpointIO
from robustops.learning.data import Demonstration, DemonstrationSchedule, StepData
from robustops.learning.optimisation import PolicyModule, accumulate, adamw, update
from robustops.learning.processes import connected, gather_aside, gather_objects, total, world
from robustops.learning.sft_module import SFTModule, _Counts
from robustops.settings import HardwareSettings
from tests.learning.support import Metrics, weights_of
from tests.tiny_model import tiny_model

VOCABULARY, STEPS, GRAD_CLIP = 300, 4, 0.5
#: Strategies; ZeRO-3 with all parameters in parts, which it leaves whole where they are this small.
PROFILES = {
    "ddp": HardwareSettings("ddp", devices=2, strategy="ddp"),
    "zero2": HardwareSettings("zero2", devices=2, strategy="deepspeed_stage_2"),
    "zero3": HardwareSettings("zero3", devices=2, strategy="deepspeed_stage_3_offload"),
}


def demonstrations() -> list[Demonstration]:
    """Of very different lengths, so that two processes get different numbers of micro-batches."""
    rng = random.Random(0)

    def make(length: int) -> Demonstration:
        first, end = length // 3, length // 2
        ids = tuple(rng.randrange(5, VOCABULARY) for _ in range(length))
        return Demonstration(ids, tuple(first <= i < end for i in range(length)), ((first, end),))

    return [make(length) for length in (20, 31, 90, 18, 60, 25, 37)]


class CountedSFT(SFTModule):
    """Counts the backward passes of each step."""

    def __init__(self) -> None:
        model = tiny_model(VOCABULARY, seed=1, width=64)
        super().__init__(
            model,
            learning_rate=1e-3,
            total_steps=STEPS,
            warmup_steps=1,
            weight_decay=0.1,
            grad_clip=GRAD_CLIP,
        )
        self.passes: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.passes.append(0)
        super().training_step(batch, batch_idx)

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        self.passes[-1] += 1
        super().manual_backward(loss, *args, **kwargs)


def train(
    hardware: HardwareSettings,
    module: LightningModule,
    data: StepData,
    *callbacks: Callback,
    resume: Any = None,
) -> None:
    arguments = stages.trainer_arguments(hardware, GRAD_CLIP)
    strategy = arguments["strategy"]
    if hardware.strategy.startswith("deepspeed_stage_3"):
        strategy.config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    with stages.quiet():
        trainer = Trainer(
            **arguments,
            max_epochs=1,
            logger=False,
            enable_checkpointing=any(isinstance(callback, StageCheckpoint) for callback in callbacks),
            enable_progress_bar=False,
            enable_model_summary=False,
            plugins=[StreamCheckpointIO()],
            callbacks=list(callbacks),
        )
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=False)


def train_sft(
    hardware: HardwareSettings, size: int, *callbacks: Callback, steps: int = STEPS, resume: Any = None
) -> dict[str, Any]:
    """Metrics and backward passes of each step; the weights, which ZeRO-3 leaves to rank 0 alone."""
    module, metrics = CountedSFT(), Metrics()
    schedule = DemonstrationSchedule(demonstrations(), size, budget=100, seed=0, world=world())
    train(hardware, module, StepData(steps, schedule.step), metrics, *callbacks, resume=resume)
    return {"metrics": metrics.steps, "passes": module.passes, "weights": weights_of(module.model)}


# stopped and resumed ------------------------------------------------------------------------------
class Stop(Callback):
    """Ends the training after a step, before its checkpoint."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.after:
            raise InterruptedError


class Start(Callback):
    """What a callback finds when it would hand the first weights to a sampler."""

    loss = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        part = DemonstrationSchedule(demonstrations(), 1, 1000, seed=0).step(0)
        with torch.no_grad():
            self.loss = pl_module._loss(part, part.parts[0], _Counts()).item()


def stopped_and_resumed(hardware: HardwareSettings, folder: Path) -> dict[str, Any]:
    """Stopped in step 3, with a checkpoint of step 2, then resumed with a fresh module."""
    checkpoints, start = Checkpoints(folder), Start()
    with suppress(InterruptedError):
        train_sft(hardware, 5, Stop(3), StageCheckpoint(checkpoints, 1))
    point = gather_objects([checkpoints.recover(print) if world().rank == 0 else None])[0][0]
    assert point is not None
    return {
        "step": point.step,
        **train_sft(hardware, 5, start, resume=point.path),
        "loss_at_start": start.loss,
    }


# gradients that are missing, or not finite ----------------------------------------------------------
class Scripted(PolicyModule):
    """What the gradient of its one weight is on each process, step by step; None: no backward pass."""

    grad_clip = GRAD_CLIP

    def __init__(self, script: list[Callable[[int], float] | None]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.script = script
        self.norms: list[float] = []
        self.error = ""

    def configure_optimizers(self) -> Any:
        return adamw(self, 0.1, 0.1, 0, None)

    def training_step(self, step: Tensor, batch_idx: int) -> None:
        gradient = self.script[int(step)]
        losses = [] if gradient is None else [lambda: (self.weight * gradient(world().rank)).sum()]
        accumulate(self, losses)
        try:
            self.norms.append(update(self, GRAD_CLIP)[0])
        except TrainingError as error:
            self.error = str(error)


def scripted(hardware: HardwareSettings, *script: Callable[[int], float] | None) -> Scripted:
    module = Scripted(list(script))
    train(hardware, module, StepData(len(script), torch.tensor))
    return module


def missing_and_broken(hardware: HardwareSettings) -> dict[str, Any]:
    """Gradients 1 and 2 on the two processes, which make 3; then none; then NaN on one process."""
    one = scripted(hardware, lambda rank: rank + 1.0)
    two = scripted(hardware, lambda rank: rank + 1.0, None)
    broken = scripted(hardware, lambda rank: rank + 1.0, lambda rank: float("nan") if rank else 1.0)
    return {
        "norms": two.norms,
        "error": broken.error,
        "weights": [module.weight.detach().clone() for module in (one, two, broken)],
    }


# messages -----------------------------------------------------------------------------------------
def exchange() -> dict[str, Any]:
    """Both kinds of gathering at once, from two threads that take their time differently on each process."""
    rank = world().rank
    heard: list[Any] = []

    def beside() -> None:
        heard.extend(gather_aside([f"beside {rank}", number]) for number in range(20))

    thread = Thread(target=beside)
    if rank == 0:
        thread.start()
    main = [gather_objects([f"main {rank}"] * (rank + 1)) for _ in range(20)]
    if rank == 1:
        thread.start()
    thread.join()
    return {"main": main, "beside": heard, "total": total([1.5, float(rank)])}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with connected("cpu", 2) as (rank, _):
        seen: dict[str, Any] = {"exchange": exchange()}
        for name, hardware in PROFILES.items():
            seen[name] = {
                "sft": train_sft(hardware, 5),
                "lonely": train_sft(hardware, 1)["passes"],
                "resumed": stopped_and_resumed(hardware, folder / name),
                "gradients": missing_and_broken(hardware),
            }
        torch.save(seen, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
