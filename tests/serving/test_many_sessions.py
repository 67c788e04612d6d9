"""Many MCP sessions in flight over one server: own worlds, no connection churn, nothing left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest

from robustops.records import ToolCall
from robustops.serving import wire
from robustops.serving.hosting import http_server
from robustops.serving.mcp_server import background_server, build_server
from robustops.serving.mcp_world import McpWorld
from robustops.worlds.domain import Domain
from robustops.worlds.environment import LocalWorld, World
from tests.toy_domain import TOY, toy_task

SESSIONS = 64


def calls_of(session: int) -> list[ToolCall]:
    """Writes that only this session makes, each followed by a look at everything."""
    calls = []
    for number in range(3):
        title = f"session {session} note {number}"
        calls += [ToolCall("create_note", {"box_id": "B1", "title": title}), ToolCall("list_notes")]
    return [*calls, ToolCall("update_note", {"note_id": "N1", "title": f"session {session}"})]


def work(world: World, session: int) -> list[str]:
    """Replies to a session's calls: after a reset, then after a restore of its middle, then of its end."""
    world.reset(toy_task(seed=session))
    calls = calls_of(session)
    replies = [world.step(call).text for call in calls[:4]]
    middle = world.snapshot()
    replies += [world.step(call).text for call in calls[4:]]
    end = world.snapshot()
    world.restore(middle)
    replies.append(world.step(ToolCall("list_notes")).text)
    world.restore(end)
    return [*replies, world.step(ToolCall("list_notes")).text]


def connections(port: int) -> set[int]:
    """Client ports of this process's open connections to a server's port."""
    found = psutil.Process().net_connections(kind="tcp")
    return {c.laddr.port for c in found if c.status == "ESTABLISHED" and c.raddr and c.raddr.port == port}


def eventually(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


class Served:
    """A toy server and as many sessions as are asked for, each used in a thread of its own."""

    def __init__(self, url: str, open_worlds: set[int], pool: ThreadPoolExecutor) -> None:
        self.port = int(urlsplit(url).port or 0)
        self.worlds = [McpWorld(domain=TOY, url=url) for _ in range(SESSIONS)]
        self.open_worlds = open_worlds
        self.pool = pool

    def work(self) -> list[list[str]]:
        """All sessions at once."""
        return list(self.pool.map(work, self.worlds, range(SESSIONS)))


@contextmanager
def served() -> Iterator[Served]:
    open_worlds: set[int] = set()

    class Counted(LocalWorld):
        def __init__(self, domain: Domain) -> None:
            super().__init__(domain)
            open_worlds.add(id(self))

        def close(self) -> None:
            super().close()
            open_worlds.discard(id(self))

    with ExitStack() as stack:
        url = stack.enter_context(background_server(TOY, admin=True, world_factory=Counted))
        pool = stack.enter_context(ThreadPoolExecutor(SESSIONS))
        made = Served(url, open_worlds, pool)
        for world in made.worlds:
            stack.enter_context(closing(world))
        yield made


@pytest.mark.slow
def test_sessions_in_flight_share_nothing_keep_their_connections_and_leave_none() -> None:
    """Two connections a session: one for its calls, one for the server's events."""
    expected = []
    for session in range(SESSIONS):
        with closing(LocalWorld(TOY)) as local:
            expected.append(work(local, session))
    threads = psutil.Process().num_threads()
    with served() as server:
        assert server.work() == expected
        assert eventually(lambda: len(connections(server.port)) == 2 * SESSIONS)
        opened = connections(server.port)
        assert server.work() == expected
        assert connections(server.port) == opened
        assert len(server.open_worlds) == SESSIONS
        list(server.pool.map(McpWorld.close, server.worlds))
        assert eventually(lambda: not server.open_worlds)
        assert eventually(lambda: not connections(server.port))
    assert eventually(lambda: psutil.Process().num_threads() <= threads + 1)


def test_an_idle_connection_is_closed_by_the_client_never_under_a_call() -> None:
    """A server that is less patient than its client closes the connection while a call is on its way."""
    server = http_server(build_server(TOY), "127.0.0.1")
    others = httpx2.Limits().keepalive_expiry
    assert others is not None
    assert server.config.timeout_keep_alive > max(wire.CLIENT_IDLE_S, others)


@pytest.mark.slow
def test_an_agent_may_think_between_two_calls_on_the_same_connection() -> None:
    """Longer than HTTP clients and servers keep an idle connection by themselves: 5 s."""
    with (
        background_server(TOY, admin=True) as url,
        closing(McpWorld(domain=TOY, url=url)) as world,
    ):
        world.reset(toy_task())
        port = int(urlsplit(url).port or 0)
        assert eventually(lambda: len(connections(port)) == 2)
        before = connections(port)
        time.sleep(5.5)
        world.step(ToolCall("list_notes"))
        assert connections(port) == before
