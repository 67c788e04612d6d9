"""AnomalyMonitor: watches a training stage step by step. The monitor's one Lightning file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from robustops.monitor.alerts import Alert, notices
from robustops.monitor.fitted import FittedMonitor
from robustops.monitor.observer import Observer
from robustops.monitor.panel import Panel
from robustops.monitor.telemetry import StepRecord


class AnomalyMonitor(Callback):
    """Observes: judges the run after every step and reports alerts; changes nothing.

    report: called with each alert; fitted: what healthy runs of this configuration are like, None: rules
    only. What was seen before a checkpoint goes with the checkpoint.
    """

    def __init__(self, report: Callable[[Alert], None], fitted: FittedMonitor | None = None) -> None:
        self.report = report
        self.observer = Observer(fitted)
        self.history: list[StepRecord] = []
        #: Of all steps up to the last one that was looked at.
        self.panel = Panel.of(())

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        record: Any = pl_module.record
        self.history.append(record)
        self.panel = Panel.of(self.history)
        for alert in [*notices(record), *self.observer.look(self.panel, record.stage)]:
            self.report(alert)

    def state_dict(self) -> dict[str, Any]:
        lines = [record.to_line() for record in self.history]
        return {"history": lines, "told": sorted(self.observer.told)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = [StepRecord.from_line(line) for line in state_dict["history"]]
        self.observer.told = set(state_dict["told"])
