"""All cases of a campaign: who judges, which runs, what is missing is made, what came of it is written.

In <campaign>/remediation/:

    cases.jsonl              one line a case that is complete
    validation/, final/      of the two sorts of groups, see `draw`
        draw.json            what was drawn, and who judged
        runs/, failures/     cases, see `case`
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from robustops.bench.campaign.campaign import Report, run_campaign, shard_of
from robustops.bench.campaign.dataset import MANIFEST
from robustops.bench.campaign.folders import PLANNED, RUNS, folder_of
from robustops.bench.campaign.plan import PlannedRun
from robustops.bench.campaign.worker import Compose
from robustops.bench.evaluation import fitting, registry
from robustops.bench.evaluation.protocol import partitions
from robustops.bench.evaluation.remediation import CASES
from robustops.bench.evaluation.runs import Runs
from robustops.bench.remediation.case import CaseMaker, parts_of, planned_case
from robustops.bench.remediation.draw import Draw, draw
from robustops.bench.remediation.outcome import Severity, outcome
from robustops.errors import ConfigError, DatasetError
from robustops.files import atomic_write_json, atomic_write_text, read_json
from robustops.monitor.intervention.policy import Judge
from robustops.settings import ARMS

DRAW = "draw.json"
SPLITS = ("validation", "final")


@dataclass(frozen=True)
class Request:
    """campaign: of the runs; dataset: its tables; arms: see `case`; cases: faulty runs; final: on the
    held-out groups; seed: of draw and methods, as in the evaluation; overrides: of `monitor`, for all arms
    that watch; shard, shards, workers: as of a campaign.
    """

    campaign: Path
    dataset: Path
    arms: tuple[str, ...]
    cases: int = 80
    final: bool = False
    seed: int = 0
    overrides: tuple[str, ...] = ()
    shard: int = 0
    shards: int = 1
    workers: int = 1

    @property
    def split(self) -> str:
        """Name of the sort of groups."""
        return SPLITS[self.final]

    @property
    def folder(self) -> Path:
        """Of the cases."""
        return self.campaign / CASES.parent / self.split


@dataclass(frozen=True)
class Result:
    """report: of the runner; draw: of all shards; rows: lines of this sort's complete cases."""

    report: Report
    draw: Draw
    rows: list[dict[str, Any]]


def remediate(request: Request, compose: Compose, console: Console | None = None) -> Result:
    """Make the cases of this share that are missing, and write the lines of all that are complete.

    Raises:
        ConfigError: the folder holds cases of another judge, data set or draw of types; too few cases.
        DatasetError: the data set has too few runs to learn from, or runs that the campaign has not.
    """
    runs = Runs.read(request.dataset)
    labels = runs.labels
    (partition,) = partitions(runs.dataset.splits.to_pylist(), labels, 1, final=request.final)
    fold = partition.folds[0]
    drawn = draw(labels, partition, fold, request.cases, request.seed)
    _keep(request, drawn)
    fitted = fitting.fit_on(runs, partition, fold.train, request.seed)
    planned = cases_of(request, drawn)
    report = make_cases(request, planned, partial(fitted.judge, growing=True), compose, console)
    rows = outcomes(request, runs, fitted.severity)
    write_lines(request, rows)
    return Result(report, drawn, rows)


def cases_of(request: Request, drawn: Draw) -> list[PlannedRun]:
    """All cases, the arms of a run one after another."""
    found = []
    for name in drawn.run_ids:
        path = folder_of(request.campaign, name) / PLANNED
        if not path.is_file():
            raise DatasetError(
                f"{request.dataset} has run {name}, {request.campaign} has not; name the campaign that the "
                "data set was made of"
            )
        run = PlannedRun.from_dict(read_json(path, what="planned run"))
        found += [planned_case(run, arm, request.overrides) for arm in request.arms]
    return found


def make_cases(
    request: Request,
    planned: Sequence[PlannedRun],
    judge: Judge,
    compose: Compose,
    console: Console | None = None,
) -> Report:
    """Run this share of the cases on the campaign's runner; see `campaign.run_campaign`."""
    return run_campaign(
        shard_of(planned, request.shard, request.shards),
        request.folder,
        compose,
        workers=request.workers,
        console=console,
        make=CaseMaker(request.campaign, judge),
    )


def outcomes(request: Request, runs: Runs, severity: Severity) -> list[dict[str, Any]]:
    """A line of each case that is complete, whenever and by whoever it was made."""
    rows = []
    for folder in sorted(request.folder.glob(f"{RUNS}/[!.]*"), key=_order):
        run_id, _ = parts_of(folder.name)
        control = runs.dataset.control(run_id)
        if control is None:
            raise DatasetError(
                f"run {run_id} has no healthy run of its seed group in {request.dataset}; make that first "
                "(robustops bench stage=campaign types=[healthy]), and the data set again"
            )
        row = outcome(request.campaign, folder, runs.labels[run_id], control, severity)
        rows.append({**row, "final": request.final})
    return rows


def _order(folder: Path) -> tuple[int, str]:
    run_id, arm = parts_of(folder.name)
    return ARMS.index(arm), run_id


def write_lines(request: Request, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Put these lines in the place of all former ones of the same sort of groups."""
    path = request.campaign / CASES
    others = []
    if path.is_file():
        lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        others = [line for line in lines if line.get("final", request.final) != request.final]
    body = [*others, *rows]
    return atomic_write_text(path, "".join(f"{json.dumps(line)}\n" for line in body))


def _keep(request: Request, drawn: Draw) -> None:
    """Write what was drawn; ConfigError where cases are there that somebody else judged."""
    path = request.folder / DRAW
    files = read_json(request.dataset / MANIFEST, what="manifest")["files"]
    judged = {
        "methods": {method.name: method.digest() for method in registry.chosen(fitting.METHODS)},
        "dataset": {name: facts["sha256"] for name, facts in files.items() if name != "exposure.parquet"},
        "seed": request.seed,
        "overrides": list(request.overrides),
    }
    if path.is_file() and (old := read_json(path, what="draw")["judged"]) != judged:
        differing = ", ".join(name for name in judged if judged[name] != old.get(name))
        raise ConfigError(
            f"{request.folder} holds cases with another {differing} ({path.name}), which do not go together "
            "with new ones; move that folder away, or go back to what they were made with"
        )
    atomic_write_json(path, {**dataclasses.asdict(drawn), "arms": list(request.arms), "judged": judged})
