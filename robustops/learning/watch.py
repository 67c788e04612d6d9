"""Lets the intervention of `monitor.intervention` look at every step of the GRPO stage, and stop it."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from robustops.learning.checkpoints import StageCheckpoint
from robustops.monitor.callback import AnomalyMonitor
from robustops.monitor.intervention.policy import Jump, Remediation


class Watch(Callback):
    """Asks after each step what to do. `jump` is what the fit was stopped for, None: it ended by itself.

    It comes after the observer, whose history it reads, and before the saver: a checkpoint knows what was
    decided after its step.
    """

    def __init__(self, remediation: Remediation) -> None:
        self.remediation = remediation
        self.jump: Jump | None = None

    def attach(self, observer: AnomalyMonitor, saver: StageCheckpoint) -> None:
        """Where a step's records are found, and who saves: the callbacks of the fit to come."""
        self.observer = observer
        self.saver = saver
        saver.checkpoints.pinned = self.remediation.pinned

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.jump = self.remediation.after_step(self.observer.panel, self.checkpoints)
        self.saver.checkpoints.pinned = self.remediation.pinned
        if self.jump is not None:
            self.saver.wanted = self.jump.pauses and self.jump.target is None
            trainer.should_stop = True

    def checkpoints(self) -> list[int]:
        """Batches after which there is a checkpoint."""
        return [point.batches for point in self.saver.checkpoints.points()]
