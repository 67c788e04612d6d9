"""Tasks of one template and what every one of them must hold, for the tests of templates."""

from __future__ import annotations

from robustops.records import DatabaseSpec, Task
from robustops.worlds.checks import gated_count, validate_graph
from robustops.worlds.domain import Domain
from robustops.worlds.environment import LocalWorld
from robustops.worlds.probes import draw_task
from robustops.worlds.scripted import ExpertRun, run_expert


def draws(domain: Domain, name: str, count: int = 10, first: int = 0, size: str = "small") -> list[Task]:
    """Tasks of a template, each on a generated world of its own."""
    tasks = []
    for seed in range(first, first + 4 * count):
        task = draw_task(domain, name, DatabaseSpec(seed=seed, size=size))
        if task is not None:
            tasks.append(task)
        if len(tasks) == count:
            return tasks
    raise AssertionError(f"{name} fits too few worlds")


def solved(local: LocalWorld, domain: Domain, task: Task) -> ExpertRun:
    """The expert's run: it passes every check, within the calls and tools that a template may ask for."""
    names = [check.name for check in task.checks]
    validate_graph(names, task.prerequisites)
    run = run_expert(local, domain, task)
    assert run.success, f"{task.prompt}: {dict(zip(names, run.checks, strict=True))}"
    assert gated_count(names, run.checks, task.prerequisites) == len(names)
    assert 2 <= len(run.calls) <= 9 and run.answer
    assert {call.name for call, _ in run.calls} <= set(domain.templates[task.template].tools)
    return run
