"""One agent's world: reset to a task, step a call, snapshot, restore, evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from robustops.errors import WorldError
from robustops.records import StateCheck, Task, ToolCall, ToolResult
from robustops.worlds.checks import run_checks
from robustops.worlds.database import DatabaseSnapshot
from robustops.worlds.domain import Domain
from robustops.worlds.toolset import Toolset, ToolSpec


@dataclass(frozen=True)
class Snapshot:
    """A world at one moment; `extra` holds what a wrapper adds (a fault scheduler's counters, say)."""

    task: Task
    database: DatabaseSnapshot
    extra: Any = None


class World(Protocol):
    """The contract that local worlds, worlds behind MCP and fault-injecting wrappers share."""

    def reset(self, task: Task) -> None:
        """Start the task afresh: same task, same state, whatever happened before."""

    def step(self, call: ToolCall) -> ToolResult:
        """Execute one call; a refusal is a result with `is_error`, never an exception."""

    def snapshot(self) -> Snapshot:
        """The exact state between two calls."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot taken on a world of the same domain."""

    def evaluate(self, checks: Sequence[StateCheck]) -> tuple[bool, ...]:
        """Which state checks hold now; changes nothing."""

    def specs(self) -> dict[str, ToolSpec]:
        """The tools that the current task allows, by name."""

    def close(self) -> None:
        """Release the database."""


class LocalWorld:
    """A world in this process. Two instances share nothing."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self._task: Task | None = None
        self._tools: Toolset | None = None

    @property
    def task(self) -> Task:
        if self._task is None:
            raise WorldError("the world has no task yet; call reset(task) before step or snapshot")
        return self._task

    @property
    def tools(self) -> Toolset:
        if self._tools is None:
            raise WorldError("the world has no task yet; call reset(task) before step or snapshot")
        return self._tools

    def reset(self, task: Task) -> None:
        self._replace(task, self.domain.start_image(task.database))

    def step(self, call: ToolCall) -> ToolResult:
        if call.name not in self.task.allowed_tools:
            return self.tools.unknown(call.name, self.task.allowed_tools)
        return self.tools.call(call)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.task, self.tools.database.snapshot())

    def restore(self, snapshot: Snapshot) -> None:
        self._replace(snapshot.task, snapshot.database)

    def evaluate(self, checks: Sequence[StateCheck]) -> tuple[bool, ...]:
        return run_checks(self.tools.database, checks)

    def specs(self) -> dict[str, ToolSpec]:
        known = self.domain.toolset.specs()
        missing = sorted(set(self.task.allowed_tools) - set(known))
        if missing:
            raise WorldError(
                f"task {self.task.id} allows tools that domain '{self.domain.name}' does not have: "
                f"{', '.join(missing)}"
            )
        return {name: known[name] for name in self.task.allowed_tools}

    @property
    def changes(self) -> int:
        """A number that moves if and only if the database is written to."""
        return self.tools.database.changes

    def close(self) -> None:
        if self._tools is not None:
            self._tools.database.close()
        self._task = self._tools = None

    def _replace(self, task: Task, image: DatabaseSnapshot) -> None:
        if task.domain != self.domain.name:
            raise WorldError(f"task {task.id} belongs to domain '{task.domain}', not '{self.domain.name}'")
        if self._tools is None:
            self._tools = self.domain.empty_toolset()
        self._tools.acting_user = task.acting_user
        self._tools.database.restore(image)
        self._task = task
