"""Public check of the world contract: for a new domain, a new wrapper, or a world behind a wire.

from robustops.worlds.check_world import check_world
check_world(get_domain("itsm"))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from robustops.errors import RobustOpsError, WorldError
from robustops.records import DatabaseSpec, Task, ToolCall, ToolResult
from robustops.seeding import generator
from robustops.worlds.checks import validate_graph
from robustops.worlds.domain import Domain
from robustops.worlds.environment import LocalWorld, Snapshot, World
from robustops.worlds.probes import Prober, draw_task, free_task
from robustops.worlds.scripted import run_expert
from robustops.worlds.toolset import ToolSpec

#: Names that MCP clients accept; a leading `_` is kept for the tools of a harness.
TOOL_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")
JSON_TYPES = ("string", "integer", "number", "boolean", "array", "object")
#: Made-up calls a tool and seed.
CALLS = 3

WorldFactory = Callable[[Domain], World]


def check_world(
    domain: Domain,
    *,
    seeds: Sequence[int] = (0, 1),
    size: str = "small",
    world_factory: WorldFactory = LocalWorld,
) -> None:
    """Raise one WorldError that lists every broken promise; return where there is none.

    The promises: every tool has a description and a plain JSON schema; templates name existing tools and
    their experts solve their tasks; the same seed and calls give the same state and replies; two worlds
    share nothing; a read tool, a refused call and an evaluation leave the database as it is; restore goes
    back to rows, clock and counters exactly, on any world of the domain; wrong calls come back as
    structured errors. `seeds` and `size` name generated start databases; all worlds made by
    `world_factory` are closed.
    """
    problems = world_problems(domain, seeds=seeds, size=size, world_factory=world_factory)
    if problems:
        lines = "\n".join(f"- {problem}" for problem in problems)
        raise WorldError(f"domain '{domain.name}' breaks the world contract:\n{lines}")


def world_problems(
    domain: Domain,
    *,
    seeds: Sequence[int] = (0, 1),
    size: str = "small",
    world_factory: WorldFactory = LocalWorld,
) -> list[str]:
    """What `check_world` would complain of, each thing once."""
    problems = [*_spec_problems(domain), *_template_problems(domain)]
    if not problems:
        for seed in seeds:
            problems += _seed_problems(domain, DatabaseSpec(seed=seed, size=size))
            checker = _Checker(domain, DatabaseSpec(seed=seed, size=size, path=domain.path), world_factory)
            problems += checker.problems()
    return list(dict.fromkeys(problems))


def _told(error: Exception) -> str:
    """An expected failure by its message, a bug with its type."""
    return str(error) if isinstance(error, RobustOpsError) else f"{type(error).__name__}: {error}"


# what can be said without a world ---------------------------------------------------------------
def _spec_problems(domain: Domain) -> Iterator[str]:
    database = domain.new_database()
    tables = {
        table: {row["name"] for row in database.query(f'PRAGMA table_info("{table}")')}
        for table in database.tables()
    }
    database.close()
    if not domain.toolset.specs():
        yield "the domain has no tools"
    for name, spec in domain.toolset.specs().items():
        if not TOOL_NAME.match(name):
            yield f"tool '{name}': not a name that MCP clients accept"
        if not spec.description:
            yield f"tool '{name}': no description; give its method a docstring"
        schema = spec.input_schema
        for argument, rules in schema["properties"].items():
            if rules.get("type") not in JSON_TYPES and "enum" not in rules and "const" not in rules:
                yield f"tool '{name}', argument '{argument}': no plain JSON type in {rules}"
        for argument, target in spec.identity.items():
            table, _, column = target.partition(".")
            if argument not in spec.arguments:
                yield f"tool '{name}': identity names '{argument}', which is no argument"
            if column not in tables.get(table, ()):
                yield f"tool '{name}': identity '{target}' is no column of the schema"


def _template_problems(domain: Domain) -> Iterator[str]:
    known = domain.toolset.specs()
    for name, template in domain.templates.items():
        if not template.tools:
            yield f"template '{name}': names no tools"
        for tool in template.tools:
            if tool not in known:
                yield f"template '{name}': there is no tool '{tool}'"


def _seed_problems(domain: Domain, spec: DatabaseSpec) -> Iterator[str]:
    """Filling two databases from one seed, without the domain's cache."""
    states = []
    for _ in range(2):
        database = domain.new_database()
        with database.atomic():
            domain.fill(database, spec.seed, spec.size)
        states.append((database.dump(), database.counters))
        database.close()
    if states[0] != states[1]:
        yield f"seed {spec.seed}: filling twice gave different databases; draw only from seeded generators"


