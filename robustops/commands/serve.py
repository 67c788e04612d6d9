"""`robustops serve`: a world for other people's agents."""

from __future__ import annotations

from typing import Any

from robustops.commands.runner import Context
from robustops.errors import ConfigError
from robustops.records import Task
from robustops.settings import DomainSettings, ServeSettings
from robustops.worlds.domain import Domain, get_domain


def run(settings: ServeSettings, context: Context) -> dict[str, Any]:
    """Serve until the client leaves (stdio) or Ctrl-C."""
    from robustops.serving.mcp_server import serve

    domain = get_domain(settings.domain.name, settings.domain.detail, settings.domain.database)
    task = find_task(domain, settings.domain, settings.task) if settings.task is not None else None
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
    )
    return {"domain": domain.name, "transport": settings.transport, "task": settings.task}


def find_task(domain: Domain, settings: DomainSettings, task_id: str) -> Task:
    """The task of that id in the domain's catalogue; a `/plus5` behind the id offers the distractors."""
    from robustops.commands.tasks import catalog_of

    catalog = catalog_of(domain, settings)
    for split in catalog.splits:
        for task in catalog.cases(split, settings.tool_configs):
            if task_id in (task.id, task.case_id):
                return task
    some = ", ".join(task.id for task in catalog.tasks("test")[:3]) or "none"
    raise ConfigError(f"no task '{task_id}' in domain {domain.name}; its catalogue has ids such as: {some}")
