"""`telemetry.jsonl`: one line a step, the facts that the run monitor and every report read.

    {"step":3,"stage":"grpo","metrics":{"reward_mean":0.5,"grad_norm":"NaN"},"facts":{"cases":["a/plus5"]}}

What a line's metrics and facts mean is in `monitor.schema`. NaN and infinity are kept, as the strings "NaN",
"Infinity" and "-Infinity". Wall-clock values do not belong here: two runs with one seed write the same bytes.
A line is on disk before `write` returns, and a line torn by a crash is dropped by reader and writer alike.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from robustops.errors import ConfigError, TrainingError

_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class StepRecord:
    """What is known of one optimiser step.

    step: optimiser updates done in the stage, this one included; stage: sft | grpo | ...; metrics:
    numbers by stable names, in the order of writing; facts: other JSON values (case ids, settings). A
    non-finite number among the facts becomes its name ("NaN"), as JSON has no other form for it.
    """

    step: int
    stage: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", {name: _number(name, v) for name, v in self.metrics.items()})
        object.__setattr__(self, "facts", _plain(dict(self.facts)))

    def to_line(self) -> str:
        """One JSON line without its newline."""
        body = {
            "step": self.step,
            "stage": self.stage,
            "metrics": {name: _named(value) for name, value in self.metrics.items()},
            "facts": self.facts,
        }
        return json.dumps(body, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_line(cls, line: str) -> Self:
        """The inverse of `to_line`; ValueError where the line is no step record."""
        body = json.loads(line)
        if not isinstance(body, dict) or not isinstance(body.get("step"), int):
            raise ValueError("not an object with an integer 'step'")
        metrics, facts = body.get("metrics", {}), body.get("facts", {})
        if not isinstance(metrics, dict) or not isinstance(facts, dict):
            raise ValueError("'metrics' and 'facts' must be objects")
        numbers = {
            name: _NAMES[value] if isinstance(value, str) and value in _NAMES else value
            for name, value in metrics.items()
        }
        try:
            return cls(body["step"], str(body.get("stage", "")), numbers, facts)
        except TypeError as error:
            raise ValueError(str(error)) from error


class TelemetryWriter:
    """Appends step records to a file and cuts it back for an exact resume.

    Opening an existing file continues it; a torn last line is removed. One writer a file.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        records = _mend(self.path)
        self._last = records[-1] if records else None
        self._fd = self._open()

    @property
    def last(self) -> StepRecord | None:
        """The newest record in the file."""
        return self._last

    def write(self, record: StepRecord) -> None:
        """Append one line and wait until it is on disk.

        Raises TrainingError where the step does not come after the last one of its stage: after a resume
        call `truncate_after` first.
        """
        last = self._last
        if last is not None and last.stage == record.stage and record.step <= last.step:
            raise TrainingError(
                f"{self.path.name} already has {last.stage} step {last.step}, step {record.step} cannot "
                "follow; call truncate_after(step, stage) with the checkpoint's step first"
            )
        line = memoryview((record.to_line() + "\n").encode())
        while line:
            line = line[os.write(self._fd, line) :]
        os.fsync(self._fd)
        self._last = record

    def truncate_after(self, step: int, stage: str | None = None) -> int:
        """Drop what a run wrote after the checkpoint from which it resumes; all or nothing.

        Args:
            step: the checkpoint's step; 0 drops the whole stage.
            stage: steps count anew in each stage, so name the one that resumes: lines of stages that
                follow it go too, lines of earlier ones stay. None: lines of every stage beyond `step`.

        Returns:
            The number of lines dropped.
        """
        records = read_telemetry(self.path)
        kept = _before(records, step, stage)
        if len(kept) < len(records):
            _replace(self.path, kept)
            os.close(self._fd)
            self._fd = self._open()
        self._last = kept[-1] if kept else None
        return len(records) - len(kept)

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def read_telemetry(path: Path | str) -> list[StepRecord]:
    """All complete records, in file order; the file may still be growing.

    Raises ConfigError where there is no such file, or where a line before the last is no step record.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise ConfigError(
            f"cannot read telemetry {path}: {error.strerror}; name a run folder's file"
        ) from error
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(StepRecord.from_line(line))
        except ValueError as error:
            if number == len(lines):  # no newline after it: torn by a crash, or still being written
                break
            raise ConfigError(f"{path} line {number} is no step record: {error}; is it telemetry?") from error
    return records


def _before(records: list[StepRecord], step: int, stage: str | None) -> list[StepRecord]:
    if stage is None:
        return [record for record in records if record.step <= step]
    begun = next((place for place, record in enumerate(records) if record.stage == stage), len(records))
    own = [record for record in records[begun:] if record.stage == stage and record.step <= step]
    return records[:begun] + own


def _mend(path: Path) -> list[StepRecord]:
    """Make the file end with a whole line, dropping a torn one."""
    if not path.exists():
        return []
    records = read_telemetry(path)
    with path.open("rb+") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            _, _, tail = content.rpartition(b"\n")
            if _is_record(tail):
                file.write(b"\n")
            else:
                file.truncate(len(content) - len(tail))
            file.flush()
            os.fsync(file.fileno())
    return records


def _is_record(line: bytes) -> bool:
    try:
        StepRecord.from_line(line.decode())
    except ValueError:
        return False
    return True


def _replace(path: Path, records: Iterable[StepRecord]) -> None:
    """Write the records beside the file and put them in its place in one move."""
    beside = path.with_name(path.name + ".new")
    with beside.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(record.to_line() + "\n" for record in records)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _number(name: str, value: Any) -> float:
    """A plain int or float; anything else is a bug of whoever made the record."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"metric '{name}' is {value!r}; metrics are numbers, other values go to facts")


def _named(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _plain(value: Any) -> Any:
    """A JSON value in the form in which it is read back."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _named(value) if isinstance(value, float) else value
