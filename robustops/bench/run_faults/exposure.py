"""`exposure.jsonl`: what an injector really touched, one line a step (a second one has `exposure_2.jsonl`).

    {"step":6,"fault":"reward_spike","mechanism":"episode_spike","unit":"episode","level":1.0,
     "eligible":16,"touched":9,"before":"7d0c...","after":"19ab...",
     "noted":9,"differing":9,"numbers":9,"sum_before":6.1,"sum_after":33.1,"sum_abs":27.0,"sum_squares":81.0}

It is the ground truth of an injection, for its verification alone: no detector reads it, and nothing of it is
in the telemetry. `before` and `after` are digests of the touched values; they are sums of one hash a value,
so that the order in which episodes run changes nothing. Outside the window nothing is eligible. Where the
strength is the probability of an all-or-nothing effect, a touched unit may yet be as it was.

`noted` values of struck units were looked at, of which `differing` are not what they were. Where a value is
measured by a number (a total reward, an advantage, a count of tokens, a learning rate; see `Mechanism.note`),
there are the sums over these `numbers`, of |after - before| and of its square as well, exactly rounded.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robustops.bench.run_faults.spec import Key, RunFaultSpec
from robustops.errors import ConfigError
from robustops.files import atomic_write_text

NAME = "exposure.jsonl"
_MODULUS = 2**64
#: A number before and after.
Pair = tuple[float, float]


def log_name(number: int) -> str:
    """File name of the log of a run's injector; number: from 1."""
    return NAME if number == 1 else f"exposure_{number}.jsonl"


@dataclass
class StepExposure:
    """Units seen and struck in one step, the sums of the hashes of values before and after, how many values
    were noted and differ, and the pairs of numbers that measure them.
    """

    eligible: set[Key] = field(default_factory=set)
    touched: set[Key] = field(default_factory=set)
    before: int = 0
    after: int = 0
    noted: int = 0
    differing: int = 0
    numbers: list[Pair] = field(default_factory=list)

    def state(self) -> list[Any]:
        keys = [sorted(self.eligible, key=repr), sorted(self.touched, key=repr)]
        return [*keys, self.before, self.after, self.noted, self.differing, sorted(self.numbers)]

    @classmethod
    def of(cls, state: list[Any]) -> StepExposure:
        eligible, touched, before, after, noted, differing, numbers = state
        return cls(
            {tuple(key) for key in eligible},
            {tuple(key) for key in touched},
            before,
            after,
            noted,
            differing,
            [(first, second) for first, second in numbers],
        )

    def facts(self) -> dict[str, Any]:
        """What a line says of the step."""
        changes = [after - before for before, after in self.numbers]
        return {
            "eligible": len(self.eligible),
            "touched": len(self.touched),
            "before": f"{self.before:016x}",
            "after": f"{self.after:016x}",
            "noted": self.noted,
            "differing": self.differing,
            "numbers": len(self.numbers),
            "sum_before": math.fsum(before for before, _ in self.numbers),
            "sum_after": math.fsum(after for _, after in self.numbers),
            "sum_abs": math.fsum(map(abs, changes)),
            "sum_squares": math.fsum(change * change for change in changes),
        }


class ExposureLog:
    """Collects what an injector does and appends it step by step. A line is on disk before the step ends."""

    def __init__(self, path: Path, spec: RunFaultSpec) -> None:
        self.path = path
        self.spec = spec
        #: Steps that are not complete: the one in work, and one that is sampled ahead.
        self.open: dict[int, StepExposure] = {}

    def seen(self, step: int, key: Key, *, struck: bool) -> None:
        """A unit inside the window."""
        exposure = self.open.setdefault(step, StepExposure())
        exposure.eligible.add(key)
        if struck:
            exposure.touched.add(key)

    def changed(
        self, step: int, key: Key, before: object, after: object, numbers: Sequence[Pair] = ()
    ) -> None:
        """A value of a struck unit, in plain form. numbers: finite ones that measure it, before and after."""
        exposure = self.open.setdefault(step, StepExposure())
        exposure.noted += 1
        exposure.differing += before != after
        exposure.numbers += numbers
        exposure.before = (exposure.before + _hash(key, before)) % _MODULUS
        exposure.after = (exposure.after + _hash(key, after)) % _MODULUS

    def begin(self, steps_done: int) -> None:
        """Drop the lines of steps that are done again, and a line that a crash tore."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in read_exposure(self.path) if line["step"] <= steps_done]
        atomic_write_text(self.path, "".join(_line(body) for body in kept))
        self.open = {step: exposure for step, exposure in self.open.items() if step > steps_done}

    def end_step(self, step: int) -> None:
        """Write the step's line."""
        exposure = self.open.pop(step, StepExposure())
        spec = self.spec
        body = {
            "step": step,
            "fault": spec.fault,
            "mechanism": spec.mechanism,
            "unit": spec.unit,
            "level": spec.level(step),
            **exposure.facts(),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(body))
            file.flush()
            os.fsync(file.fileno())

    def state_dict(self) -> dict[str, Any]:
        return {"open": {step: exposure.state() for step, exposure in self.open.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.open = {int(step): StepExposure.of(body) for step, body in state["open"].items()}


def read_exposure(path: Path) -> list[dict[str, Any]]:
    """All complete lines; [] where there is no such file. ConfigError for a file of another kind."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    found = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is torn
        try:
            body = json.loads(line)
            body["step"] = int(body["step"])
            found.append(body)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} line {number} is no exposure; is it another file?") from error
    return found


def _line(body: dict[str, Any]) -> str:
    return json.dumps(body, separators=(",", ":")) + "\n"


def _hash(key: Key, value: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr((key, value)).encode(), digest_size=8).digest(), "big")
