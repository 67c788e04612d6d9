"""A world in this process: reset, step, snapshot, restore, evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from robustops.errors import WorldError
from robustops.records import StateCheck, ToolCall
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import run_expert
from tests.toy_domain import TOY, toy_task

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
