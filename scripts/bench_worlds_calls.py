"""The tool calls of bench_worlds.py: recorded once, then made in process, over MCP, and by the peers."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from time import perf_counter, process_time
from typing import Any

import mcp_types as types
from anyio.from_thread import start_blocking_portal
from bench_common import Spread, ratios, spread
from mcp import Client
from mcp.server import Server

from robustops.records import DatabaseSpec, Task, ToolCall
from robustops.serving.hosting import http_server, listen, url_of
from robustops.serving.mcp_world import McpWorld
from robustops.worlds.domain import Domain
from robustops.worlds.environment import LocalWorld, World
from robustops.worlds.probes import draw_task
from robustops.worlds.scripted import run_expert

HOST = "127.0.0.1"
Rate = Callable[[], float]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Figure:
    """Rates (a second) of ours and of the peer, measured in pairs."""

    pairs: Sequence[tuple[float, float]]

    @property
    def ours(self) -> Spread:
        return spread([one for one, _ in self.pairs])

    @property
    def peer(self) -> Spread:
        return spread([other for _, other in self.pairs])

    @property
    def ratio(self) -> Spread:
        return ratios(self.pairs)


def measure(ours: Rate, peer: Rate, pairs: int) -> Figure:
    """Both in turns, whoever begins alternating, after one unmeasured round of each."""
    ours(), peer()
    found = []
    for number in range(pairs):
        if number % 2:
            second = peer()
            found.append((ours(), second))
        else:
            found.append((ours(), peer()))
    return Figure(found)


@dataclass(frozen=True)
class Route:
    """An expert's way through a task: start image, calls with their replies, the SQL statements beneath.

    statements: name of the connection's method, SQL, parameters.
    """

    task: Task
    image: bytes
    calls: tuple[ToolCall, ...]
    replies: tuple[str, ...]
    statements: tuple[tuple[str, str, Any], ...]


def count(routes: Sequence[Route]) -> int:
    """Calls of all routes."""
    return sum(len(route.calls) for route in routes)


class _Recorder:
    """Stands in front of a connection and notes what is executed on it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.statements: list[tuple[str, str, Any]] = []

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        self.statements.append(("execute", sql, tuple(parameters)))
        return self.connection.execute(sql, parameters)

    def executemany(self, sql: str, rows: Sequence[Any]) -> sqlite3.Cursor:
        self.statements.append(("executemany", sql, rows))
        return self.connection.executemany(sql, rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


def record(domain: Domain, incidents: int, seeds: Sequence[int]) -> list[Route]:
    """What the experts do on a task a template and seed, on worlds of so many incidents."""
    specs = [DatabaseSpec(seed=seed, size=str(incidents)) for seed in seeds]
    drawn = [draw_task(domain, template, spec) for spec in specs for template in domain.templates]
    with closing(LocalWorld(domain)) as world:
        return [_record(world, domain, task) for task in drawn if task is not None]


def _record(world: LocalWorld, domain: Domain, task: Task) -> Route:
    """One route; refuses an expert that failed, and a peer whose end state would not be ours."""
    run = run_expert(world, domain, task)
    calls = tuple(call for call, _ in run.calls)
    world.reset(task)
    image = world.snapshot().database.image
    database = world.tools.database
    recorder = _Recorder(database._connection)
    database._connection = recorder  # type: ignore[assignment]
    replies = tuple(world.step(call).text for call in calls)
    database._connection = recorder.connection
    route = Route(task, image, calls, replies, tuple(recorder.statements))
    with closing(_bare()) as bare:
        _replay(bare, route)
        if not run.success or bare.serialize() != world.snapshot().database.image:
            raise SystemExit(f"{task.id}: the expert failed, or the peer's end state is not ours")
    return route


# in process ---------------------------------------------------------------------------------------
def inprocess(domain: Domain, routes: Sequence[Route], pairs: int, clock: Clock = process_time) -> Figure:
    """`LocalWorld.step` against the same SQL statements on a bare connection."""
    with closing(LocalWorld(domain)) as world, closing(_bare()) as bare:

        def peer() -> float:
            return count(routes) / sum(_replay(bare, route, clock) for route in routes)

        return measure(partial(_world_rate, world, routes, clock), peer, pairs)


def _bare() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


def _replay(connection: sqlite3.Connection, route: Route, clock: Clock = process_time) -> float:
    """Seconds that the statements of a route take, rows fetched."""
    connection.deserialize(route.image)
    methods = {"execute": connection.execute, "executemany": connection.executemany}
    start = clock()
    for method, sql, parameters in route.statements:
        methods[method](sql, parameters).fetchall()
    return clock() - start


def _world_rate(world: World, routes: Sequence[Route], clock: Clock) -> float:
    """Calls a second by that clock; resets are not counted."""
    seconds = 0.0
    for route in routes:
        world.reset(route.task)
        seconds += _follow(world, route, clock)
    return count(routes) / seconds


def _follow(world: World, route: Route, clock: Clock = perf_counter) -> float:
    """Seconds that the calls of a route take; a reply that is not the recorded one is no figure."""
    start = clock()
    replies = tuple([world.step(call).text for call in route.calls])
    seconds = clock() - start
    if replies != route.replies:
        raise SystemExit(f"{route.task.id}: the replies are not the recorded ones")
    return seconds


# over MCP -----------------------------------------------------------------------------------------
def mcp_http(domain: Domain, url: str, routes: Sequence[Route], pairs: int) -> Figure:
    """`McpWorld.step`, one session and one call at a time, against a server that echoes the replies."""
    texts = [text for route in routes for text in route.replies]

    async def echo_rate() -> float:
        start = perf_counter()
        for text in texts:
            await client.call_tool("echo", {"text": text})
        return len(texts) / (perf_counter() - start)

    with ExitStack() as stack:
        world = stack.enter_context(closing(McpWorld(domain=domain, url=url)))
        echo = stack.enter_context(_process(__file__))
        portal = stack.enter_context(start_blocking_portal())
        session = Client(echo, mode="legacy", cache=None)
        client = stack.enter_context(portal.wrap_async_context_manager(session))
        ours = partial(_world_rate, world, routes, perf_counter)
        return measure(ours, partial(portal.call, echo_rate), pairs)


def mcp_in_flight(domain: Domain, url: str, routes: Sequence[Route], sessions: int, rounds: int) -> float:
    """Calls a second of so many sessions at once, each in a thread; best of the rounds."""
    rates = []
    with ExitStack() as stack:
        worlds = [stack.enter_context(closing(McpWorld(domain=domain, url=url))) for _ in range(sessions)]
        pool = stack.enter_context(ThreadPoolExecutor(sessions))
        for _ in range(rounds):
            around, seconds, calls = cycle(routes), 0.0, 0
            for _ in range(0, len(routes), sessions):
                part = list(islice(around, sessions))
                list(pool.map(lambda world, route: world.reset(route.task), worlds, part))
                start = perf_counter()
                list(pool.map(_follow, worlds, part))
                seconds += perf_counter() - start
                calls += count(part)
            rates.append(calls / seconds)
    return max(rates)


def world_server(domain: Domain) -> AbstractContextManager[str]:
    """The domain served over HTTP by a process of its own; gives the URL."""
    serving = ("--domain", domain.name, "--transport", "http", "--port", "0", "--admin")
    return _process("-m", "robustops.serving.mcp_server", *serving)


@contextmanager
def _process(*arguments: str) -> Iterator[str]:
    """A server in a process of its own, stopped at the end; gives its URL."""
    process = subprocess.Popen([sys.executable, *arguments], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        if not line.startswith("serving http"):
            raise SystemExit(f"the server did not start: {line}{process.stderr.read()}")
        yield line.split()[1]
    finally:
        process.terminate()
        process.communicate(timeout=10)


def serve_echo() -> None:
    """Serve one tool that echoes, hosted as the worlds are; the URL goes to standard error."""

    async def list_tools(_: Any, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema=schema)])

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        text = str((params.arguments or {})["text"])
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    server: Server[Any] = Server("echo", on_list_tools=list_tools, on_call_tool=call_tool)
    listener = listen(HOST, 0)
    print(f"serving {url_of(HOST, listener)}", file=sys.stderr, flush=True)
    http_server(server, HOST).run(sockets=[listener])


if __name__ == "__main__":
    serve_echo()