# what a world shows -----------------------------------------------------------------------------
class _Checker:
    """The checks of one start database."""

    def __init__(self, domain: Domain, spec: DatabaseSpec, factory: WorldFactory) -> None:
        self.domain = domain
        self.spec = spec
        self.factory = factory
        self.task = free_task(domain, seed=spec.seed, size=spec.size)
        self.specs = list(domain.toolset.specs().values())
        self.found: list[str] = []

    def problems(self) -> list[str]:
        one, other = self.factory(self.domain), self.factory(self.domain)
        try:
            for check in (self._reset, self._reads, self._refusals, self._run, self._experts):
                try:
                    check(one, other)
                except RobustOpsError as error:
                    self.found.append(f"{check.__name__.strip('_')}: {error}")
        finally:
            one.close()
            other.close()
        return self.found

    def _reset(self, one: World, other: World) -> None:
        one.reset(self.task)
        other.reset(self.task)
        self._equal(one.snapshot(), other.snapshot(), "two worlds start in different states")
        if set(one.specs()) != {spec.name for spec in self.specs}:
            self.found.append(f"specs() lists {sorted(one.specs())}, the task allows every tool")

    def _reads(self, one: World, other: World) -> None:
        one.reset(self.task)
        start = one.snapshot()
        for call in self._calls("reads", kind="read"):
            self._step(one, call)
            now = one.snapshot()
            if not self._same(start, now):
                self.found.append(
                    f"read tool '{call.name}' changed the database, called with {call.arguments}"
                )
                one.restore(start)

    def _refusals(self, one: World, other: World) -> None:
        one.reset(self.task)
        start = one.snapshot()
        for call, code in self._wrong_calls():
            result = self._step(one, call)
            body = result.data if result is not None else None
            given = body.get("error", {}).get("code") if isinstance(body, dict) else None
            if result is not None and not (result.is_error and given == code):
                self.found.append(f"{call.key()}: expected an error {code}, got {result.text[:120]}")
        self._equal(start, one.snapshot(), "a refused call changed the state")

    def _wrong_calls(self) -> Iterator[tuple[ToolCall, str]]:
        yield ToolCall("no_such_tool"), "UNKNOWN_TOOL"
        prober, rng = self._prober(), generator(self.spec.seed, "wrong calls")
        for spec in self.specs:
            good = prober.call(spec, rng).arguments
            yield ToolCall(spec.name, {**good, "no_such_argument": 1}), "UNKNOWN_ARGUMENT"
            if spec.required:
                missing = {k: v for k, v in good.items() if k != spec.required[0]}
                yield ToolCall(spec.name, missing), "MISSING_ARGUMENT"
            for name, rules in spec.input_schema["properties"].items():
                if "enum" in rules:
                    yield ToolCall(spec.name, {**good, name: "no_such_value"}), "INVALID_ENUM_VALUE"

    def _run(self, one: World, other: World) -> None:
        """The same calls twice and on both worlds; snapshots in the middle."""
        calls = self._calls("run")
        half = len(calls) // 2
        for world in (one, other):
            world.reset(self.task)
        start = other.snapshot()
        first = [self._step(one, call) for call in calls[:half]]
        middle = one.snapshot()
        second = [self._step(one, call) for call in calls[half:]]
        end = one.snapshot()
        self._equal(start, other.snapshot(), "calls on one world changed another")
        one.restore(middle)
        self._equal(middle, one.snapshot(), "restore did not go back to rows, clock and counters exactly")
        again = [self._step(one, call) for call in calls[half:]]
        self._replies(calls[half:], second, again, "after a restore")
        self._equal(end, one.snapshot(), "the same calls after a restore gave another state")
        other.restore(middle)
        there = [self._step(other, call) for call in calls[half:]]
        self._replies(calls[half:], second, there, "on another world restored to the snapshot")
        one.reset(self.task)
        self._equal(start, one.snapshot(), "reset did not go back to the start state")
        replay = [self._step(one, call) for call in calls]
        self._replies(calls, first + second, replay, "after a reset")

    def _experts(self, one: World, other: World) -> None:
        for name in self.domain.templates:
            task = draw_task(self.domain, name, self.spec)
            if task is None:
                continue
            try:
                self._expert(one, name, task)
            except Exception as error:  # an expert may break in any way, too
                self.found.append(f"template '{name}': {_told(error)}")

    def _expert(self, world: World, name: str, task: Task) -> None:
        validate_graph([check.name for check in task.checks], task.prerequisites)
        world.reset(task)
        start = world.snapshot()
        if all(world.evaluate(task.checks)):
            self.found.append(f"template '{name}': the start state passes already: {task.prompt}")
        self._equal(start, world.snapshot(), f"template '{name}': evaluating changed the state")
        run = run_expert(world, self.domain, task)
        if not run.success:
            failed = [c.name for c, ok in zip(task.checks, run.checks, strict=True) if not ok]
            self.found.append(f"template '{name}': the expert fails {failed}: {task.prompt}")
        end = world.snapshot()
        if run_expert(world, self.domain, task) != run or not self._same(end, world.snapshot()):
            self.found.append(f"template '{name}': the expert's second run differs from its first")

    # helpers ------------------------------------------------------------------------------------
    def _prober(self) -> Prober:
        database = self.domain.open(self.spec)
        try:
            return Prober(self.domain, database)
        finally:
            database.close()

    def _calls(self, purpose: str, kind: str | None = None) -> list[ToolCall]:
        chosen: list[ToolSpec] = [spec for spec in self.specs if kind in (None, spec.kind)]
        return self._prober().calls(chosen, generator(self.spec.seed, "probe", purpose), CALLS)

    def _step(self, world: World, call: ToolCall) -> ToolResult | None:
        """The reply; None, and a problem, where the tool breaks down."""
        try:
            return world.step(call)
        except RobustOpsError:
            raise
        except Exception as error:  # a domain's tool may break in any way; say which call does it
            self.found.append(f"{call.key()} raised {_told(error)}")
            return None

    def _replies(self, calls: Sequence[ToolCall], expected: Any, given: Any, when: str) -> None:
        for call, before, now in zip(calls, expected, given, strict=True):
            if before != now:
                self.found.append(f"{call.key()} answers otherwise {when}")
                return

    def _equal(self, expected: Snapshot, given: Snapshot, problem: str) -> None:
        if not self._same(expected, given):
            self.found.append(f"seed {self.spec.seed}: {problem}")

    def _same(self, one: Snapshot, other: Snapshot) -> bool:
        """Equal rows, clock and counters; equal images are a short cut."""
        left, right = one.database, other.database
        if (left.seconds, left.counters) != (right.seconds, right.counters):
            return False
        return left.image == right.image or self._dump(one) == self._dump(other)

    def _dump(self, snapshot: Snapshot) -> Any:
        database = self.domain.new_database()
        database.restore(snapshot.database)
        try:
            return database.dump()
        finally:
            database.close()
