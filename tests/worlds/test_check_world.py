"""The public contract check: whole domains pass, and each broken promise is found and named."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.errors import WorldError
from robustops.records import DatabaseSpec, ToolCall, ToolResult
from robustops.seeding import generator
from robustops.worlds.check_world import check_world, world_problems
from robustops.worlds.database import WorldDatabase
from robustops.worlds.domain import ExpertScript, domain_names, get_domain
from robustops.worlds.environment import LocalWorld, Snapshot
from robustops.worlds.probes import Prober, draw_task, free_task
from robustops.worlds.toolset import Toolset, tool
from tests.toy_domain import TOY, FileNote, ToyDomain, ToyTools, toy_task


def domain_with(toolset: type[Toolset] = ToyTools, **members: Any) -> ToyDomain:
    """The toy domain with other tools or other members."""
    made: ToyDomain = type("BrokenDomain", (ToyDomain,), {"toolset": toolset, **members})()
    return made


def test_the_toy_domain_keeps_the_contract() -> None:
    assert world_problems(TOY, seeds=(0, 1, 2)) == []
    check_world(TOY, seeds=(5,), size="large")
    check_world(ToyDomain(detail="full"), seeds=(0,))


@pytest.mark.parametrize("name", domain_names())
def test_every_domain_keeps_the_contract(name: str) -> None:
    check_world(get_domain(name), seeds=(0,))


def complaint(domain: ToyDomain, **options: Any) -> str:
    """The text of the error; fails where there is none."""
    with pytest.raises(WorldError, match="breaks the world contract") as caught:
        check_world(domain, seeds=(0,), **options)
    return str(caught.value)


# broken tools -----------------------------------------------------------------------------------
class WritingRead(ToyTools):
    @tool("read")
    def peek(self) -> int:
        """Look, and leave a trace."""
        return self.database.update("box", {"name": "attic"}, {"colour": self.database.now()}) or (
            self.database.delete("note", {"id": "N1"})
        )


class CountingRead(ToyTools):
    @tool("read")
    def peek(self) -> int:
        """Look, and count it."""
        return self.database.count("looks")


class WithoutDescription(ToyTools):
    @tool("read")
    def peek(self) -> int:
        return 1


class OddArgument(ToyTools):
    @tool("read")
    def peek(self, what: Any) -> int:
        """Look."""
        return 1


class OddName(ToyTools):
    @tool("read")
    def grüße(self) -> int:
        """Greet."""
        return 1


class OddIdentity(ToyTools):
    @tool("read", identity={"what": "box.size"})
    def peek(self, box_id: str) -> int:
        """Look."""
        return 1


class Bursting(ToyTools):
    @tool("read")
    def peek(self, box_id: str) -> int:
        """Look."""
        return int(box_id)


class Dicing(ToyTools):
    @tool("read")
    def peek(self) -> float:
        """Look."""
        return random.SystemRandom().random()


class Sharing(ToyTools):
    seen: list[str] = []

    @tool("write")
    def remember(self, title: str) -> list[str]:
        """Keep a title where all worlds see it."""
        self.seen.append(title)
        self.database.update("note", {"id": "N1"}, {"title": title})
        return list(self.seen)


class Swallowing(ToyTools):
    def call(self, call: ToolCall) -> ToolResult:
        known = self._specs[call.name].arguments
        return super().call(ToolCall(call.name, {k: v for k, v in call.arguments.items() if k in known}))


@pytest.mark.parametrize(
    ("toolset", "words"),
    [
        (WritingRead, "read tool 'peek' changed the database"),
        (CountingRead, "read tool 'peek' changed the database"),
        (WithoutDescription, "tool 'peek': no description"),
        (OddArgument, "tool 'peek', argument 'what': no plain JSON type"),
        (OddName, "tool 'grüße': not a name"),
        (OddIdentity, "tool 'peek': identity 'box.size' is no column"),
        (OddIdentity, "tool 'peek': identity names 'what', which is no argument"),
        (Bursting, 'peek {"box_id":"B'),
        (Bursting, "raised ValueError"),
        (Dicing, "peek {} answers otherwise after a restore"),
        (Dicing, "peek {} answers otherwise after a reset"),
        (Sharing, "remember"),
        (Swallowing, "expected an error UNKNOWN_ARGUMENT"),
    ],
)
def test_broken_tools_are_found(toolset: type[Toolset], words: str) -> None:
    assert words in complaint(domain_with(toolset))


# broken domains and templates -------------------------------------------------------------------
class Template(FileNote):
    def __init__(self, tools: tuple[str, ...] = FileNote.tools) -> None:
        self.tools = tools


class Idle(FileNote):
    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        yield ToolCall("list_boxes")
        return "Done, I say."


class Lost(FileNote):
    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        while True:
            yield ToolCall("list_boxes")


def dice_fill(self: ToyDomain, database: WorldDatabase, seed: int, size: str) -> None:
    ToyDomain.fill(self, database, seed, size)
    database.insert("box", {"id": "B9", "name": str(random.SystemRandom().random()), "colour": "red"})


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"templates": {"t": Template(("fly", "get_box"))}}, "template 't': there is no tool 'fly'"),
        ({"templates": {"t": Template(())}}, "template 't': names no tools"),
        ({"templates": {"t": Idle()}}, "the expert fails ['note_is_there', 'note_is_done', 'no_duplicate']"),
        ({"templates": {"t": Lost()}}, "did not end within 40 calls"),
        ({"templates": {"t": Template(("list_boxes", "get_note"))}}, "no use repeating create_note"),
        ({"fill": dice_fill}, "filling twice gave different databases"),
    ],
)
def test_broken_domains_are_found(members: dict[str, Any], words: str) -> None:
    assert words in complaint(domain_with(**members))


def test_a_template_that_starts_solved_is_found() -> None:
    class Solved(FileNote):
        def draw(self, database: WorldDatabase, rng: random.Random) -> Any:
            draft = super().draw(database, rng)
            assert draft is not None
            return type(draft)(draft.prompt, draft.plan, (), ())

    assert "the start state passes already" in complaint(domain_with(templates={"t": Solved()}))


# broken worlds ----------------------------------------------------------------------------------
class ForgetsClock(LocalWorld):
    def restore(self, snapshot: Snapshot) -> None:
        now = self.tools.database.seconds if self._tools is not None else 0
        super().restore(snapshot)
        self.tools.database.seconds = now


class KeepsRows(LocalWorld):
    def reset(self, task: Any) -> None:
        if self._task is None:
            super().reset(task)


class OneForAll(LocalWorld):
    """All instances act on one database."""

    shared: list[Toolset] = []

    def _replace(self, task: Any, image: Any) -> None:
        self._tools = self.shared[0] if self.shared else None
        super()._replace(task, image)
        self.shared[:] = [self.tools]

    def close(self) -> None:
        self._task = self._tools = None


class RunsChecksForReal(LocalWorld):
    def evaluate(self, checks: Any) -> tuple[bool, ...]:
        self.tools.database.count("evaluations")
        return super().evaluate(checks)


@pytest.mark.parametrize(
    ("world", "words"),
    [
        (ForgetsClock, "restore did not go back to rows, clock and counters exactly"),
        (KeepsRows, "reset did not go back to the start state"),
        (OneForAll, "calls on one world changed another"),
        (RunsChecksForReal, "evaluating changed the state"),
    ],
)
def test_broken_worlds_are_found(world: type[LocalWorld], words: str) -> None:
    OneForAll.shared.clear()
    assert words in complaint(TOY, world_factory=world)


def test_each_problem_is_told_once_and_all_worlds_are_closed() -> None:
    opened: list[LocalWorld] = []

    def factory(domain: Any) -> LocalWorld:
        opened.append(LocalWorld(domain))
        return opened[-1]

    problems = world_problems(domain_with(CountingRead), seeds=(0, 1), world_factory=factory)
    assert len(problems) == len(set(problems)) > 0
    assert len(opened) == 4 and all(world._tools is None for world in opened)


# probes -----------------------------------------------------------------------------------------
def test_a_free_task_allows_every_tool_and_checks_nothing() -> None:
    task = free_task(TOY, seed=7)
    assert task.allowed_tools == tuple(ToyTools.specs())
    assert task.database == DatabaseSpec(seed=7) and task.checks == ()
    with closing(LocalWorld(TOY)) as world:
        world.reset(task)
        assert not world.step(ToolCall("list_notes")).is_error


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 1000))
def test_made_up_calls_pass_the_argument_check(seed: int, draw: int) -> None:
    with closing(LocalWorld(TOY)) as world:
        world.reset(free_task(TOY, seed=seed))
        prober = Prober(TOY, world.tools.database)
        for call in prober.calls(list(ToyTools.specs().values()), generator(draw, "calls"), 2):
            result = world.step(call)
            codes = ("NOT_FOUND", "NOTHING_TO_CHANGE")
            assert not result.is_error or result.data["error"]["code"] in codes, (call, result)


def test_made_up_reads_find_rows() -> None:
    with closing(LocalWorld(TOY)) as world:
        world.reset(free_task(TOY))
        prober = Prober(TOY, world.tools.database)
        specs = [ToyTools.specs()[name] for name in ("get_box", "get_note")]
        assert not any(world.step(call).is_error for call in prober.calls(specs, generator(0, "x"), 20))


def test_drawing_is_repeatable_and_knows_its_templates() -> None:
    spec = DatabaseSpec(seed=3)
    assert draw_task(TOY, "file_note", spec) == draw_task(TOY, "file_note", spec)
    assert draw_task(TOY, "file_note", spec) != draw_task(TOY, "file_note", DatabaseSpec(seed=4))
    with pytest.raises(WorldError.__mro__[1], match="close_note, file_note"):
        draw_task(TOY, "nope", spec)

    class Never(FileNote):
        def draw(self, database: WorldDatabase, rng: random.Random) -> None:
            return None

    assert draw_task(domain_with(templates={"t": Never()}), "t", spec) is None
    assert toy_task().database == DatabaseSpec(seed=0)
