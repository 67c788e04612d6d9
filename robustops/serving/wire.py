"""What a harness and a served world say to each other: the reserved tools and their JSON.

An MCP server built with `admin=True` offers, beside the domain's tools, four reserved ones whose names
begin with `_`. A harness drives the world through them and never shows them to the agent:

| tool | arguments | reply |
|---|---|---|
| `_reset` | `task`: a `Task` as JSON | `{"tools": [names the task allows]}` |
| `_snapshot` | - | `{"snapshot": {"task", "image", "seconds", "counters"}}` |
| `_restore` | `snapshot`: as above, of any world of this domain | `{"tools": [...]}` |
| `_evaluate` | `checks`: list of `StateCheck` as JSON | `{"passed": [true, false, ...]}` |

`image` is the SQLite image, compressed with zlib, as base64. A failure comes back as an error result
`{"error": {"code": "TASK_ERROR" | "WORLD_ERROR" | "CONFIG_ERROR", "message": ...}}`. Every reply of such a
server carries the world's change counter in `_meta`, under `robustops/changes`.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from robustops.errors import ConfigError, RobustOpsError, TaskError, ToolError, WorldError
from robustops.records import StateCheck, Task, ToolResult
from robustops.worlds.database import DatabaseSnapshot
from robustops.worlds.environment import Snapshot
from robustops.worlds.toolset import refusal

RESET, SNAPSHOT, RESTORE, EVALUATE = "_reset", "_snapshot", "_restore", "_evaluate"
CHANGES_KEY = "robustops/changes"
#: Seconds for which an idle HTTP connection is kept. The client's come first: a call that is sent while the
#: server closes the connection is lost, executed or not.
CLIENT_IDLE_S, SERVER_IDLE_S = 60, 75

_FAILURES: dict[str, type[RobustOpsError]] = {
    "TASK_ERROR": TaskError,
    "WORLD_ERROR": WorldError,
    "CONFIG_ERROR": ConfigError,
}


def _schema(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


#: Reserved tools by name: description and JSON schema of the arguments.
RESERVED_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    RESET: (
        "For the harness: start a task afresh.",
        _schema(task={"type": "object", "description": "A Task record as JSON."}),
    ),
    SNAPSHOT: ("For the harness: the exact state now.", _schema()),
    RESTORE: (
        "For the harness: go back to a snapshot.",
        _schema(snapshot={"type": "object", "description": "The reply of _snapshot."}),
    ),
    EVALUATE: (
        "For the harness: which state checks hold now.",
        _schema(checks={"type": "array", "items": {"type": "object"}, "description": "StateCheck records."}),
    ),
}


def pack_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as JSON values; WorldError for a wrapper's snapshot, whose extra state cannot travel."""
    if snapshot.extra is not None:
        raise WorldError("a wrapped world's snapshot cannot be sent; wrap the world on the harness's side")
    database = snapshot.database
    return {
        "task": snapshot.task.to_dict(),
        "image": base64.b64encode(zlib.compress(database.image, 1)).decode("ascii"),
        "seconds": database.seconds,
        "counters": dict(database.counters),
    }


def unpack_task(data: Any) -> Task:
    """A task from JSON values; TaskError where they do not fit."""
    with _fitting("task"):
        return Task.from_dict(data)


def unpack_snapshot(data: Any) -> Snapshot:
    """The inverse of `pack_snapshot`; TaskError where the values do not fit."""
    with _fitting("snapshot"):
        image = zlib.decompress(base64.b64decode(data["image"], validate=True))
        counters = tuple(sorted((str(name), int(value)) for name, value in data["counters"].items()))
        return Snapshot(unpack_task(data["task"]), DatabaseSnapshot(image, int(data["seconds"]), counters))


def unpack_checks(data: Any) -> Sequence[StateCheck]:
    """State checks from JSON values; TaskError where they do not fit."""
    with _fitting("checks"):
        return tuple(StateCheck.from_dict(check) for check in data)


@contextmanager
def _fitting(what: str) -> Iterator[None]:
    """Turn the complaints of a decoder into one typed error."""
    try:
        yield
    except (TypeError, KeyError, ValueError, AttributeError, zlib.error, binascii.Error) as error:
        raise TaskError(f"the {what} does not have the documented form: {error!r}") from error


def failure(error: RobustOpsError) -> ToolResult:
    """The error result that tells a harness of a failed reserved call."""
    code = next((c for c, kind in _FAILURES.items() if isinstance(error, kind)), "WORLD_ERROR")
    return refusal(ToolError(code, str(error)))


def raise_failure(body: Any) -> None:
    """Raise the error that `failure` described; nothing where the body describes none."""
    error = body.get("error") if isinstance(body, dict) else None
    kind = _FAILURES.get(error.get("code", "")) if isinstance(error, dict) else None
    if kind is not None and isinstance(error, dict):
        raise kind(str(error.get("message")))
