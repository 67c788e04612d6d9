from __future__ import annotations

from dataclasses import replace

import pytest

from robustops.errors import ConfigError, TaskError
from robustops.records import ToolCall
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import next_call, run_expert
from tests.toy_domain import TOY, toy_task, toy_tasks


@pytest.fixture
def world():
    world = LocalWorld(TOY)
    yield world
    world.close()


@pytest.mark.parametrize("task", toy_tasks(6), ids=lambda task: task.case_id)
def test_expert_passes_and_the_start_state_does_not(world, task):
    world.reset(task)
    assert not all(world.evaluate(task.checks))
    run = run_expert(world, TOY, task)
    assert run.success and run.checks == (True,) * len(task.checks)
    assert 3 <= len(run.calls) <= 9
    assert task.plan["title"] in run.answer


@pytest.mark.parametrize("task", toy_tasks(2), ids=lambda task: task.case_id)
def test_next_call_is_the_run_one_call_at_a_time(world, task):
    run = run_expert(world, TOY, task)
    for length in range(len(run.calls)):
        expected = run.calls[length][0]
        assert next_call(TOY, task, run.calls[:length]) == expected
        assert next_call(TOY, task, run.calls[:length]) == expected, "no state between questions"
    assert next_call(TOY, task, run.calls) == run.answer


def test_next_call_passes_over_calls_of_another_policy(world):
    task = toy_task("close_note")
    run = run_expert(world, TOY, task)
    foreign = (ToolCall("list_notes", {"limit": 1}), world.step(ToolCall("list_notes", {"limit": 1})))
    history = [foreign, *run.calls[:2], foreign]
    assert next_call(TOY, task, history) == run.calls[2][0]


def test_expert_that_does_not_end_is_refused(world):
    with pytest.raises(TaskError, match="within 2 calls"):
        run_expert(world, TOY, toy_task(), max_calls=2)


def test_unknown_template_names_the_known_ones(world):
    with pytest.raises(ConfigError, match="close_note, file_note"):
        next_call(TOY, replace(toy_task(), template="nope"), [])
