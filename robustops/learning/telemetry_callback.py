"""Writes every optimiser step to telemetry.jsonl, run.db and the loggers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from robustops.monitor.telemetry import TelemetryWriter
from robustops.records import Group
from robustops.tracking.run_store import RunStore


class TelemetryCallback(Callback):
    """The module's record of each step. telemetry.jsonl holds no wall-clock times, run.db does.

    groups: the groups sampled for the step, whose episodes go to run.db (None: a stage without).
    When a run resumes, what was written after its checkpoint is taken back first.
    """

    def __init__(
        self,
        telemetry: TelemetryWriter,
        store: RunStore,
        groups: Callable[[], list[Group]] | None = None,
    ) -> None:
        self.telemetry = telemetry
        self.store = store
        self.groups = groups
        self._began = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done: Any = pl_module.steps_done
        stage: Any = pl_module.stage
        self.telemetry.truncate_after(done, stage=stage)
        self.store.truncate(stage, done)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._began = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        record: Any = pl_module.record
        seconds = time.monotonic() - self._began
        self.store.add_step(record.stage, record.step, record.metrics, seconds)
        if self.groups is not None:
            episodes = [episode for group in self.groups() for episode in group.episodes]
            self.store.add_episodes(record.stage, record.step, episodes)
        self.telemetry.write(record)
        for logger in trainer.loggers:
            named = {f"{record.stage}/{name}": value for name, value in record.metrics.items()}
            logger.log_metrics(named, record.step)
