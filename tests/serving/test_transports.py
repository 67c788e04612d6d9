"""One contract over three transports: in process, stdio subprocess, streamable HTTP."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from robustops.errors import ConfigError, TaskError, TransportError, WorldError
from robustops.records import DatabaseSpec, StateCheck, Task, ToolCall, ToolResult
from robustops.serving import wire
from robustops.serving.mcp_server import background_server, build_server, serve
from robustops.serving.mcp_world import McpWorld
from robustops.worlds.check_world import check_world
from robustops.worlds.database import Row
from robustops.worlds.domain import Domain, domain_names, get_domain
from robustops.worlds.environment import LocalWorld, World
from robustops.worlds.probes import draw_task
from robustops.worlds.toolset import tool
from tests.toy_domain import TOY, ToyDomain, ToyTools, toy_task

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


# the server by itself ---------------------------------------------------------------------------
def test_changes_move_with_writes_only() -> None:
    with background_server(TOY, admin=True) as url, closing(McpWorld(domain=TOY, url=url)) as world:
        world.reset(toy_task())
        before = world.changes
        world.step(ToolCall("list_notes"))
        world.step(ToolCall("update_note", {"note_id": "N99", "title": "no"}))
        assert world.changes == before
        world.step(ToolCall("update_note", {"note_id": "N1", "title": "yes"}))
        assert world.changes > before


def client_view(url: str, mode: str) -> tuple[str, dict[str, dict[str, object]], str, str]:
    """Version, tools, the reply to one call, and the reply to a reserved one, for a plain MCP client."""

    async def look() -> tuple[str, dict[str, dict[str, object]], str, str]:
        async with Client(url, mode=mode) as client:
            listed = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
            reply = await client.call_tool("list_notes", {})
            reserved = await client.call_tool("_reset", {"task": toy_task().to_dict()})
            texts = [part.text for part in (*reply.content, *reserved.content)]
            return client.protocol_version, listed, texts[0], texts[1]

    return anyio.run(look)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_plain_client_sees_the_tools_and_no_reserved_ones(mode: str) -> None:
    with background_server(TOY, seed=5) as url:
        version, listed, reply, reserved = client_view(url, mode)
    assert version == "2025-11-25"
    assert listed == {name: spec.input_schema for name, spec in TOY.toolset.specs().items()}
    assert '"total_count":12' in reply
    assert '"code":"UNKNOWN_TOOL"' in reserved


def test_a_sessionless_client_is_told_what_to_do() -> None:
    with background_server(TOY) as url, pytest.raises(BaseExceptionGroup) as caught:
        client_view(url, "2026-07-28")
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, MCPError)
    assert "needs a session" in error.message and "2025-11-25" in error.data["supported"]


def test_a_task_restricts_the_tools_of_every_session() -> None:
    task = Task.from_dict({**toy_task().to_dict(), "tools": ["list_notes"]})
    with background_server(TOY, task=task) as url:
        _, listed, reply, _ = client_view(url, "auto")
    assert list(listed) == ["list_notes"]
    with closing(LocalWorld(TOY)) as world:
        world.reset(task)
        assert world.step(ToolCall("list_notes")).text == reply


def test_a_task_of_another_domain_is_refused() -> None:
    task = Task.from_dict({**toy_task().to_dict(), "domain": "elsewhere"})
    with pytest.raises(WorldError, match="elsewhere"):
        build_server(TOY, task=task)


def test_a_port_in_use_and_an_unknown_transport_are_config_errors() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} on 127\.0\.0\.1 is in use"):
            serve(TOY, transport="http", port=port)
    with pytest.raises(ConfigError, match=r"unknown transport 'smoke'.*http, stdio"):
        serve(TOY, transport="smoke")
    with pytest.raises(ConfigError, match="port 70000"):
        serve(TOY, transport="http", port=70000)
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.1"):
        serve(TOY, transport="http", host="203.0.113.1", port=0)


HTTP_SCRIPT = (
    "from tests.toy_domain import TOY\n"
    "from robustops.serving.mcp_server import serve\n"
    "serve(TOY, transport='http', port=0, admin=True)\n"
    "print('returned')"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_http_stops_gracefully_on_a_signal_with_a_session_open(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HTTP_SCRIPT],
        env={**os.environ, **ENV},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    url = process.stderr.readline().split()[1]
    assert url.startswith("http://127.0.0.1:")
    world = McpWorld(domain=TOY, url=url, timeout=10)
    world.reset(toy_task())
    process.send_signal(number)
    out, err = process.communicate(timeout=15)
    assert process.returncode == 0, err
    assert out == "returned\n"
    assert "stopped" in err and "Traceback" not in err
    with pytest.raises(TransportError):
        world.step(ToolCall("list_notes"))
    world.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stdio_stops_on_a_signal_and_at_the_end_of_input(number: signal.Signals) -> None:
    command, env = [sys.executable, "-c", TOY_COMMAND], {**os.environ, **ENV}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    hello = (
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
        b'"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}\n'
    )
    with subprocess.Popen(command, env=env, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(hello)
        process.stdin.flush()
        assert b"robustops-toy" in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(timeout=10) == 0
    done = subprocess.run(command, env=env, input=hello, capture_output=True, timeout=30, check=True)
    assert b"Traceback" not in done.stderr


# the client by itself ---------------------------------------------------------------------------
def test_failures_of_the_served_world_are_those_of_a_local_one() -> None:
    broken = StateCheck("broken", "SELECT nothing FROM nowhere", 1)
    writing = StateCheck("writing", "DELETE FROM note", 1)
    odd = StateCheck("odd", "SELECT 1", 1, comparison="resembles")
    stranger = Task.from_dict({**toy_task().to_dict(), "domain": "elsewhere"})
    with background_server(TOY, admin=True) as url, closing(McpWorld(domain=TOY, url=url)) as remote:
        for world in (remote, LocalWorld(TOY)):
            with pytest.raises(WorldError, match="no task yet"):
                world.step(ToolCall("list_notes"))
            world.reset(toy_task())
            before = world.snapshot()
            with pytest.raises(WorldError, match="nowhere"):
                world.evaluate([broken])
            with pytest.raises(WorldError, match="not authorized"):
                world.evaluate([writing])
            with pytest.raises(TaskError, match="resembles"):
                world.evaluate([odd])
            with pytest.raises(WorldError, match="elsewhere"):
                world.reset(stranger)
            assert world.snapshot() == before


def test_misuse_of_the_client_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"url=.*command="):
        McpWorld(domain=TOY)
    with pytest.raises(ConfigError, match=r"url=.*command="):
        McpWorld(domain=TOY, url="http://127.0.0.1:1/mcp", command=["true"])
    with background_server(TOY) as url, closing(McpWorld(domain=TOY, url=url)) as world:
        with pytest.raises(TransportError, match="admin=True"):
            world.reset(toy_task())
        with pytest.raises(TransportError, match="reserved"):
            world.step(ToolCall(wire.EVALUATE, {"checks": []}))


def test_an_unreachable_server_is_a_transport_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world = McpWorld(domain=TOY, url=f"http://127.0.0.1:{port}/mcp", timeout=10)
    with pytest.raises(TransportError, match=str(port)):
        world.reset(toy_task())
    world.close()
    world = McpWorld(domain=TOY, command=["/no/such/program"])
    with pytest.raises(TransportError, match="/no/such/program"):
        world.reset(toy_task())


def test_a_dying_server_process_is_quoted() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('the disk is on fire')"]
    world = McpWorld(domain=TOY, command=command, timeout=20)
    with pytest.raises(TransportError, match="the disk is on fire"):
        world.reset(toy_task())


def test_a_silent_server_is_a_timeout() -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    world = McpWorld(domain=TOY, command=command, timeout=0.5)
    with pytest.raises(TransportError, match=r"no answer within 0\.5 s"):
        world.reset(toy_task())


class ChangedTools(ToyTools):
    """Toy tools, one of them with other arguments."""

    @tool("write")
    def update_note(self, note_id: str) -> Row:  # type: ignore[override]
        """Touch a note."""
        return self.get_note(note_id)


class ChangedDomain(ToyDomain):
    toolset = ChangedTools


def test_another_version_of_the_domain_behind_the_url_is_refused() -> None:
    with (
        background_server(ChangedDomain(), admin=True) as url,
        closing(McpWorld(domain=TOY, url=url)) as world,
        pytest.raises(TransportError, match="not those of domain 'toy': update_note"),
    ):
        world.reset(toy_task())


def test_packed_snapshots_come_back_unchanged_and_odd_ones_are_refused() -> None:
    with closing(LocalWorld(TOY)) as world:
        world.reset(toy_task())
        world.step(ToolCall("create_note", {"box_id": "B1", "title": "ö"}))
        snapshot = world.snapshot()
    packed = wire.pack_snapshot(snapshot)
    assert wire.unpack_snapshot(packed) == snapshot
    assert packed["seconds"] == 1 and packed["counters"] == {}
    for key, value in (("image", "no base64!"), ("image", "AAAA"), ("seconds", "x"), ("task", 3)):
        with pytest.raises(TaskError, match="documented form"):
            wire.unpack_snapshot({**packed, key: value})
