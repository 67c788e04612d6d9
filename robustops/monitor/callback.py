"""AnomalyMonitor: watches a training stage step by step. The monitor's one Lightning file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from robustops.monitor.rules import Alert, step_alerts
from robustops.monitor.telemetry import StepRecord


class AnomalyMonitor(Callback):
    """Observes: holds every step's metrics against the rules and reports alerts; changes nothing.

    report: called with each alert. What was seen before a checkpoint goes with the checkpoint.
    """

    def __init__(self, stage: str, report: Callable[[Alert], None]) -> None:
        self.stage = stage
        self.report = report
        self.history: list[StepRecord] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        metrics: dict[str, float] = dict(pl_module.step_metrics)  # type: ignore[arg-type]
        step: Any = pl_module.steps_done
        self.history.append(StepRecord(step=step, stage=self.stage, metrics=metrics))
        for alert in step_alerts(self.history):
            self.report(alert)

    def state_dict(self) -> dict[str, Any]:
        return {"history": [record.to_line() for record in self.history]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = [StepRecord.from_line(line) for line in state_dict["history"]]
