"""One agent's world: reset to a task, step a call, snapshot, restore, evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from robustops.errors import WorldError
from robustops.records import StateCheck, Task, ToolCall, ToolResult
from robustops.worlds.checks import run_checks
from robustops.worlds.database import DatabaseSnapshot
from robustops.worlds.domain import Domain
from robustops.worlds.time_limit import (
    TOOL_TIMEOUT_S,
    CallTimeout,
    check_limit,
    run_within,
    timeout_receipt,
)
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
        """Execute one call, once; a refusal or a timeout is a result with `is_error`, no exception."""

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


#: Seconds to save the state that a call left which was given up.
_SAVE_S = 5.0


class _Moment(NamedTuple):
    """What a call that is given up must not have moved."""

    commits: int
    seconds: int
    counters: tuple[tuple[str, int], ...]
    changes: int


class LocalWorld:
    """A world in this process. Two instances share nothing.

    tool_timeout_s: seconds that a call may take, None for no limit. A late call is given up and gets a
    receipt with the code TOOL_TIMEOUT. The world goes on, in another database, from the state before the
    call (from the one after it if the call had committed its write), and whatever the call still does
    reaches nobody; WorldError where SQLite cannot be stopped. The limit costs a hand-over between two
    threads per call; `time_limit.run_within` says what it cannot stop. State checks are under it, too.
    """

    def __init__(self, domain: Domain, *, tool_timeout_s: float | None = TOOL_TIMEOUT_S) -> None:
        self.domain = domain
        self.tool_timeout_s = check_limit(tool_timeout_s)
        self._task: Task | None = None
        self._tools: Toolset | None = None
        self._earlier_changes = 0

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
        if self.tool_timeout_s is None:
            return self.tools.call(call)
        before, tools = self._moment(), self.tools
        try:
            return run_within(self.tool_timeout_s, tools.call, call, interrupt=tools.database.interrupt)
        except CallTimeout:
            self._leave_behind(before)
            return timeout_receipt(self.domain.toolset.specs().get(call.name), self.tool_timeout_s)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.task, self.tools.database.snapshot())

    def restore(self, snapshot: Snapshot) -> None:
        self._replace(snapshot.task, snapshot.database)

    def evaluate(self, checks: Sequence[StateCheck]) -> tuple[bool, ...]:
        if self.tool_timeout_s is None:
            return run_checks(self.tools.database, checks)
        before, database = self._moment(), self.tools.database
        try:
            return run_within(self.tool_timeout_s, run_checks, database, checks, interrupt=database.interrupt)
        except CallTimeout as late:
            self._leave_behind(before)
            names = ", ".join(check.name for check in checks)
            raise WorldError(
                f"no answer within {self.tool_timeout_s:g} s to the state checks of task {self.task.id} "
                f"({names}); make their queries cheaper or raise tool_timeout_s"
            ) from late

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
        return self._earlier_changes + self.tools.database.changes

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

    def _moment(self) -> _Moment:
        database = self.tools.database
        return _Moment(database.commits, database.seconds, tuple(database.counters.items()), self.changes)

    def _leave_behind(self, before: _Moment) -> None:
        """Go on in another database; a call that was given up may still hold this one."""
        task, database, changes = self.task, self.tools.database, self._earlier_changes
        self._tools = None
        try:
            state = run_within(_SAVE_S, database.salvage)
        except CallTimeout as stuck:
            raise WorldError(
                "a call that was given up keeps SQLite busy; the state of the world is lost"
            ) from stuck
        if database.commits == before.commits:
            state = DatabaseSnapshot(state.image, before.seconds, tuple(sorted(before.counters)))
            changes = before.changes
        else:
            changes += database.changes
        self._replace(task, state)
        self._earlier_changes += changes - self.changes
