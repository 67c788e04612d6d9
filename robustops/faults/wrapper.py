"""A world whose tools fail by plan: the contract of `World`, with one fault at the tool boundary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from robustops.errors import WorldError
from robustops.faults.mechanisms import Context, Exchange, faulty_reply
from robustops.faults.plan import SUBTYPES, FaultPlan, check_subtypes
from robustops.records import FaultEvent, StateCheck, Task, ToolCall, ToolResult, text_digest
from robustops.seeding import generator
from robustops.worlds.database import WorldDatabase, check_name
from robustops.worlds.environment import Snapshot, World
from robustops.worlds.toolset import ToolSpec

#: Mechanisms whose call must not be executed.
UNEXECUTED = frozenset({"temporary_refusal"})


@dataclass(frozen=True)
class Opportunity:
    """A call at which faults could have struck, seen while observing.

    turn: how many calls the world had had before; subtypes: the eligible mechanisms; ordinals: for each
    of them, which of the episode's opportunities this is (`FaultPlan.opportunity`); snapshot: the world
    and the wrapper just before the call.
    """

    turn: int
    call: ToolCall
    subtypes: tuple[str, ...]
    ordinals: tuple[int, ...]
    snapshot: Snapshot

    @property
    def tool(self) -> str:
        return self.call.name

    @property
    def call_key(self) -> str:
        return self.call.key()

    def plan(self, subtype: str, cap: int = 1) -> FaultPlan:
        """The plan that injects this mechanism at this very call; KeyError if it is not eligible."""
        return FaultPlan(subtype, dict(zip(self.subtypes, self.ordinals, strict=True))[subtype], cap)


@dataclass(frozen=True)
class WrapperState:
    """What a snapshot holds of the wrapper; inner: the wrapped world's own `Snapshot.extra`."""

    turn: int = 0
    earlier: tuple[Exchange, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    hits: int = 0
    hit_key: str | None = None
    plan: FaultPlan | None = None
    inner: Any = None


class FaultyWorld:
    """Wraps a world. Without a plan, and on every call that is not struck, replies are the native ones.

    plan: which fault strikes, at which opportunity and how often; observe: record the opportunities for
    every mechanism in `subtypes`. `last_event` is the fault of the latest step, if it had one, `said` the
    digest of its reply as it leaves the tool boundary. `hits` counts the injections; `opportunities` fills
    up while observing. A snapshot remembers the plan of a fault that has struck, so that whoever continues
    from it continues the fault, too.
    """

    def __init__(
        self,
        world: World,
        plan: FaultPlan | None = None,
        *,
        observe: bool = False,
        subtypes: tuple[str, ...] = SUBTYPES,
    ) -> None:
        self.world = world
        self.plan = plan
        self.observe = observe
        self.subtypes = check_subtypes(subtypes)
        self.last_event: FaultEvent | None = None
        self.said: str | None = None
        self.opportunities: list[Opportunity] = []
        self._given = plan
        self._task: Task | None = None
        self._specs: dict[str, ToolSpec] = {}
        self._turn = 0
        self._earlier: list[Exchange] = []
        self._counts: dict[str, int] = {}
        self.hits = 0
        self._hit_key: str | None = None
        self._writes = 0
        self._undone = 0
        self._cached: tuple[int, Snapshot] | None = None

    # the contract of World -----------------------------------------------------------------------
    def reset(self, task: Task) -> None:
        """Start the task afresh, with the plan that was given at first."""
        self.world.reset(task)
        self.plan = self._given
        self._begin(task, WrapperState())

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot, the wrapper's counters included.

        The snapshot's plan takes over if its fault has struck already or no plan was given here.
        """
        extra = snapshot.extra
        state = extra if isinstance(extra, WrapperState) else WrapperState(inner=extra)
        self.world.restore(Snapshot(snapshot.task, snapshot.database, state.inner))
        self.plan = state.plan if state.plan is not None and (state.hits or not self._given) else self._given
        self._begin(snapshot.task, state)

    def snapshot(self) -> Snapshot:
        return self._wrap(self.world.snapshot())

    def step(self, call: ToolCall) -> ToolResult:
        """One call: executed natively, its reply replaced where the plan strikes."""
        self.last_event = None
        spec = self._specs.get(call.name)
        start = self._moment() if self.observe else None
        undo = self.world.snapshot() if self._undoable(call, spec) else None
        moved = self.changes
        native = self.world.step(call)
        seen = native
        if spec is not None:
            self._writes += spec.kind == "write" and not native.is_error
            changed = self.changes != moved
            self._record(call, spec, native, changed, start)
            seen = self._strike(call, spec, native, changed) or native
        if self.last_event is None:
            self._earlier.append((call, native))
        elif undo is not None:
            self.world.restore(undo)
            self._undone += self.changes - moved
        self._turn += 1
        self.said = text_digest(seen.text)
        return seen

    def evaluate(self, checks: Sequence[StateCheck]) -> tuple[bool, ...]:
        return self.world.evaluate(checks)

    def specs(self) -> dict[str, ToolSpec]:
        return self.world.specs()

    def close(self) -> None:
        self.world.close()

    @property
    def changes(self) -> int:
        """A number that moves if and only if the database is written to; a refused call leaves it.

        Worlds that cannot tell (remote ones) count their successful write calls.
        """
        return int(getattr(self.world, "changes", self._writes)) - self._undone

    # ---------------------------------------------------------------------------------------------
    def _begin(self, task: Task, state: WrapperState) -> None:
        self._task = task
        self._specs = self.world.specs()
        self._turn = state.turn
        self._earlier = list(state.earlier)
        self._counts = dict(state.counts)
        self.hits, self._hit_key = state.hits, state.hit_key
        self.last_event = None
        self.opportunities = [o for o in self.opportunities if o.turn < state.turn]
        self._cached = None

    def _wrap(self, inner: Snapshot) -> Snapshot:
        counts = tuple(sorted(self._counts.items()))
        state = WrapperState(
            self._turn, tuple(self._earlier), counts, self.hits, self._hit_key, self.plan, inner.extra
        )
        return Snapshot(inner.task, inner.database, state)

    def _moment(self) -> Snapshot:
        """A snapshot that shares the database image with earlier ones for as long as nothing is written."""
        if self._cached is None or self._cached[0] != self.changes:
            self._cached = (self.changes, self.world.snapshot())
        return self._wrap(self._cached[1])

    def _context(
        self, call: ToolCall, spec: ToolSpec, native: ToolResult, changed: bool, subtype: str
    ) -> Context:
        task_id = self._task.id if self._task else ""
        rng = generator(0, "fault", task_id, subtype, self._counts.get(subtype, 0), call.key(), self.hits)
        return Context(call, spec, native, changed, self._earlier, self._read, self._rows, rng)

    def _record(
        self, call: ToolCall, spec: ToolSpec, native: ToolResult, changed: bool, start: Snapshot | None
    ) -> None:
        """While observing: note which mechanisms could have struck, and count them."""
        if start is None:
            return
        names = [
            name
            for name in self.subtypes
            if faulty_reply(name, self._context(call, spec, native, changed, name)) is not None
        ]
        ordinals = tuple(self._counts.get(name, 0) for name in names)
        if names:
            self.opportunities.append(Opportunity(self._turn, call, tuple(names), ordinals, start))
        if self.plan is None:
            self._counts.update({name: self._counts.get(name, 0) + 1 for name in names})

    def _due(self, call: ToolCall) -> bool:
        """Whether the plan strikes this call if it is eligible."""
        if self.plan is None:
            return False
        if self.hits:
            return self.hits < self.plan.repetitions and call.key() == self._hit_key
        return self._counts.get(self.plan.subtype, 0) == self.plan.opportunity

    def _undoable(self, call: ToolCall, spec: ToolSpec | None) -> bool:
        """Whether the call may have to be taken back: only a trial shows whether it would succeed."""
        writes = spec is not None and spec.kind == "write"
        return self.plan is not None and self.plan.subtype in UNEXECUTED and writes and self._due(call)

    def _strike(self, call: ToolCall, spec: ToolSpec, native: ToolResult, changed: bool) -> ToolResult | None:
        """The faulty reply if the plan strikes now; counts the plan's opportunities until it does."""
        plan = self.plan
        if plan is None or (self.hits and not self._due(call)):
            return None
        faulty = faulty_reply(plan.subtype, self._context(call, spec, native, changed, plan.subtype))
        if faulty is None:
            return None
        if not self._due(call):
            self._counts[plan.subtype] = self._counts.get(plan.subtype, 0) + 1
            return None
        self.hits += 1
        self._hit_key = call.key()
        self.last_event = FaultEvent(
            plan.family, plan.subtype, self._turn, call.name, self.hits, plan.repetitions
        )
        return faulty

    def _read(self, call: ToolCall) -> ToolResult:
        """A native reply for the mechanisms; tools that write are never run for them."""
        spec = self._specs.get(call.name)
        if spec is None or spec.kind != "read":
            raise WorldError(f"{call.name} is no read tool of this task; mechanisms may only read")
        return self.world.step(call)

    def _rows(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Distinct values of columns: from the database, or from replies where it is out of reach."""
        database = getattr(getattr(self.world, "tools", None), "database", None)
        if isinstance(database, WorldDatabase):
            names = ", ".join(f'"{check_name(column)}"' for column in columns)
            rows = database.query(f'SELECT {names} FROM "{check_name(table)}" ORDER BY rowid')
        else:
            rows = _seen(columns, [result.data for _, result in self._earlier])
        return list(dict.fromkeys(tuple(row[column] for column in columns) for row in rows))


def _seen(columns: Sequence[str], data: Any) -> list[dict[str, Any]]:
    """All objects in nested replies that have plain values in these columns."""
    if isinstance(data, list):
        return [row for item in data for row in _seen(columns, item)]
    if not isinstance(data, dict):
        return []
    own = [data] if all(isinstance(data.get(column), str | int) for column in columns) else []
    return own + [row for item in data.values() for row in _seen(columns, item)]
