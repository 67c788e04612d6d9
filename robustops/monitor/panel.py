"""A run's telemetry as arrays: what detectors, diagnosis and importers hand to each other.

A panel holds one value a step of every column that its source can fill, NaN where a step did not observe it.
A column that the source cannot fill is absent: that is not the same as a column of NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from robustops.errors import ConfigError
from robustops.monitor import schema
from robustops.monitor.telemetry import StepRecord

Series = NDArray[np.float64]


@dataclass(frozen=True)
class Panel:
    """steps: (T,) optimiser steps, rising; columns: schema names (and `rewards.<part>.mean`) -> (T,) float64,
    NaN: not observed; source: of what the panel was made, for messages.
    """

    steps: NDArray[np.int64]
    columns: Mapping[str, Series] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        if self.steps.ndim != 1 or (np.diff(self.steps) <= 0).any():
            raise ConfigError(
                f"steps of {self.source or 'a panel'} do not rise; a step is logged once, in order"
            )
        wrong = [name for name, values in self.columns.items() if values.shape != self.steps.shape]
        if wrong:
            raise ConfigError(f"{', '.join(wrong)} of {self.source} have not one value for each of its steps")

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, column: str) -> Series:
        """(T,) values; all NaN for a column that the source does not have."""
        found = self.columns.get(column)
        return np.full(len(self), np.nan) if found is None else found

    def observed(self, column: str) -> bool:
        """Whether any step has a value."""
        return column in self.columns and not bool(np.isnan(self.columns[column]).all())

    def matrix(self, columns: Sequence[str]) -> Series:
        """(T, columns) values."""
        return np.stack([self[name] for name in columns], axis=1) if columns else np.empty((len(self), 0))

    def until(self, step: int) -> Panel:
        """What was known after a step: rows of later steps are gone."""
        return self.rows(self.steps <= step)

    def rows(self, chosen: NDArray[np.bool_]) -> Panel:
        """The rows where `chosen` (T,) is true."""
        return Panel(self.steps[chosen], {n: v[chosen] for n, v in self.columns.items()}, self.source)

    def only(self, columns: Iterable[str]) -> Panel:
        """With no other columns than these, such as `schema.names("P")`."""
        wanted = set(columns)
        return Panel(self.steps, {n: v for n, v in self.columns.items() if n in wanted}, self.source)

    @classmethod
    def of(cls, records: Sequence[StepRecord], source: str = "telemetry") -> Panel:
        """Of the records of one stage, in order. Columns that a record's fact `lacks` excludes are absent."""
        lacks = {need for record in records for need in record.facts.get("lacks", ())}
        names = [n for n in schema.caps(lacks) if any(n in record.metrics for record in records)]
        rows = [[float(record.metrics.get(name, np.nan)) for name in names] for record in records]
        values = np.asarray(rows, dtype=np.float64).reshape(len(records), len(names))
        steps = np.asarray([record.step for record in records], dtype=np.int64)
        return cls(steps, {name: values[:, place] for place, name in enumerate(names)}, source)
