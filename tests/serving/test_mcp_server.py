"""The MCP server: what a client is offered, sessions, ports, signals, the command line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from robustops.errors import ConfigError, TransportError, WorldError
from robustops.records import Task, ToolCall
from robustops.serving.mcp_server import background_server, build_server, main, serve
from robustops.serving.mcp_world import McpWorld
from robustops.worlds.environment import LocalWorld
from tests.toy_domain import TOY, toy_task

ROOT = Path(__file__).resolve().parents[2]
ENV = {"PYTHONPATH": str(ROOT)}
TOY_COMMAND = (
    "from tests.toy_domain import TOY\nfrom robustops.serving.mcp_server import serve\nserve(TOY, admin=True)"
)


def test_changes_move_with_writes_only() -> None:
    with background_server(TOY, admin=True) as url, closing(McpWorld(domain=TOY, url=url)) as world:
        world.reset(toy_task())
        before = world.changes
        world.step(ToolCall("list_notes"))
        world.step(ToolCall("update_note", {"note_id": "N99", "title": "no"}))
        assert world.changes == before
        world.step(ToolCall("update_note", {"note_id": "N1", "title": "yes"}))
        assert world.changes > before


def test_a_session_s_world_is_closed_with_the_session() -> None:
    live: set[int] = set()

    class Tracked(LocalWorld):
        def reset(self, task: Task) -> None:
            super().reset(task)
            live.add(id(self))

        def close(self) -> None:
            super().close()
            live.discard(id(self))

    with background_server(TOY, admin=True, world_factory=Tracked) as url:
        assert not live
        with closing(McpWorld(domain=TOY, url=url)) as one, closing(McpWorld(domain=TOY, url=url)) as other:
            one.reset(toy_task())
            other.reset(toy_task())
            assert len(live) == 2
        deadline = time.monotonic() + 10
        while live and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not live


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


def test_the_command_line_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = tmp_path / "task.json"
    task.write_text("{not json")
    wrong = [
        (["--domain", "nowhere"], "unknown domain 'nowhere'"),
        (["--domain", "itsm", "--transport", "smoke"], "unknown transport 'smoke'"),
        (["--domain", "itsm", "--detail", "vague"], "unknown domain.detail 'vague'"),
        (["--domain", "itsm", "--task", str(task)], "cannot read the task file"),
    ]
    for arguments, words in wrong:
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert words in err and len(err.splitlines()) == 1 and not out
    task.write_text("[1]")
    assert main(["--domain", "itsm", "--task", str(task)]) == 1
    assert "the task does not have the documented form" in capsys.readouterr().err


def test_serving_loads_no_trainer() -> None:
    code = (
        "import sys, robustops.serving.mcp_server, robustops.serving.mcp_world\n"
        "print(sorted({'torch', 'lightning', 'transformers', 'hydra'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n"
