"""Tasks as EnterpriseOps-Gym files, both ways.

A file of ours is a file of theirs plus one key, `robustops`, with what their format has no place for
(split, start database, prerequisites, plan ...). Their loader refuses unknown top-level keys, so
`to_enterpriseops(task, extras=False)` leaves it out. Source: EnterpriseOps-Gym, task JSON and verifiers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from robustops.errors import TaskError
from robustops.records import DatabaseSpec, StateCheck, Task

#: Server name and identity header of each domain, as the public task files have them.
SERVERS = {
    "calendar": ("gym-calendar", "x-access-token"),
    "csm": ("sn-csm-server", "x-user-email"),
    "drive": ("gym-google-drive-mcp", "x-access-token"),
    "email": ("gym-email-mcp", "x-access-token"),
    "hr": ("sn-hr-internal", "x-hr-user-token"),
    "itsm": ("gym-itsm-mcp", "x-itsm-user-token"),
    "teams": ("gym-teams-mcp", "x-access-token"),
}
COMPARISONS = ("contains", "equals", "greater_than", "less_than")
EXTRA_KEY = "robustops"
#: Fields of `Task` that the extra key holds; the others have a place in the format itself.
_EXTRA_FIELDS = (
    "id",
    "domain",
    "template",
    "tools",
    "distractors",
    "database",
    "acting_user",
    "prerequisites",
    "plan",
    "split",
    "tool_config",
)
DEFAULT_URL = "http://localhost:8000"


def server_of(domain: str) -> tuple[str, str]:
    """(server name, identity header) of a domain; our own domains get a name in the same style."""
    return SERVERS.get(domain, (f"gym-{domain}-mcp", "x-access-token"))


def to_enterpriseops(task: Task, *, extras: bool = True, server_url: str = DEFAULT_URL) -> dict[str, Any]:
    """The task as a JSON object in EnterpriseOps-Gym's format.

    extras: add the `robustops` key, without which the way back loses our fields; server_url: where the
    domain's server will listen. A task whose checks ask several worlds has a server for each.
    """
    worlds = dict.fromkeys(check.world or task.domain for check in task.checks) or {task.domain: None}
    data: dict[str, Any] = {
        "mcp_endpoint": "/mcp",
        "number_of_runs": 1,
        "reset_database_between_runs": True,
        "gym_servers_config": [_to_server(task, world, server_url) for world in worlds],
        "system_prompt": task.policy,
        "user_prompt": task.prompt,
        "selected_tools": list(task.allowed_tools),
        "restricted_tools": [],
        "verifiers": [_to_verifier(check, task.domain) for check in task.checks],
    }
    if extras:
        whole = json.loads(json.dumps(task.to_dict()))
        data[EXTRA_KEY] = {name: whole[name] for name in _EXTRA_FIELDS}
        data[EXTRA_KEY]["check_worlds"] = [check.world for check in task.checks]
    return data


def from_enterpriseops(data: Mapping[str, Any], domain: str, *, task_id: str | None = None) -> Task:
    """The task that a file of theirs or of ours describes.

    domain: name of the domain that the caller expects. task_id: id where the file has none (their files
    are named by it). Foreign files: selected tools are the `oracle` row, there is no plan and no graph,
    split is `external`, and verifiers that share a name get a number, since checks are told apart by name
    (their own client lets the later overwrite the earlier). The acting user is `user_info.user_id` where
    the file has it, else the identity header's value.

    Raises:
        TaskError: a required key is missing, or something is not supported; the message names it.
    """
    label = task_id or str(data.get("task_id") or "without id")
    servers = _decoded(data, "gym_servers_config", label)
    names = [str(server.get("mcp_server_name")) for server in servers]
    verifiers = _decoded(data, "verifiers", label)
    checks = [_from_verifier(verifier, names, label) for verifier in verifiers]
    prompt = _required(data, "user_prompt", label)
    policy = _required(data, "system_prompt", label)
    if EXTRA_KEY in data:
        return _ours(data[EXTRA_KEY], domain, policy, prompt, checks)
    if len(servers) != 1:
        raise TaskError(f"task {label}: one server is supported, given {len(servers)}: {', '.join(names)}")
    selected = data.get("selected_tools", [])
    restricted = set(data.get("restricted_tools", []))
    if not selected:
        raise TaskError(f"task {label}: selected_tools is empty; name the tools that the agent may call")
    return Task(
        id=task_id or str(data.get("task_id") or _digest(domain, policy, prompt)),
        domain=domain,
        template="external",
        policy=policy,
        prompt=prompt,
        tools=tuple(name for name in selected if name not in restricted),
        distractors=(),
        database=DatabaseSpec(path=servers[0].get("seed_database_file")),
        acting_user=_acting_user(servers[0]),
        checks=_unique_names(checks),
        prerequisites=(),
        split="external",
    )


def _to_server(task: Task, world: str, url: str) -> dict[str, Any]:
    server, header = server_of(world)
    config: dict[str, Any] = {
        "mcp_server_name": server,
        "mcp_server_url": url,
        "context": {header: task.acting_user} if task.acting_user is not None else {},
    }
    if task.database.path is not None:
        config["seed_database_file"] = task.database.path
    return config


def _to_verifier(check: StateCheck, domain: str) -> dict[str, Any]:
    return {
        "verifier_type": "database_state",
        "name": check.name,
        "description": check.name,
        "gym_name": server_of(check.world or domain)[0],
        "validation_config": {
            "query": check.query,
            "expected_value": check.expected,
            "comparison_type": check.comparison,
        },
    }


def _from_verifier(verifier: Mapping[str, Any], servers: Sequence[str], label: str) -> StateCheck:
    kind = verifier.get("verifier_type")
    name = str(verifier.get("name", ""))
    if kind != "database_state":
        raise TaskError(
            f"task {label}: verifier '{name}' has type '{kind}', which is not supported; "
            "only database_state decides success from the final database"
        )
    gym = verifier.get("gym_name")
    if gym is not None and gym not in servers:
        raise TaskError(f"task {label}: verifier '{name}' asks server '{gym}', which the task does not have")
    config = verifier.get("validation_config") or {}
    missing = [key for key in ("query", "expected_value") if key not in config]
    if missing:
        raise TaskError(f"task {label}: verifier '{name}' lacks validation_config.{missing[0]}")
    comparison = config.get("comparison_type", "equals")
    if comparison not in COMPARISONS:
        raise TaskError(
            f"task {label}: verifier '{name}' has comparison '{comparison}'; "
            f"allowed: {', '.join(COMPARISONS)}"
        )
    return StateCheck(name, config["query"], config["expected_value"], comparison)


def _ours(extra: Mapping[str, Any], domain: str, policy: str, prompt: str, checks: list[StateCheck]) -> Task:
    """A task of our own: standard keys as edited in the file, the rest from the extra key."""
    missing = [name for name in (*_EXTRA_FIELDS, "check_worlds") if name not in extra]
    if missing:
        raise TaskError(f"task {extra.get('id')}: key '{EXTRA_KEY}' lacks {', '.join(missing)}")
    if extra["domain"] != domain:
        raise TaskError(f"task {extra['id']} is of domain '{extra['domain']}', not '{domain}'")
    worlds = extra["check_worlds"]
    if len(worlds) != len(checks):
        raise TaskError(
            f"task {extra['id']}: {len(checks)} verifiers but {len(worlds)} check_worlds; keep them in step"
        )
    fields = {name: extra[name] for name in _EXTRA_FIELDS}
    named = [{**check.to_dict(), "world": world} for check, world in zip(checks, worlds, strict=True)]
    return Task.from_dict({**fields, "policy": policy, "prompt": prompt, "checks": named})


def _unique_names(checks: list[StateCheck]) -> tuple[StateCheck, ...]:
    """Number the checks whose name occurs more than once: `name #1`, `name #2` ..."""
    total = Counter(check.name.strip() for check in checks)
    seen: Counter[str] = Counter()
    named = []
    for check in checks:
        name = check.name.strip()
        seen[name] += 1
        name = name if total[name] == 1 else f"{name} #{seen[name]}"
        named.append(StateCheck(name, check.query, check.expected, check.comparison, check.world))
    return tuple(named)


def _acting_user(server: Mapping[str, Any]) -> str | None:
    user = server.get("user_info") or {}
    if user.get("user_id") is not None:
        return str(user["user_id"])
    context = server.get("context") or {}
    return str(next(iter(context.values()))) if context else None


def _required(data: Mapping[str, Any], key: str, label: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise TaskError(f"task {label}: '{key}' is missing; a task file needs it as text")
    return value


def _decoded(data: Mapping[str, Any], key: str, label: str) -> list[dict[str, Any]]:
    """A list of objects, or the JSON text of one (the form of the published data set's rows)."""
    value = data.get(key)
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise TaskError(f"task {label}: '{key}' is text, but not JSON: {error}") from error
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise TaskError(f"task {label}: '{key}' must be a list of at least one object")
    return value


def _digest(*parts: str) -> str:
    return f"{parts[0]}-{blake2b(chr(31).join(parts).encode(), digest_size=6).hexdigest()}"
