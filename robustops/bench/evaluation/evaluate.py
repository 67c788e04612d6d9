"""The whole evaluation: work, judgement, rows."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustops.bench.campaign.dataset import MANIFEST
from robustops.bench.evaluation.detection import DIFFICULTIES, compared, detection_rows
from robustops.bench.evaluation.diagnosis import diagnosis_rows
from robustops.bench.evaluation.judged import Judged, judged
from robustops.bench.evaluation.protocol import Partition, partitions
from robustops.bench.evaluation.registry import DETECT, Method, reference_detector
from robustops.bench.evaluation.resampling import DRAWS, Draws, draw_groups
from robustops.bench.evaluation.rows import Row, Rows
from robustops.bench.evaluation.runs import HORIZONS, TIERS, Label, Runs
from robustops.bench.evaluation.units import Done, run_units, units_of
from robustops.errors import ConfigError
from robustops.files import atomic_write_json, read_json

#: Horizons of figure 7, beside those of the tables; of the methods that it shows alone.
SWEEP = (5, 10, 15, 25, 30)
Setting = tuple[str, int]


@dataclass(frozen=True)
class Request:
    """What is to be evaluated. dataset: its folder; out: of everything that is written; partitions: how many;
    final: on the held-out groups; sweep: methods that are also evaluated at the horizons of `SWEEP`.
    """

    dataset: Path
    out: Path
    methods: tuple[Method, ...]
    partitions: int = 5
    final: bool = False
    tiers: tuple[str, ...] = tuple(TIERS)
    horizons: tuple[int, ...] = HORIZONS
    sweep: tuple[str, ...] = ()
    seed: int = 0
    draws: int = DRAWS
    workers: int = 1

    @property
    def folder(self) -> Path:
        """Of scores, tables and figures."""
        return self.out / ("final" if self.final else "validation")


@dataclass(frozen=True)
class Evaluation:
    """rows: all numbers; reference: the detector before every diagnoser, None without one; absent: method ->
    package that is not installed; refused: method -> why it could not learn; facts: what is behind it.
    """

    rows: Rows
    reference: str | None
    absent: dict[str, str]
    refused: dict[str, str]
    facts: dict[str, Any]


def evaluate(request: Request, tell: Callable[[int, int], None] = lambda done, of: None) -> Evaluation:
    """Do all work that is not done yet, and count.

    Raises:
        ConfigError: the final groups were opened before with other methods or another data set.
        DatasetError: there are too few runs.
    """
    runs = Runs.read(request.dataset)
    rows = runs.dataset.splits.to_pylist()
    parts = partitions(rows, runs.labels, request.partitions, final=request.final)
    if request.final:
        _open_once(request)
    present = [method for method in request.methods if method.available]
    units = units_of(present, parts, request.tiers, request.horizons)
    swept = [method for method in present if method.name in request.sweep]
    units += units_of(swept, parts[:1], request.tiers[-1:], SWEEP)
    units = list({unit.name: unit for unit in reversed(units)}.values())[::-1]
    done, refused = run_units(
        request.dataset,
        request.folder / "scores",
        units,
        seed=request.seed,
        workers=request.workers,
        tell=tell,
    )
    found, reference = count(done, runs.labels, parts, request)
    absent = {method.name: method.package for method in request.methods if not method.available}
    return Evaluation(found, reference, absent, refused, _facts(request, parts, runs.labels))


def count(
    done: Sequence[Done], labels: dict[str, Label], parts: Sequence[Partition], request: Request
) -> tuple[Rows, str | None]:
    """All rows, and the reference detector."""
    draws = _draws(labels, parts, request)
    by_setting: dict[Setting, dict[str, list[Done]]] = defaultdict(lambda: defaultdict(list))
    for one in done:
        by_setting[one.unit.tier, one.unit.horizon][one.unit.method].append(one)
    tasks = {method.name: method.task for method in request.methods}
    reference = reference_detector([one.unit.method for one in done])
    rows: list[Row] = []
    for methods in by_setting.values():
        detectors = [judged(own, labels) for name, own in methods.items() if tasks[name] == DETECT]
        gate = next((one for one in detectors if one.method == reference), None)
        for detector in detectors:
            rows += detection_rows(detector, draws)
        rows += _comparisons(detectors, reference, draws)
        for name, own in methods.items():
            if tasks[name] != DETECT:
                rows += diagnosis_rows(own, labels, gate, draws)
    return Rows(rows), reference


def _comparisons(detectors: Sequence[Judged], reference: str | None, draws: Draws) -> list[Row]:
    if reference is None:
        return []
    return [row for level in DIFFICULTIES for row in compared(detectors, reference, draws, level)]


def _draws(labels: dict[str, Label], parts: Sequence[Partition], request: Request) -> Draws:
    """Over the groups that are tested in any partition, those with faults apart from those without."""
    tested = {name for part in parts for name in part.test}
    strata: dict[int, str] = {}
    for name in sorted(tested):
        label = labels[name]
        if label.kind != "healthy":
            strata[label.group] = "mixed"
        strata.setdefault(label.group, "healthy")
    return draw_groups(strata, request.seed, request.draws)


def _facts(request: Request, parts: Sequence[Partition], labels: dict[str, Label]) -> dict[str, Any]:
    first = parts[0]
    kinds: dict[str, int] = defaultdict(int)
    for name in first.test:
        kinds[labels[name].kind] += 1
    return {
        "final": request.final,
        "partitions": len(parts),
        "folds": len(first.folds),
        "tiers": list(request.tiers),
        "horizons": list(request.horizons),
        "bootstrap_draws": request.draws,
        "profile_runs": len(first.profile),
        "calibration_runs": len(first.calibration),
        "tested_runs": dict(sorted(kinds.items())),
        "tested_groups": len({labels[name].group for part in parts for name in part.test}),
    }


def _open_once(request: Request) -> None:
    """Note what the final groups were opened for; the same again only goes on or shows it again."""
    path = request.folder / "opened.json"
    digest = read_json(request.dataset / MANIFEST, what="manifest")["files"]
    body = {
        "dataset": {name: facts["sha256"] for name, facts in digest.items()},
        "methods": {method.name: method.digest() for method in request.methods if method.available},
        "request": {
            name: value
            for name, value in dataclasses.asdict(request).items()
            if name in ("partitions", "tiers", "horizons", "seed")
        },
    }
    body["request"] = {k: list(v) if isinstance(v, tuple) else v for k, v in body["request"].items()}
    if not path.is_file():
        atomic_write_json(path, body)
    elif (old := read_json(path, what="note of the opening")) != body:
        differing = [name for name in body if body[name] != old.get(name)]
        raise ConfigError(
            f"the final groups were opened before, with other {' and '.join(differing)} ({path}); they are "
            "looked at once: show that evaluation again by the same request, or develop with final=false"
        )
