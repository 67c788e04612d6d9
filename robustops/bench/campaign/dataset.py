"""The benchmark's data set: four Parquet tables made from a campaign, and a reader for them.

    runs.parquet        a row a run: what was planned, injected, verified, and what it took
    steps.parquet       a row a step: the telemetry, nothing else. Null: the source has no such column; NaN:
                        not observed, as in the telemetry's schema
    exposure.parquet    a row a step of a faulty run: the ground truth of the injection. No detector reads it
    splits.parquet      partitions into what is learned from and what is tested on
    manifest.json       versions, rows, bytes and SHA-256 of each, written last: with a table that is none of
                        it the data set is damaged

Rows are in order of run_id, which tells nothing. What the columns mean is in `columns` and the datasheet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from robustops.bench.campaign import arrow
from robustops.bench.campaign.columns import EXPOSURE, RUNS, SPLITS, STEPS, TABLES
from robustops.bench.campaign.recorded import read_runs
from robustops.bench.campaign.rows import exposure_rows, further_exposure, run_row, step_columns
from robustops.bench.campaign.splits import split
from robustops.bench.campaign.verdict import Verdict
from robustops.errors import DatasetError
from robustops.files import atomic_write_json, read_json
from robustops.monitor import schema

MANIFEST = "manifest.json"
#: Size that is committed at most.
LIMIT_MB = 40.0
_SHOWN = 5


@dataclass(frozen=True)
class Dataset:
    """What detectors may see, and the labels they are judged by. Arrow tables, see the module.

    Exposure is read apart, by `load_exposure`.
    """

    folder: Path
    runs: Any
    steps: Any
    splits: Any

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Table runs as dicts, in order of run_id."""
        found: list[dict[str, Any]] = self.runs.to_pylist()
        return found

    @cached_property
    def by_id(self) -> dict[str, dict[str, Any]]:
        """Rows of table runs by run_id."""
        return {row["run_id"]: row for row in self.rows}

    @cached_property
    def _places(self) -> dict[str, slice]:
        ids = self.steps.column("run_id").to_pylist()
        starts = [i for i, name in enumerate(ids) if i == 0 or ids[i - 1] != name]
        ends = [*starts[1:], len(ids)]
        return {ids[start]: slice(start, end) for start, end in zip(starts, ends, strict=True)}

    @cached_property
    def _values(self) -> dict[str, np.ndarray]:
        return {}

    def series(self, run_id: str, column: str) -> np.ndarray:
        """(steps,) float64 of one telemetry column of a run; NaN where it is null, too. DatasetError for a
        run or column that there is not.
        """
        place = self._place(run_id)
        if column not in schema.names():
            raise DatasetError(f"'{column}' is no telemetry column; see monitor.schema.names()")
        if column not in self._values:
            numbers = self.steps.column(column).to_numpy(zero_copy_only=False)
            self._values[column] = np.asarray(numbers, dtype=np.float64)
        return self._values[column][place]

    def _place(self, run_id: str) -> slice:
        if run_id not in self._places:
            raise DatasetError(f"{self.folder} has no steps of run '{run_id}'")
        return self._places[run_id]

    def steps_of(self, run_id: str) -> Any:
        """The rows of table steps of a run, in order of steps. DatasetError for a run that there is not."""
        place = self._place(run_id)
        return self.steps.slice(place.start, place.stop - place.start)

    def control(self, run_id: str) -> str | None:
        """run_id of the healthy run of the same seed group; None where it is not in the data set."""
        return self._controls.get(self.by_id[run_id]["seed_group"])

    @cached_property
    def _controls(self) -> dict[int, str]:
        return {row["seed_group"]: row["run_id"] for row in self.rows if row["kind"] == "healthy"}


def load(folder: Path) -> Dataset:
    """Read a data set whole.

    Raises:
        MissingTableError, OtherVersionError, DamagedTableError: see `arrow`; each is a DatasetError.
    """
    folder = Path(folder)
    tables = {name: arrow.read(folder, name) for name in TABLES if name != "exposure"}
    _check_manifest(folder)
    return Dataset(folder, **tables)


