"""Writers that write nothing: for the processes of a run beside the one that keeps its records."""

from __future__ import annotations

from robustops.monitor.telemetry import StepRecord, TelemetryWriter
from robustops.tracking.rows import Row
from robustops.tracking.run_store import RunStore


class SilentStore(RunStore):
    """Takes everything that a run store takes, and stays empty. No file."""

    def __init__(self) -> None:
        super().__init__(":memory:")

    def _insert(self, table: str, rows: list[Row]) -> None:
        pass


class SilentTelemetry(TelemetryWriter):
    """Takes step records and drops them. No file."""

    def __init__(self) -> None:
        self._last = None

    def write(self, record: StepRecord) -> None:
        self._last = record

    def truncate_after(self, step: int, stage: str | None = None) -> int:
        self._last = None
        return 0

    def close(self) -> None:
        pass
