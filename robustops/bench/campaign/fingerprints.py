"""How far each column of a faulty run moves from its control: what a fault looks like (pure, numpy)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustops.bench.campaign.dataset import Dataset
from robustops.bench.campaign.effects import FLOORS
from robustops.bench.run_faults.catalog import CATALOG
from robustops.errors import DatasetError
from robustops.monitor import schema


@dataclass(frozen=True)
class Fingerprints:
    """run_ids: of the faulty runs that have a control; columns: of the telemetry; z: (runs, columns), the
    mean over the window minus that of the control, in deviations of the same mean over healthy runs. The
    window goes from the onset to the horizon or the injection's end. NaN: not observed; infinite: the column
    moved though healthy runs agree on it to the last digit.
    """

    run_ids: tuple[str, ...]
    columns: tuple[str, ...]
    z: np.ndarray

    def of(self, run_ids: Sequence[str], column: str) -> np.ndarray:
        """(runs,) numbers of some runs in one column; runs without a control are left out."""
        places = {name: place for place, name in enumerate(self.run_ids)}
        chosen = [places[name] for name in run_ids if name in places]
        return np.asarray(self.z[chosen, self.columns.index(column)])


def fingerprints(dataset: Dataset, horizon: int) -> Fingerprints:
    """Of every faulty run whose fault sets in by the horizon.

    Raises:
        DatasetError: fewer than two healthy runs, or no faulty run with a control.
    """
    columns = schema.names()
    healthy = [row["run_id"] for row in dataset.rows if row["kind"] == "healthy"]
    if len(healthy) < 2:
        raise DatasetError(f"{dataset.folder} has {len(healthy)} healthy runs; effects need two at least")
    values = {row["run_id"]: _values(dataset, row["run_id"], columns) for row in dataset.rows}
    units: dict[tuple[int, int], np.ndarray] = {}
    names, found = [], []
    for row in dataset.rows:
        control = dataset.control(row["run_id"])
        if row["kind"] not in ("fault", "double") or control is None or row["onset"] > horizon:
            continue
        window = row["onset"], min(horizon, (row["end"] or horizon + 1) - 1)
        if window not in units:
            units[window] = _unit([values[name] for name in healthy], window, columns)
        change = _mean(values[row["run_id"]], window) - _mean(values[control], window)
        names.append(row["run_id"])
        found.append(_divided(change, units[window]))
    if not found:
        raise DatasetError(f"{dataset.folder} has no faulty run with a control that begins by step {horizon}")
    return Fingerprints(tuple(names), columns, np.stack(found))


def primary_effects(dataset: Dataset, prints: Fingerprints) -> dict[str, float]:
    """run_id -> effect on the quantity that its mechanism moves first, positive in the declared direction."""
    known = {info.name: info for fault in CATALOG.values() for info in fault.mechanisms}
    effects = {}
    for name, z in zip(prints.run_ids, prints.z, strict=True):
        info = known[dataset.by_id[name]["mechanism"]]
        effects[name] = info.direction * float(z[prints.columns.index(info.quantity)])
    return effects


def _values(dataset: Dataset, run_id: str, columns: Sequence[str]) -> np.ndarray:
    """(steps, columns)."""
    return np.stack([dataset.series(run_id, name) for name in columns], axis=1)


def _mean(values: np.ndarray, window: tuple[int, int]) -> np.ndarray:
    """(columns,) means over the steps of the window, NaN left out."""
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.filterwarnings("ignore", "Mean of empty slice")
        return np.asarray(np.nanmean(values[window[0] - 1 : window[1]], axis=0))


def _unit(healthy: Sequence[np.ndarray], window: tuple[int, int], columns: Sequence[str]) -> np.ndarray:
    """(columns,) sample deviations over healthy runs, at least the floor; NaN where fewer than two saw it."""
    means = np.stack([_mean(values, window) for values in healthy])
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.filterwarnings("ignore", "Degrees of freedom")
        spread = np.nanstd(means, axis=0, ddof=1)
    return np.asarray(np.maximum(spread, [FLOORS.get(name, 0.0) for name in columns]))


def _divided(change: np.ndarray, unit: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = change / unit
    return np.asarray(np.where(change == 0, np.where(np.isnan(unit), np.nan, 0.0), quotient))
