"""The client side of a served world: its errors, its refusals, the wire format."""

from __future__ import annotations

import socket
import sys
from contextlib import closing

import pytest

from robustops.errors import ConfigError, TaskError, TransportError, WorldError
from robustops.records import StateCheck, Task, ToolCall
from robustops.serving import wire
from robustops.serving.mcp_server import background_server
from robustops.serving.mcp_world import McpWorld
from robustops.worlds.database import Row
from robustops.worlds.environment import LocalWorld
from robustops.worlds.toolset import tool
from tests.toy_domain import TOY, ToyDomain, ToyTools, toy_task


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
