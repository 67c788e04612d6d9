"""The work, unit by unit: one method in one partition (and fold), tier and horizon; a file each.

    <folder>/scores/<method>.<tier>.<horizon>.p<partition>[.f<fold>].npz

A file that is there, of the same data set and the same program text of the method, is not made again: kill
the evaluation whenever you like. Units run in processes of one thread.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from robustops.bench.campaign.dataset import MANIFEST
from robustops.bench.campaign.extras import require
from robustops.bench.evaluation.protocol import Fold, Partition
from robustops.bench.evaluation.registry import DETECT, Method, chosen
from robustops.bench.evaluation.runs import Runs
from robustops.errors import ConfigError
from robustops.files import atomic_write_bytes
from robustops.monitor.diagnoser import novelty
from robustops.monitor.panel import Panel
from robustops.monitor.verdict import UNKNOWN
from robustops.seeding import child_seed

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Unit:
    """fold: None for a detector; thorough: also what a diagnoser does with types that it never saw, and what
    it learns from main mechanisms alone.
    """

    method: str
    tier: str
    horizon: int
    partition: Partition
    fold: Fold | None = None
    thorough: bool = False

    @property
    def row(self) -> tuple[str, str, int]:
        """Method, tier and horizon."""
        return self.method, self.tier, self.horizon

    @property
    def name(self) -> str:
        """Of its file."""
        fold = "" if self.fold is None else f".f{self.fold.number}"
        tier = self.tier.replace("+", "")
        return f"{self.method}.{tier}.{self.horizon}.p{self.partition.number}{fold}.npz"


@dataclass(frozen=True)
class Done:
    """What a unit found. meta: facts; arrays: run_ids and scores, or run_ids, types, probabilities."""

    unit: Unit
    meta: dict[str, Any]
    arrays: Arrays


def units_of(
    methods: Sequence[Method], partitions: Sequence[Partition], tiers: Sequence[str], horizons: Sequence[int]
) -> list[Unit]:
    """All work on these. Diagnosers are thorough in the first partition, with the whole telemetry."""
    found = []
    for partition in partitions:
        for horizon in horizons:
            for tier in tiers:
                for method in methods:
                    folds: Sequence[Fold | None] = [None] if method.task == DETECT else partition.folds
                    thorough = (
                        method.task != DETECT
                        and partition == partitions[0]
                        and (tier, horizon) == (tiers[-1], max(horizons))
                    )
                    found += [Unit(method.name, tier, horizon, partition, f, thorough) for f in folds]
    return found


def run_units(
    dataset: Path,
    out: Path,
    units: Sequence[Unit],
    *,
    seed: int = 0,
    workers: int = 1,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[list[Done], dict[str, str]]:
    """Do what is not done yet. Returns all that was found, in the order of units, and method -> reason for
    those that could not learn from these runs. A row of a table is found whole or not at all.
    """
    stamp = hashlib.sha256((dataset / MANIFEST).read_bytes()).hexdigest()[:16]
    digests = {name: _method(name).digest() for name in {unit.method for unit in units}}
    stamps = {unit: f"{stamp}/{digests[unit.method]}/{seed}/{_runs_digest(unit)}" for unit in units}
    found: dict[Unit, Done] = {u: old for u in units if (old := _read(out / u.name, u, stamps[u]))}
    waiting = [unit for unit in units if unit not in found]
    tell(len(found), len(units))
    refused: dict[str, str] = {}
    torn: set[tuple[str, str, int]] = set()
    for unit, meta, arrays in _results(dataset, waiting, seed, workers):
        if "refused" in meta:
            refused.setdefault(unit.method, meta["refused"])
            torn.add(unit.row)
        else:
            found[unit] = Done(unit, meta, arrays)
            _write(out / unit.name, {**meta, "stamp": stamps[unit]}, arrays)
        tell(len(found), len(units))
    return [found[unit] for unit in units if unit in found and unit.row not in torn], refused


def _results(
    dataset: Path, units: Sequence[Unit], seed: int, workers: int
) -> Iterator[tuple[Unit, dict[str, Any], Arrays]]:
    if workers <= 1 or len(units) <= 1:
        if units:
            runs = Runs.read(dataset)
            for unit in units:
                yield unit, *_work(runs, unit, seed)
        return
    # Spawned: a fork of a process that has threads (torch, Arrow) may hang.
    pool = ProcessPoolExecutor(
        min(workers, len(units)), get_context("spawn"), initializer=_begin, initargs=(dataset,)
    )
    with pool:
        futures = {pool.submit(_work_here, unit, seed): unit for unit in units}
        try:
            for future in as_completed(futures):
                yield futures[future], *future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_RUNS: list[Runs] = []


def _begin(dataset: Path) -> None:
    """Once a worker: one thread, and the data set."""
    import torch

    torch.set_num_threads(1)
    require("threadpoolctl").threadpool_limits(1)
    _RUNS[:] = [Runs.read(dataset)]


def _work_here(unit: Unit, seed: int) -> tuple[dict[str, Any], Arrays]:
    return _work(_RUNS[0], unit, seed)


def _work(runs: Runs, unit: Unit, seed: int) -> tuple[dict[str, Any], Arrays]:
    """Facts and arrays of a unit; the facts hold `refused` where the method cannot learn from these runs."""
    facts = {"method": unit.method, "tier": unit.tier, "horizon": unit.horizon}
    try:
        meta, arrays = _detected(runs, unit, seed) if unit.fold is None else _diagnosed(runs, unit, seed)
    except ConfigError as error:
        return {**facts, "refused": str(error)}, {}
    return {**facts, "partition": unit.partition.number, **meta}, arrays


def _detected(runs: Runs, unit: Unit, seed: int) -> tuple[dict[str, Any], Arrays]:
    detector = _method(unit.method).make(child_seed(seed, "evaluation", unit.partition.number))
    detector.fit([runs.panel(name, unit.horizon, unit.tier) for name in unit.partition.profile])
    names = [*unit.partition.calibration, *unit.partition.test]
    panels = [runs.panel(name, unit.horizon, unit.tier) for name in names]
    scores, steps = _scored(detector, panels)
    if np.isnan(scores).any():
        raise RuntimeError(f"{unit.method} gave NaN for {names[int(np.isnan(scores).argmax())]}")
    arrays = {"run_ids": np.array(names), "scores": scores}
    if steps:
        arrays["steps"] = _padded(steps)
    return {"threshold": _own_threshold(detector)}, arrays


def _scored(detector: Any, panels: Sequence[Panel]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Score of each run, and its step scores where the detector has them. Both of a run follow each other, so
    that a detector need compute what they share only once.
    """
    online, many = hasattr(detector, "step_scores"), getattr(detector, "scores", None)
    scores, steps = [], []
    for panel in panels:
        if online:
            steps.append(detector.step_scores(panel))
        if many is None:
            scores.append(detector.score(panel))
    return np.asarray(scores if many is None else many(panels), dtype=np.float64), steps


