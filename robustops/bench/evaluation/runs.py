"""The runs of a data set as the evaluation sees them: panels for methods, labels for their judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from robustops.bench.campaign.dataset import Dataset, load, load_exposure
from robustops.bench.run_faults.catalog import CATALOG
from robustops.monitor import schema
from robustops.monitor.panel import Panel

#: By name: the columns that a method may look at. "P+I" is everything.
TIERS: dict[str, tuple[str, ...]] = {"P": schema.names("P"), "P+I": schema.names()}
HORIZONS = (20, 40)


@dataclass(frozen=True)
class Label:
    """What a run really is; no method sees it.

    onset: first step at which the injection really struck something, as the exposure log says (0: none);
    main: by the type's main mechanism, which methods may learn from alone; verified: as in table runs.
    """

    run_id: str
    group: int
    kind: str
    fault: str
    family: str
    difficulty: str
    mode: str
    mechanism: str
    main: bool
    verified: bool
    onset: int


class Runs:
    """Panels and labels by run_id."""

    def __init__(self, dataset: Dataset, onsets: Mapping[str, int] | None = None) -> None:
        self.dataset = dataset
        self._onsets = dict(onsets or {})

    @classmethod
    def read(cls, folder: Path) -> Runs:
        """Of a data set's folder, with onsets from the exposure; errors as of `campaign.dataset.load`."""
        return cls(load(folder), struck(load_exposure(folder)))

    def panel(self, run_id: str, horizon: int, tier: str) -> Panel:
        """The first `horizon` steps of a run, with the tier's columns alone."""
        return self._panel(run_id).until(horizon).only(TIERS[tier])

    @cache  # noqa: B019 - one instance a process, which lives as long as it
    def _panel(self, run_id: str) -> Panel:
        row = self.dataset.by_id[run_id]
        columns = {n: self.dataset.series(run_id, n) for n in schema.caps(row["lacks"] or ())}
        steps = np.asarray(self.dataset.steps_of(run_id).column("step").to_pylist(), dtype=np.int64)
        return Panel(steps, columns, run_id)

    @cached_property
    def labels(self) -> dict[str, Label]:
        """Of every run."""
        return {row["run_id"]: self._label(row) for row in self.dataset.rows}

    def _label(self, row: Mapping[str, Any]) -> Label:
        fault = CATALOG.get(row["fault"])
        return Label(
            row["run_id"],
            row["seed_group"],
            row["kind"],
            row["fault"],
            fault.family if fault else "none",
            row["difficulty"],
            row["mode"],
            row["mechanism"],
            fault is not None and row["mechanism"] == fault.mechanisms[0].name,
            bool(row["verified"]),
            self._onsets.get(row["run_id"], row["onset"] if row["kind"] != "healthy" else 0),
        )


def struck(exposure: Any) -> dict[str, int]:
    """run_id -> first step at which an injection touched anything. exposure: Arrow table."""
    first: dict[str, int] = {}
    names = ("run_id", "step", "touched")
    for run_id, step, touched in zip(*(exposure.column(n).to_pylist() for n in names), strict=True):
        if touched and step < first.get(run_id, step + 1):
            first[run_id] = step
    return first


def family_of(fault: str) -> str:
    """Family of a type; "none" for anything else."""
    return CATALOG[fault].family if fault in CATALOG else "none"
