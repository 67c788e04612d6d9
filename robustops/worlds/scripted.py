"""Drives the scripted expert of a task: over a world, or one call at a time from a given history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from robustops.errors import TaskError, unknown_name
from robustops.records import Task, ToolCall, ToolResult
from robustops.worlds.domain import Domain, ExpertScript
from robustops.worlds.environment import World

History = Sequence[tuple[ToolCall, ToolResult]]


@dataclass(frozen=True)
class ExpertRun:
    """What the expert did: its calls with their replies, its final answer, one bool a state check."""

    calls: tuple[tuple[ToolCall, ToolResult], ...]
    answer: str
    checks: tuple[bool, ...]

    @property
    def success(self) -> bool:
        return bool(self.checks) and all(self.checks)


def expert_of(domain: Domain, task: Task) -> ExpertScript:
    """The expert's script for a task, not yet started."""
    if task.template not in domain.templates:
        raise unknown_name(f"{domain.name} template", task.template, domain.templates)
    return domain.templates[task.template].expert(task.plan)


def run_expert(world: World, domain: Domain, task: Task, max_calls: int = 40) -> ExpertRun:
    """Reset the world to the task and let the expert work on it.

    Raises TaskError if it meets a reply that it has no answer to, or needs more than `max_calls` calls.
    """
    world.reset(task)
    script = expert_of(domain, task)
    calls: list[tuple[ToolCall, ToolResult]] = []
    try:
        call = next(script)
        while True:
            if len(calls) == max_calls:
                raise TaskError(f"the expert of {task.case_id} did not end within {max_calls} calls")
            result = world.step(call)
            calls.append((call, result))
            call = script.send(result)
    except StopIteration as stop:
        return ExpertRun(tuple(calls), str(stop.value), world.evaluate(task.checks))
    finally:
        script.close()


def next_call(domain: Domain, task: Task, history: History) -> ToolCall | str:
    """What the expert does after these calls: its next call, or its final answer.

    Keeps no state: the script is replayed, and each call it makes is answered by the next equal call of
    the history. Calls of the history that the expert would not make (another policy made them) are passed
    over. Raises TaskError where the expert has no answer to a reply.
    """
    script = expert_of(domain, task)
    place = 0
    try:
        call = next(script)
        while True:
            key = call.key()
            found = next((i for i in range(place, len(history)) if history[i][0].key() == key), None)
            if found is None:
                return call
            place = found + 1
            call = script.send(history[found][1])
    except StopIteration as stop:
        return str(stop.value)
    finally:
        script.close()
