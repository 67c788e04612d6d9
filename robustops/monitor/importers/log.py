"""What readers of logs hand on, before any name is translated."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from robustops.errors import ConfigError
from robustops.monitor.panel import Panel

_WRAPPED = re.compile(r"(?:np\.|numpy\.)?(?:float\d*|int\d*|tensor|array)\(\s*([^,()\s]+)[^()]*\)")
_OUT_OF = re.compile(r"(\d+)\s*/\s*\d+")

#: Bytes in which a binary file shows itself by a zero.
_PEEK = 4096
#: Keys under which a source logs the optimiser step, most telling first. `_step` of W&B counts calls.
STEP_KEYS = (
    *("train/global_step", "training/global_step", "global_step/max_steps", "global_step"),
    *("trainer/global_step", "step", "Step", "iteration", "_step"),
)


@dataclass(frozen=True)
class Row:
    """One logged row. step: None where the source does not say; values: by the source's own keys, NaN where
    the source wrote NaN; a key that is absent, or null, was not observed.
    """

    step: int | None
    values: Mapping[str, float]


@dataclass(frozen=True)
class Log:
    """rows: in the order of the file; notes: what a reader of the result should know, in words;
    kl_estimator: k1 or k3 where the source says which one it logs.
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    kl_estimator: str | None = None


@dataclass(frozen=True)
class Imported:
    """A log as telemetry.

    format: of the file; names: whose keys it has (`keymap.MAPS`); unmapped: key -> why it is in no column;
    notes: what was passed over, numbered, merged.
    """

    panel: Panel
    format: str
    names: str
    unmapped: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A file or folder that a user named."""

    path: Path

    @cached_property
    def text(self) -> str:
        """Content of a text file, read once; bytes that are no UTF-8 (or UTF-16, with its mark) are replaced.
        Empty for a binary file.
        """
        try:
            with self.path.open("rb") as file:
                start = file.read(_PEEK)
                wide = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
                if b"\0" in start and not wide:
                    return ""
                return (start + file.read()).decode("utf-16" if wide else "utf-8-sig", errors="replace")
        except OSError as error:
            raise ConfigError(f"cannot read {self.path}: {error.strerror}; name a readable log") from error

    @property
    def is_folder(self) -> bool:
        return self.path.is_dir()

    def lines(self) -> Iterator[tuple[int, str]]:
        """(number from 1, line) of lines that hold something. A carriage return ends a line too, as
        progress bars use it.
        """
        for number, line in enumerate(re.split(r"\r\n|\n|\r", self.text), start=1):
            if line.strip():
                yield number, line


def number(value: Any) -> float | None:
    """A logged value as float, also from texts such as `np.float64(0.5)`, `tensor(1., device=...)`, "nan" or
    "0.25"; None for what is no number, and for null.
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, str):
        return None
    text = value.strip()
    wrapped = _WRAPPED.fullmatch(text)
    try:
        return float(wrapped.group(1) if wrapped else text)
    except ValueError:
        return None


def step_of(body: Mapping[str, Any]) -> int | None:
    """The optimiser step that a row names; "5/3766" is 5."""
    for key in STEP_KEYS:
        value = body.get(key)
        out_of = _OUT_OF.fullmatch(value.strip()) if isinstance(value, str) else None
        found = float(out_of.group(1)) if out_of else number(value)
        if found is not None and math.isfinite(found) and found == int(found):
            return int(found)
    return None


def row_of(body: Mapping[str, Any]) -> Row:
    """A row of a mapping as it was logged; values that are no numbers are left out."""
    values = {str(key): found for key, value in body.items() if (found := number(value)) is not None}
    return Row(step_of(body), {key: value for key, value in values.items() if key not in STEP_KEYS})
