"""`robustops bench`: RFT-FaultBench, stage by stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustops.commands import bench_dataset as dataset_stages
from robustops.commands import bench_evaluate as evaluate_stage
from robustops.commands import bench_remediate as remediate_stage
from robustops.commands import bench_transfer as transfer_stage
from robustops.commands.bench_failure import failure
from robustops.commands.machine import cores
from robustops.commands.runner import Context
from robustops.errors import TrainingError
from robustops.settings import BenchSettings


def campaign(settings: BenchSettings) -> dict[str, Any]:
    """Make the planned runs that are not there yet; returns what was done.

    TrainingError where a run raised, or where workers were killed and runs are missing for it.
    """
    from rich.console import Console

    from robustops.bench.campaign.campaign import run_campaign, shard_of
    from robustops.bench.campaign.plan import planned
    from robustops.bench.campaign.strengths import injection
    from robustops.commands.composition import composed_training

    folder = Path(settings.campaign).absolute()
    runs = shard_of(
        planned(settings.types, settings.seeds, root=settings.seed, injection=injection),
        settings.shard,
        settings.shards,
    )
    report = run_campaign(
        runs,
        folder,
        composed_training,
        workers=settings.workers or cores(),
        console=Console(stderr=True) if settings.progress else None,
    )
    if settings.format == "text":
        _show(report, folder)
    if not report.whole:
        raise TrainingError(failure(report, folder))
    body = {"stage": "campaign", "campaign": str(folder), **dataclasses.asdict(report)}
    return {**body, "compared": dataset_stages.compared(settings)}


def pilot(settings: BenchSettings) -> dict[str, Any]:
    """Measure strengths that give easy and hard faults; returns where they were written and how many there
    are, and those modes whose effect is not what the difficulty wants.
    """
    from robustops.bench.campaign.pilot import NAME, run_pilot
    from robustops.bench.run_faults.catalog import fault_type
    from robustops.commands.composition import composed_training
    from robustops.commands.show import place, show_line

    folder = Path(settings.campaign).absolute() / "pilot"
    names = None
    if settings.types is not None:
        names = [info.name for fault in settings.types for info in fault_type(fault).mechanisms]
    tell = show_line if settings.progress and settings.format == "text" else lambda line: None
    body = run_pilot(folder, composed_training, settings.workers or cores(), names, tell)
    missed = [
        f"{name}/{mode}"
        for name, found in body["mechanisms"].items()
        for mode, values in found["modes"].items()
        if not values["reached"]
    ]
    if settings.format == "text":
        show_line(f"strengths of {len(body['mechanisms'])} mechanisms: {place(folder / NAME)}")
    return {
        "stage": "pilot",
        "strengths": str(folder / NAME),
        "mechanisms": len(body["mechanisms"]),
        "missed": missed,
    }


#: What each stage does. Each takes the command's settings and returns what format=json prints.
STAGES: dict[str, Callable[[BenchSettings], dict[str, Any]]] = {
    "campaign": campaign,
    "pilot": pilot,
    **dataset_stages.STAGES,
    **evaluate_stage.STAGES,
    **remediate_stage.STAGES,
    **transfer_stage.STAGES,
}


def run(settings: BenchSettings, context: Context) -> dict[str, Any]:
    """Do what `stage` says."""
    return STAGES[settings.stage](settings)


def _show(report: Any, folder: Path) -> None:
    from robustops.commands.show import place, show_line

    parts = [f"{report.done} of {report.planned} runs are done"]
    if report.in_flight:
        parts.append(f"{report.in_flight} are being made by another start")
    parts.append(f"{report.made} made now: {report.steps} steps in {report.seconds:.0f} s")
    parts.append(f"{report.core_seconds:.0f} core-seconds ({report.all_core_seconds / 3600:.2f} h in all)")
    show_line("; ".join(parts))
    show_line(f"campaign: {place(folder)}")
