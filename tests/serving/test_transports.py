"""One contract over three transports: in process, stdio subprocess, streamable HTTP."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from robustops.records import DatabaseSpec, Task, ToolCall, ToolResult
from robustops.serving.mcp_server import background_server
from robustops.serving.mcp_world import McpWorld
from robustops.worlds.check_world import check_world
from robustops.worlds.domain import Domain, domain_names, get_domain
from robustops.worlds.environment import LocalWorld, World
from robustops.worlds.probes import draw_task
from tests.toy_domain import TOY

ROOT = Path(__file__).resolve().parents[2]
ENV = {"PYTHONPATH": str(ROOT)}
TOY_COMMAND = (
    "from tests.toy_domain import TOY\nfrom robustops.serving.mcp_server import serve\nserve(TOY, admin=True)"
)
KINDS = ("stdio", "http")
DOMAINS = ["toy", *domain_names()]


def domain_of(name: str) -> Domain:
    return TOY if name == "toy" else get_domain(name)


def stdio_command(name: str) -> list[str]:
    if name == "toy":
        return [sys.executable, "-c", TOY_COMMAND]
    return [sys.executable, "-m", "robustops.serving.mcp_server", "--domain", name, "--admin"]


@dataclass(frozen=True)
class Served:
    """A served domain: one session that the tests share (each resets it), and more where one asks."""

    domain: Domain
    world: World
    open: Callable[[], World]


@pytest.fixture(scope="module", params=[(kind, name) for kind in KINDS for name in DOMAINS], ids="-".join)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    kind, name = request.param
    domain = domain_of(name)
    with ExitStack() as stack:
        if kind == "http":
            url = stack.enter_context(background_server(domain, admin=True))

            def connect() -> World:
                return McpWorld(domain=domain, url=url)
        else:

            def connect() -> World:
                return McpWorld(domain=domain, command=stdio_command(name), env=ENV)

        yield Served(domain, stack.enter_context(closing(connect())), connect)


def tasks_of(domain: Domain) -> list[Task]:
    """One task a template."""
    drawn = (draw_task(domain, template, DatabaseSpec(seed=3)) for template in domain.templates)
    return [task for task in drawn if task is not None]


def expert_run(world: World, domain: Domain, task: Task) -> list[tuple[ToolCall, ToolResult]]:
    script = domain.templates[task.template].expert(task.plan)
    done: list[tuple[ToolCall, ToolResult]] = []
    try:
        call = next(script)
        while True:
            result = world.step(call)
            done.append((call, result))
            call = script.send(result)
    except StopIteration:
        return done


def error_calls(task: Task) -> list[ToolCall]:
    unknown = [ToolCall("no_such_tool"), ToolCall("no_such_tool", {"x": 1})]
    wrong = [ToolCall(name, {"ungültig": [1, {"a": None}]}) for name in task.allowed_tools]
    return unknown + wrong + [ToolCall(name) for name in task.allowed_tools]


def test_replies_checks_and_states_are_identical(served: Served) -> None:
    remote = served.world
    with closing(LocalWorld(served.domain)) as local:
        for task in tasks_of(served.domain):
            for world in (remote, local):
                world.reset(task)
            assert remote.specs() == local.specs()
            assert remote.evaluate(task.checks) == local.evaluate(task.checks)
            replies = expert_run(remote, served.domain, task)
            assert replies == expert_run(local, served.domain, task)
            assert remote.evaluate(task.checks) == local.evaluate(task.checks) == (True,) * len(task.checks)
            assert remote.snapshot() == local.snapshot()


def test_refusals_are_identical(served: Served) -> None:
    task = tasks_of(served.domain)[0]
    remote = served.world
    with closing(LocalWorld(served.domain)) as local:
        for world in (remote, local):
            world.reset(task)
        calls = error_calls(task)
        theirs, ours = [remote.step(call) for call in calls], [local.step(call) for call in calls]
        assert theirs == ours
        assert sum(result.is_error for result in theirs) >= 2 + len(task.allowed_tools)
        assert remote.snapshot() == local.snapshot()


def test_a_snapshot_moves_between_transports(served: Served) -> None:
    task = tasks_of(served.domain)[0]
    remote = served.world
    with closing(LocalWorld(served.domain)) as local:
        remote.reset(task)
        start = remote.snapshot()
        first = expert_run(remote, served.domain, task)
        end = remote.snapshot()
        local.restore(end)
        assert local.evaluate(task.checks) == remote.evaluate(task.checks)
        for world in (remote, local):
            world.restore(start)
            assert world.snapshot() == start
            assert expert_run(world, served.domain, task) == first
            assert world.snapshot() == end


def test_two_sessions_are_isolated(served: Served) -> None:
    task = tasks_of(served.domain)[0]
    one = served.world
    with closing(served.open()) as other:
        one.reset(task)
        other.reset(task)
        start = other.snapshot()
        expert_run(one, served.domain, task)
        assert one.snapshot() != start
        assert other.snapshot() == start


def test_the_world_contract_holds_over_the_transport() -> None:
    with background_server(TOY, admin=True) as url:
        check_world(TOY, seeds=(0,), world_factory=lambda domain: McpWorld(domain=domain, url=url))