def _own_threshold(detector: Any) -> float | None:
    """What a method does as it comes, if it has a threshold of its own."""
    found = getattr(detector, "threshold", None)
    return None if found is None else float(found)


def _padded(series: Sequence[np.ndarray]) -> np.ndarray:
    """(runs, T) float32; -inf, which is no alarm, after the end of a shorter run."""
    rows = np.full((len(series), max(map(len, series))), -np.inf, dtype=np.float32)
    for row, values in zip(rows, series, strict=True):
        row[: len(values)] = values
    return rows


def _diagnosed(runs: Runs, unit: Unit, seed: int) -> tuple[dict[str, Any], Arrays]:
    fold = unit.fold
    assert fold is not None
    labels = runs.labels
    types = sorted({labels[name].fault for name in (*fold.train, *fold.test)})
    arrays = {"run_ids": np.array([*fold.test, *fold.healthy]), "types": np.array([*types, UNKNOWN])}
    arrays["probabilities"] = _probabilities(runs, unit, seed, fold.train, types)
    if unit.thorough:
        main = [name for name in fold.train if labels[name].main]
        arrays["from_main"] = _probabilities(runs, unit, seed, main, types)
        left_out = _left_out(unit, {labels[name].fault for name in fold.test}, types)
        arrays["left_out"] = np.array(left_out)
        rows = [_novelties(runs, unit, seed, name) for name in left_out]
        arrays["novelty"] = np.array(rows).reshape(len(left_out), len(fold.test))
    return {"fold": fold.number}, arrays


def _left_out(unit: Unit, present: set[str], types: Sequence[str]) -> list[str]:
    """Types that this fold leaves out of training, one at a time: each type in one fold alone, if that has
    runs of it.
    """
    folds = len(unit.partition.folds)
    place = unit.partition.folds.index(unit.fold) if unit.fold else 0
    return [name for at, name in enumerate(types) if name in present and at % folds == place]


def _fitted(runs: Runs, unit: Unit, seed: int, train: Sequence[str]) -> Any:
    number = unit.fold.number if unit.fold else 0
    diagnoser = _method(unit.method).make(child_seed(seed, "evaluation", unit.partition.number, number))
    healthy = [runs.panel(name, unit.horizon, unit.tier) for name in unit.partition.profile]
    panels = [runs.panel(name, unit.horizon, unit.tier) for name in train]
    diagnoser.fit(panels, [runs.labels[name].fault for name in train], healthy)
    return diagnoser


def _probabilities(
    runs: Runs, unit: Unit, seed: int, train: Sequence[str], types: Sequence[str]
) -> np.ndarray:
    """(tested runs, types and UNKNOWN)."""
    diagnoser = _fitted(runs, unit, seed, train)
    assert unit.fold is not None
    names = (*unit.fold.test, *unit.fold.healthy)
    found = [diagnoser.probabilities(runs.panel(n, unit.horizon, unit.tier)) for n in names]
    return np.array([[one.get(name, 0.0) for name in (*types, UNKNOWN)] for one in found])


def _novelties(runs: Runs, unit: Unit, seed: int, left_out: str) -> list[float]:
    assert unit.fold is not None
    diagnoser = _fitted(runs, unit, seed, [n for n in unit.fold.train if runs.labels[n].fault != left_out])
    panels = [runs.panel(name, unit.horizon, unit.tier) for name in unit.fold.test]
    return [novelty(diagnoser.probabilities(panel)) for panel in panels]


def _method(name: str) -> Method:
    return chosen([name])[0]


def _runs_digest(unit: Unit) -> str:
    """Of the runs that a unit learns from and is tested on."""
    text = json.dumps([dataclasses.asdict(unit.partition), unit.fold and dataclasses.asdict(unit.fold)])
    return hashlib.sha256(f"{text}{unit.thorough}".encode()).hexdigest()[:16]


def _write(path: Path, meta: dict[str, Any], arrays: Arrays) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, meta=np.array(json.dumps(meta)), **arrays)  # type: ignore[arg-type]
    atomic_write_bytes(path, buffer.getvalue())


def _read(path: Path, unit: Unit, stamp: str) -> Done | None:
    """None where the unit is to be done (again): there is no file, or it is damaged, or of something else."""
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        meta = json.loads(str(arrays.pop("meta")))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    return Done(unit, meta, arrays) if meta.get("stamp") == stamp else None