def load_exposure(folder: Path) -> Any:
    """Table exposure, for verification and tables alone; errors as of `load`."""
    return arrow.read(Path(folder), "exposure")


def build(
    campaign: Path,
    out: Path,
    *,
    expected: Collection[str] = (),
    verdicts: Mapping[str, Verdict] | None = None,
    commit: str | None = None,
    partial: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Make the tables of a campaign's runs; returns the manifest, sizes included.

    Args:
        campaign: folder of the runs.
        out: folder of the tables, which are replaced.
        expected: run_ids that were planned.
        verdicts: by run_id.
        commit: of the program, where a run does not say.
        partial: take what is there though runs are missing.
        seed: of the splits.

    Raises:
        DatasetError: runs are missing, or have not equally many steps, and `partial` is not set.
    """
    runs: list[dict[str, Any]] = []
    steps: dict[str, list[Any]] = {column.name: [] for column in STEPS}
    exposure: list[dict[str, Any]] = []
    for run in read_runs(campaign):
        runs.append(run_row(run, (verdicts or {}).get(run.run_id), commit))
        for name, values in step_columns(run).items():
            steps[name] += values
        exposure += exposure_rows(run)
    if not partial:
        _check_complete(campaign, runs, expected)
    kinds = {name: arrow.telemetry_type(steps[name]) for name in schema.names()}
    further = dict.fromkeys(further_exposure(exposure), "float64")
    tables = {
        "runs": arrow.to_table("runs", _columns(runs, [c.name for c in RUNS])),
        "steps": arrow.to_table("steps", steps, kinds),
        "exposure": arrow.to_table(
            "exposure", _columns(exposure, [*(c.name for c in EXPOSURE), *further]), further
        ),
        "splits": arrow.to_table("splits", _columns(split(runs, seed=seed), [c.name for c in SPLITS])),
    }
    return _write(tables, out)


def _columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[Any]]:
    return {name: [row.get(name) for row in rows] for name in names}


def _check_complete(campaign: Path, runs: Sequence[Mapping[str, Any]], expected: Collection[str]) -> None:
    missing = sorted(set(expected) - {run["run_id"] for run in runs})
    if missing:
        some = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        raise DatasetError(
            f"{campaign} lacks {len(missing)} of {len(expected)} planned runs ({some}); finish it with "
            "robustops bench stage=campaign, or take what is there with partial=true"
        )
    lengths = sorted({run["steps"] for run in runs})
    if len(lengths) > 1:
        raise DatasetError(
            f"the runs of {campaign} have {', '.join(map(str, lengths))} steps, and a run's length must not "
            "tell its label; run those of another length again, or take them as they are with partial=true"
        )


def _write(tables: Mapping[str, Any], out: Path) -> dict[str, Any]:
    files = {}
    for name, table in tables.items():
        path = out / f"{name}.parquet"
        size = arrow.write(table, path)
        files[path.name] = {"rows": table.num_rows, "bytes": size, "sha256": _digest(path)}
    manifest = {
        **arrow.versions(),
        "megabytes": round(sum(file["bytes"] for file in files.values()) / 1e6, 3),
        "files": files,
    }
    atomic_write_json(out / MANIFEST, manifest)
    return manifest


def _check_manifest(folder: Path) -> None:
    if not (folder / MANIFEST).is_file():
        raise arrow.MissingTableError(f"{folder / MANIFEST} does not exist; make the data set again")
    for name, facts in read_json(folder / MANIFEST, what="manifest")["files"].items():
        path = folder / name
        if path.is_file() and (path.stat().st_size != facts["bytes"] or _digest(path) != facts["sha256"]):
            raise arrow.DamagedTableError(
                f"{path} is not the file that {MANIFEST} describes: it was changed, or is of another making; "
                "make the data set again"
            )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
