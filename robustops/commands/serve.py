"""`robustops serve`: a world for other people's agents."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from robustops.commands.runner import Context
from robustops.errors import ConfigError
from robustops.records import Task
from robustops.settings import ServeSettings
from robustops.tasks.catalog import Catalog
from robustops.tasks.opening import open_catalog
from robustops.worlds.environment import LocalWorld


def run(settings: ServeSettings, context: Context) -> dict[str, Any]:
    """Serve until the client leaves (stdio) or Ctrl-C."""
    from robustops.serving.mcp_server import serve

    domain, catalog = open_catalog(settings.domain)
    task = None
    if settings.task is not None:
        task = find_task(catalog, settings.domain.tool_configs, settings.task)
    if settings.format == "json" and settings.transport == "stdio":
        raise ConfigError("transport=stdio needs standard output for the protocol; leave out format=json")
    serve(
        domain,
        transport=settings.transport,
        host=settings.host,
        port=settings.port,
        task=task,
        admin=settings.admin,
        seed=settings.seed,
        size=settings.domain.size,
        world_factory=partial(LocalWorld, tool_timeout_s=settings.domain.tool_timeout_s),
    )
    return {"domain": domain.name, "transport": settings.transport, "task": settings.task}


def find_task(catalog: Catalog, tool_configs: Sequence[str], task_id: str) -> Task:
    """The task of that id in the catalogue; a `/plus5` behind the id offers the distractors."""
    for split in catalog.splits:
        for task in catalog.cases(split, tool_configs):
            if task_id in (task.id, task.case_id):
                return task
    some = ", ".join(task.id for task in catalog.tasks("test")[:3]) or "none"
    raise ConfigError(
        f"no task '{task_id}' in domain {catalog.domain}; its catalogue has ids such as: {some}"
    )
