"""`robustops tasks`: generate the task catalogue of a domain, and hold it to its contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.progress import track

from robustops.commands.runner import Context
from robustops.errors import TaskError
from robustops.faults.manifest import observe
from robustops.faults.plan import SUBTYPES
from robustops.faults.wrapper import FaultyWorld
from robustops.records import Task
from robustops.resources import data_dir, in_checkout
from robustops.settings import TasksSettings
from robustops.tasks.catalog import Catalog, verify_catalog, write_catalog
from robustops.tasks.opening import open_catalog
from robustops.worlds.domain import Domain
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import run_expert


def run(settings: TasksSettings, context: Context) -> dict[str, Any]:
    """Write the catalogue and, if asked, verify it; returns the counts."""
    domain, catalog = open_catalog(settings.domain)
    folder = Path(settings.out) if settings.out else _default_folder()
    report: dict[str, Any] = {
        "domain": domain.name,
        "folder": str(write_catalog(catalog, folder)),
        "tasks": {split: len(catalog.tasks(split)) for split in catalog.splits},
        "templates": _templates(catalog),
        "skipped": catalog.skipped,
    }
    if settings.verify:
        report["verified"] = verify_catalog(catalog, domain)
        report["verified_under_faults"] = _verify_under_faults(catalog, domain, progress=settings.progress)
    if settings.format == "text":
        _show(report)
    return report


def expert_under_fault(world: LocalWorld, domain: Domain, task: Task, subtype: str) -> bool | None:
    """Whether the scripted expert solves the task with this fault at the first call it fits.

    None: the fault fits none of the expert's calls.
    """
    seen = observe(world, domain, task, (subtype,))
    opportunity = next((item for item in seen if subtype in item.subtypes), None)
    if opportunity is None:
        return None
    return run_expert(FaultyWorld(world, opportunity.plan(subtype, 1)), domain, task).success


def _verify_under_faults(catalog: Catalog, domain: Domain, *, progress: bool) -> dict[str, int]:
    """Tasks solved by the expert, by fault; TaskError if there is one that it does not solve."""
    world = LocalWorld(domain, tool_timeout_s=None)
    solved: Counter[str] = Counter()
    tasks: Iterable[Task] = [task for split in catalog.splits for task in catalog.tasks(split)]
    if progress:
        from rich.console import Console

        tasks = track(list(tasks), description="faults", console=Console(stderr=True))
    for task in tasks:
        for subtype in SUBTYPES:
            outcome = expert_under_fault(world, domain, task, subtype)
            if outcome is False:
                raise TaskError(
                    f"the scripted expert does not solve {task.id} ({task.template}) under {subtype}"
                )
            solved[subtype] += outcome is True
    world.close()
    return dict(solved)


def _templates(catalog: Catalog) -> dict[str, int]:
    return dict(Counter(task.template for split in catalog.splits for task in catalog.tasks(split)))


def _default_folder() -> Path:
    """data/tasks of a checkout; an installed package does not write into itself."""
    return data_dir() / "tasks" if in_checkout() else Path("tasks")


def _show(report: dict[str, Any]) -> None:
    from robustops.commands.show import show_line, show_table

    show_table(("template", "tasks"), sorted(report["templates"].items()), f"domain {report['domain']}")
    show_line(", ".join(f"{split} {count}" for split, count in report["tasks"].items()))
    for template, reason in report["skipped"].items():
        show_line(f"left out: {template}: {reason}")
    if "verified" in report:
        show_line(
            f"verified: {report['verified']} tasks clean; under faults: {report['verified_under_faults']}"
        )
    show_line(f"written to {report['folder']}")
