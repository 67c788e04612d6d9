"""AnomalyMonitor: watches a training stage step by step. The monitor's one Lightning file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from robustops.monitor.rules import Alert, step_alerts
from robustops.monitor.telemetry import StepRecord


class AnomalyMonitor(Callback):
    """Observes: holds every step's record against the rules and reports alerts; changes nothing.

    report: called with each alert. What was seen before a checkpoint goes with the checkpoint.
    """

    def __init__(self, report: Callable[[Alert], None]) -> None:
        self.report = report
        self.history: list[StepRecord] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        record: Any = pl_module.record
        self.history.append(record)
        for alert in step_alerts(self.history):
            self.report(alert)

    def state_dict(self) -> dict[str, Any]:
        return {"history": [record.to_line() for record in self.history]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = [StepRecord.from_line(line) for line in state_dict["history"]]
