"""A world in this process: reset, step, snapshot, restore, evaluate."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from robustops.errors import ConfigError, WorldError
from robustops.records import StateCheck, ToolCall, ToolResult
from robustops.worlds import environment
from robustops.worlds.database import Row
from robustops.worlds.environment import LocalWorld
from robustops.worlds.expert import error_code
from robustops.worlds.scripted import run_expert
from robustops.worlds.time_limit import TOOL_TIMEOUT
from robustops.worlds.toolset import tool
from tests.slow_domain import SEEN, SLOW, THREADS, WAKE, SlowDomain, SlowTools, slow_task
from tests.toy_domain import TOY, ToyDomain, ToyTools, toy_task

CREATE = ToolCall("create_note", {"box_id": "B1", "title": "water plants"})
NOTES = StateCheck("thirteen", "SELECT count(*) FROM note", 13)


@pytest.fixture()
def world() -> Iterator[LocalWorld]:
    with closing(LocalWorld(TOY)) as made:
        yield made


def test_nothing_works_before_reset(world: LocalWorld) -> None:
    for early in (
        lambda: world.step(CREATE),
        world.snapshot,
        world.specs,
        lambda: world.evaluate([NOTES]),
        lambda: world.changes,
    ):
        with pytest.raises(WorldError, match="call reset"):
            early()
    world.close()  # closing an unused world is fine


def test_reset_gives_the_same_start_whatever_happened_before(world: LocalWorld) -> None:
    world.reset(toy_task(seed=4))
    start = world.snapshot()
    first = world.step(CREATE)
    world.reset(toy_task(seed=5))
    assert world.snapshot() != start
    world.reset(toy_task(seed=4))
    assert world.snapshot() == start
    assert world.step(CREATE) == first


def test_two_worlds_and_the_domain_s_start_image_share_nothing(world: LocalWorld) -> None:
    task = toy_task(seed=4)
    with closing(LocalWorld(TOY)) as other:
        world.reset(task)
        other.reset(task)
        start = other.snapshot()
        world.step(CREATE)
        assert world.evaluate([NOTES]) == (True,)
        assert other.evaluate([NOTES]) == (False,)
        assert other.snapshot() == start
    with closing(LocalWorld(TOY)) as third:
        third.reset(task)
        assert third.snapshot() == start


def test_only_allowed_tools_are_listed_and_callable(world: LocalWorld) -> None:
    task = replace(toy_task(), tools=("get_box", "list_boxes"), distractors=("get_note",))
    world.reset(task)
    assert list(world.specs()) == ["get_box", "list_boxes"]
    refused = world.step(ToolCall("get_note", {"note_id": "N1"}))
    assert refused.is_error
    assert refused.data["error"]["code"] == "UNKNOWN_TOOL"
    assert refused.data["error"]["allowed"] == ["get_box", "list_boxes"]
    world.reset(replace(task, tool_config="plus5"))
    assert list(world.specs()) == ["get_box", "get_note", "list_boxes"]
    assert not world.step(ToolCall("get_note", {"note_id": "N1"})).is_error


def test_a_task_of_another_domain_or_with_unknown_tools_is_refused(world: LocalWorld) -> None:
    with pytest.raises(WorldError, match="belongs to domain 'itsm', not 'toy'"):
        world.reset(replace(toy_task(), domain="itsm"))
    world.reset(replace(toy_task(), tools=("get_box", "fly", "dig")))
    with pytest.raises(WorldError, match="does not have: dig, fly"):
        world.specs()


def test_restore_goes_back_and_on_another_world_too(world: LocalWorld) -> None:
    task = toy_task(seed=2)
    world.reset(task)
    world.step(CREATE)
    middle = world.snapshot()
    after = world.step(CREATE)
    assert world.snapshot() != middle
    world.restore(middle)
    assert world.snapshot() == middle
    with closing(LocalWorld(TOY)) as fresh:
        fresh.restore(middle)
        assert fresh.task == task
        assert fresh.step(CREATE) == after == world.step(CREATE)
        assert fresh.snapshot() == world.snapshot()


def test_restore_brings_back_the_task_and_its_user(world: LocalWorld) -> None:
    first = replace(toy_task(seed=1), acting_user="anna")
    world.reset(first)
    snapshot = world.snapshot()
    world.reset(toy_task(seed=2))
    assert world.tools.acting_user is None
    world.restore(snapshot)
    assert (world.task, world.tools.acting_user) == (first, "anna")


def test_changes_tell_reads_and_refusals_from_writes(world: LocalWorld) -> None:
    world.reset(toy_task())
    before = world.changes
    world.step(ToolCall("list_notes"))
    world.step(ToolCall("update_note", {"note_id": "N1"}))  # NOTHING_TO_CHANGE
    world.evaluate([NOTES])
    assert world.changes == before
    world.step(CREATE)
    assert world.changes > before


def test_evaluating_changes_nothing(world: LocalWorld) -> None:
    task = toy_task()
    world.reset(task)
    before = world.snapshot()
    assert world.evaluate(task.checks) == (False, False, False)
    assert world.evaluate(()) == ()
    assert world.snapshot() == before


@pytest.mark.parametrize("template", sorted(TOY.templates))
def test_the_expert_solves_the_task(world: LocalWorld, template: str) -> None:
    run = run_expert(world, TOY, toy_task(template, seed=6))
    assert run.success and run.answer
    assert run == run_expert(world, TOY, toy_task(template, seed=6))


# the time limit ------------------------------------------------------------------------------------
ENDLESS = StateCheck(
    "endless", "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n", 1
)
NEVER = {
    "read that waits": ToolCall("wait_and_read", {"tag": "a"}),
    "write that waits": ToolCall("wait_and_create", {"title": "a"}),
    "busy loop": ToolCall("spin"),
    "query without end": ToolCall("endless_query"),
}


@pytest.fixture()
def slow() -> Iterator[LocalWorld]:
    """A world of slow tools; what still waits is let go at the end."""
    WAKE.clear()
    SEEN.clear()
    THREADS.clear()
    with closing(LocalWorld(SLOW, tool_timeout_s=0.1)) as made:
        made.reset(slow_task())
        yield made
    WAKE.set()


@pytest.mark.parametrize("call", NEVER.values(), ids=NEVER.keys())
def test_a_tool_that_never_answers_ends_as_a_timeout_receipt_and_the_world_goes_on(
    slow: LocalWorld, call: ToolCall
) -> None:
    assert not slow.step(CREATE).is_error  # a state that no reset gives
    before, changes = slow.snapshot(), slow.changes
    began = time.monotonic()
    receipt = slow.step(call)
    assert 0.1 <= time.monotonic() - began < 2
    assert receipt.is_error and error_code(receipt) == TOOL_TIMEOUT
    unknown = "outcome is unknown" in receipt.text
    assert unknown == (slow.specs()[call.name].kind == "write")
    # Rows, clock and counters are those before the call; a write has wholly not happened.
    assert slow.snapshot() == before and slow.changes == changes
    with closing(LocalWorld(SLOW)) as other:
        other.restore(before)
        assert slow.step(CREATE) == other.step(CREATE)
        assert slow.snapshot() == other.snapshot()
    assert slow.changes > changes


def test_a_late_write_reaches_neither_this_state_nor_a_later_one(slow: LocalWorld) -> None:
    receipts = [slow.step(ToolCall("wait_and_create", {"title": title})) for title in "ab"]
    assert [error_code(receipt) for receipt in receipts] == [TOOL_TIMEOUT] * 2
    before = slow.snapshot()
    read = slow.step(ToolCall("list_notes"))
    slow.reset(slow_task(seed=1))
    start = slow.snapshot()
    WAKE.set()
    for thread in THREADS:
        thread.join(5)
        assert not thread.is_alive()
    # Each call began once and was stopped where it waited.
    assert len(THREADS) == 2 and SEEN == ["create a", "create b"]
    assert slow.snapshot() == start
    slow.restore(before)
    assert slow.step(ToolCall("list_notes")) == read and read.data["total_count"] == 12


def test_a_late_reply_is_never_that_of_the_next_call(slow: LocalWorld) -> None:
    tags = ToolCall("wait_and_read", {"tag": "first"}), ToolCall("wait_and_read", {"tag": "second"})
    assert error_code(slow.step(tags[0])) == TOOL_TIMEOUT
    WAKE.set()
    assert [slow.step(tags[1]).data for _ in range(5)] == [{"tag": "second"}] * 5


def test_state_checks_that_never_end_are_a_world_error_and_the_state_stays(slow: LocalWorld) -> None:
    slow.step(CREATE)
    before = slow.snapshot()
    with pytest.raises(WorldError, match=r"no answer within 0.1 s to the state checks of task .*endless"):
        slow.evaluate([NOTES, ENDLESS])
    assert slow.evaluate([NOTES]) == (True,) and slow.snapshot() == before


def test_a_write_that_committed_and_only_then_was_late_stays(slow: LocalWorld) -> None:
    class LateTools(SlowTools):
        def call(self, call: ToolCall) -> ToolResult:
            result = super().call(call)
            if call.name == "create_note":
                WAKE.wait()
            return result

    class LateDomain(SlowDomain):
        toolset = LateTools

    with closing(LocalWorld(LateDomain(), tool_timeout_s=0.1)) as late, closing(LocalWorld(TOY)) as other:
        late.reset(slow_task())
        changes = late.changes
        assert error_code(late.step(CREATE)) == TOOL_TIMEOUT
        assert late.changes == changes + 1 and late.evaluate([NOTES]) == (True,)
        other.reset(slow_task())
        other.step(CREATE)
        assert late.snapshot() == other.snapshot(), "wholly done: rows, clock and counters"


def test_a_world_whose_database_cannot_be_taken_over_is_lost_until_the_next_start(
    slow: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_SAVE_S", 0.2)

    class StuckTools(SlowTools):
        @tool("read")
        def list_boxes(self) -> Row:  # type: ignore[override]
            """Wait inside SQLite, where no interrupt helps."""
            self.database._connection.create_function("wait", 0, WAKE.wait)
            return {"rows": self.database.query("SELECT wait() AS waited")}

    class StuckDomain(SlowDomain):
        toolset = StuckTools

    with closing(LocalWorld(StuckDomain(), tool_timeout_s=0.1)) as world:
        world.reset(slow_task())
        with pytest.raises(WorldError, match="keeps SQLite busy; the state of the world is lost"):
            world.step(ToolCall("list_boxes"))
        for use in (lambda: world.step(CREATE), world.snapshot, lambda: world.evaluate([NOTES])):
            with pytest.raises(WorldError, match="call reset"):
                use()
        world.reset(slow_task())
        assert not world.step(CREATE).is_error and world.evaluate([NOTES]) == (True,)


def test_the_limit_changes_no_reply_and_no_state() -> None:
    task = toy_task("file_note", seed=4)
    worlds = [LocalWorld(TOY, tool_timeout_s=limit) for limit in (None, 30.0)]
    runs = [run_expert(world, TOY, task) for world in worlds]
    assert runs[0] == runs[1] and worlds[0].snapshot() == worlds[1].snapshot()
    for world in worlds:
        assert error_code(world.step(ToolCall("update_note", {"note_id": "N99"}))) == "NOT_FOUND"
        world.close()
    with pytest.raises(ConfigError, match="tool_timeout_s is 0"):
        LocalWorld(TOY, tool_timeout_s=0)


def test_an_error_of_a_tool_keeps_its_type_and_place() -> None:
    class Broken(ToyTools):
        @tool("read")
        def list_boxes(self) -> Row:  # type: ignore[override]
            """Fail."""
            return {}["no such key"]

    class BrokenDomain(ToyDomain):
        toolset = Broken

    with closing(LocalWorld(BrokenDomain())) as world:
        world.reset(toy_task())
        with pytest.raises(KeyError, match="no such key") as caught:
            world.step(ToolCall("list_boxes"))
        assert caught.traceback[-1].name == "list_boxes"


def test_the_expert_reads_back_a_write_that_timed_out() -> None:
    waits, end = iter([True, False]), threading.Event()

    class Stuck(ToyTools):
        @tool("write")
        def create_note(self, box_id: str, title: str, text: str | None = None) -> Row:
            """Put a new note into a box; the first time without an answer."""
            if next(waits):
                end.wait()
            return super().create_note(box_id, title, text)

    class StuckDomain(ToyDomain):
        toolset = Stuck

    with closing(LocalWorld(StuckDomain(), tool_timeout_s=0.1)) as world:
        run = run_expert(world, TOY, toy_task("file_note", seed=4))
    end.set()
    codes = [(call.name, error_code(result)) for call, result in run.calls]
    assert codes == [
        ("list_boxes", None),
        ("create_note", TOOL_TIMEOUT),
        ("list_notes", None),
        ("create_note", None),
        ("update_note", None),
    ]
    assert run.success
