"""Writes every optimiser step to telemetry.jsonl, run.db and the loggers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from robustops.monitor.telemetry import StepRecord, TelemetryWriter
from robustops.records import Group
from robustops.tracking.run_store import RunStore


class TelemetryCallback(Callback):
    """One record a step. telemetry.jsonl holds no wall-clock times, run.db does.

    groups: the groups sampled for the step, whose episodes go to run.db (None: a stage without).
    When a run resumes, what was written after its checkpoint is taken back first.
    """

    def __init__(
        self,
        stage: str,
        telemetry: TelemetryWriter,
        store: RunStore,
        groups: Callable[[], list[Group]] | None = None,
    ) -> None:
        self.stage = stage
        self.telemetry = telemetry
        self.store = store
        self.groups = groups
        self._began = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done: Any = pl_module.steps_done
        self.telemetry.truncate_after(done, stage=self.stage)
        self.store.truncate(self.stage, done)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._began = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        metrics: dict[str, float] = dict(pl_module.step_metrics)  # type: ignore[arg-type]
        step: Any = pl_module.steps_done
        seconds = time.monotonic() - self._began
        self.store.add_step(self.stage, step, metrics, seconds)
        if self.groups is not None:
            episodes = [episode for group in self.groups() for episode in group.episodes]
            self.store.add_episodes(self.stage, step, episodes)
        self.telemetry.write(StepRecord(step=step, stage=self.stage, metrics=metrics))
        for logger in trainer.loggers:
            logger.log_metrics({f"{self.stage}/{name}": value for name, value in metrics.items()}, step)
