"""RunMonitor: watches a `transformers.Trainer`, TRL's trainers among them, by what it logs.

    trainer = GRPOTrainer(..., args=GRPOConfig(logging_steps=1), callbacks=[RunMonitor()])

TRL averages over `logging_steps` and leaves NaN out of the average: with 1 every step is seen as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from robustops.errors import ConfigError
from robustops.monitor.alerts import Alert
from robustops.monitor.fitted import FittedMonitor
from robustops.monitor.importers.assemble import Table
from robustops.monitor.importers.log import Imported, Row, row_of
from robustops.monitor.observer import Observer
from robustops.monitor.verdict import ALARM, Verdict
from robustops.monitor.wording import headline

logger = logging.getLogger(__name__)
#: A summary that is logged once, at the end of training.
_SUMMARY = "train_runtime"
_STAGE = "train"


class RunMonitor(TrainerCallback):  # type: ignore[misc]
    """Observes: judges a run after each logged row. `alerts` are those that were reported.

    report: called with each new alert, None: a warning of this module's logger; on_verdict: called where the
    verdict or its type changes; stop: severity of an anomalous run at which training is asked to stop, None:
    never; profile: folder that `robustops monitor fit=` made of healthy runs of the same task, None: rules
    only. Only the main process watches.
    """

    def __init__(
        self,
        report: Callable[[Alert], None] | None = None,
        on_verdict: Callable[[Verdict], None] | None = None,
        stop: float | None = None,
        profile: Path | str | None = None,
    ) -> None:
        if stop is not None and not ALARM <= stop <= 1:
            raise ConfigError(f"stop is {stop}; give a severity from {ALARM} to 1, or None to go on whatever")
        self.report = report or _warn
        self.on_verdict = on_verdict
        self.stop = stop
        self.alerts: list[Alert] = []
        self._fitted = FittedMonitor.load(profile) if profile is not None else None
        self._table, self._observer = Table("trl"), Observer(self._fitted)

    @property
    def verdict(self) -> Verdict | None:
        """The newest one, None before the first row."""
        return self._observer.verdict

    @property
    def imported(self) -> Imported | None:
        """What has been seen, as telemetry; None before the first row."""
        return self._table.imported("the run", "trl") if len(self._table) else None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A resumed run has its history in its state; what was seen then is not reported again."""
        self._table, self._observer = Table("trl"), Observer(self._fitted)
        for logs in state.log_history:
            self._add(logs, int(logs.get("step", 0)))
        imported = self.imported
        if imported is not None:
            self._observer.look(imported.panel, _STAGE)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Judge the run with the row that was logged."""
        if not state.is_world_process_zero or not logs or not self._add(logs, int(state.global_step)):
            return
        imported = self.imported
        if imported is None:
            return
        before = self.verdict
        for alert in self._observer.look(imported.panel, _STAGE):
            self.alerts.append(alert)
            self.report(alert)
        verdict = self.verdict
        if verdict is None or verdict is before:
            return
        changed = before is None or (before.verdict, before.type) != (verdict.verdict, verdict.type)
        if changed and self.on_verdict is not None:
            self.on_verdict(verdict)
        if self.stop is not None and verdict.verdict == "anomalous":
            control.should_training_stop |= verdict.severity >= self.stop

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Say how it ended."""
        if self.verdict is not None and state.is_world_process_zero:
            logger.info("the run is %s", headline(self.verdict))

    def _add(self, logs: Mapping[str, Any], step: int) -> bool:
        """Whether this was a row of training that says something."""
        if _SUMMARY in logs:
            return False
        before = len(self._table)
        self._table.add(Row(step, row_of(logs).values))
        return len(self._table) > before


def _warn(alert: Alert) -> None:
    logger.warning("step %d: %s (severity %.2g)", alert.step, alert.message, alert.severity)
