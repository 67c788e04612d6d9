"""`robustops bench stage=transfer`: what was learned on the campaign, in another domain and under TRL."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustops.commands.bench_failure import failure
from robustops.commands.machine import cores
from robustops.errors import TrainingError
from robustops.settings import BenchSettings

#: Folder in the campaign's.
FOLDER = "transfer"


def transfer(settings: BenchSettings) -> dict[str, Any]:
    """Make the runs of the sets that are not there yet, and evaluate once all of them are; returns both.

    TrainingError where a run raised; DatasetError where there is no data set of the campaign: the runs are
    kept.
    """
    from robustops.bench.campaign.campaign import shard_of
    from robustops.bench.transfer.plan import transfer_plan
    from robustops.bench.transfer.tried import read_tried
    from robustops.commands.show import show_line
    from robustops.extras import require

    chosen, own = settings.transfer, Path(settings.campaign).absolute() / FOLDER
    if "trl" in chosen.sources:
        require("trl", "bench", ", or leave it out: transfer.sources=[itsm]")
    plans = {
        source: transfer_plan(
            source,
            healthy=chosen.healthy,
            repeats=chosen.repeats,
            steps=chosen.steps,
            strength=chosen.strength,
            root=settings.seed,
        )
        for source in chosen.sources
    }
    made = {}
    for source, plan in plans.items():
        made[source] = _make(settings, source, own / source, shard_of(plan, settings.shard, settings.shards))
    body: dict[str, Any] = {"stage": "transfer", "transfer": str(own), "runs": made}
    sets = {source: list(read_tried(own / source, plan)) for source, plan in plans.items()}
    missing = sum(len(plans[source]) - len(sets[source]) for source in plans)
    if missing:
        if settings.format == "text":
            show_line(f"{missing} runs are missing: other shards make them, the last one evaluates them all")
        return {**body, "missing": missing}
    return {**body, **_evaluate(settings, own / "tables", sets)}


def _make(settings: BenchSettings, source: str, folder: Path, runs: list[Any]) -> dict[str, Any]:
    from rich.console import Console

    from robustops.bench.campaign.campaign import run_campaign
    from robustops.bench.campaign.folders import complete
    from robustops.bench.transfer.policy import WithPolicy, remember, starting_policy
    from robustops.bench.transfer.trl_make import make_trl
    from robustops.commands.composition import composed_training
    from robustops.commands.show import show_line

    compose: Any = composed_training
    if source == "itsm" and len(complete(folder, runs)) < len(runs):
        given = settings.transfer.policy
        if given is None and settings.format == "text":
            show_line("itsm: a policy that knows the tools is trained first (or give transfer.policy=)")
        policy = starting_policy(folder / "policy", given, compose)
        remember(folder, policy)
        compose = WithPolicy(compose, policy)
    report = run_campaign(
        runs,
        folder,
        compose,
        workers=settings.workers or cores(),
        console=Console(stderr=True) if settings.progress else None,
        make=make_trl if source == "trl" else None,
    )
    if settings.format == "text":
        show_line(
            f"{source}: {report.done} of {report.planned} runs are done, {report.made} made now; "
            f"{report.all_core_seconds / 60:.1f} core-minutes in all"
        )
    if not report.whole:
        raise TrainingError(failure(report, folder))
    return dataclasses.asdict(report)


def _evaluate(settings: BenchSettings, folder: Path, sets: dict[str, Any]) -> dict[str, Any]:
    from robustops.bench.campaign.extras import require
    from robustops.bench.evaluation import registry
    from robustops.bench.transfer import evaluate as work
    from robustops.bench.transfer import tables as written
    from robustops.commands.show import place, show_line, show_wide

    require("sklearn")
    known = {method.name for method in registry.METHODS}
    names = settings.methods or [name for name in work.METHODS if name in known]
    found = work.evaluate(
        Path(settings.dataset).absolute(),
        sets,
        registry.chosen(names),
        seed=settings.seed,
    )
    paths = written.write_all(found, folder)
    if settings.format == "text":
        for table in written.tables(found):
            show_wide(table.rich())
        show_line(f"tables: {place(folder / 'transfer.md')}")
    return {
        **found.facts,
        "not_installed": found.absent,
        "refused": found.refused,
        "tables": [str(path) for path in paths],
        "rows": [row.to_dict() for row in found.rows],
    }


#: By name; takes the command's settings and returns what format=json prints.
STAGES: dict[str, Callable[[BenchSettings], dict[str, Any]]] = {"transfer": transfer}
