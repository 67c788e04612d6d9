"""A domain's tools as an MCP server, over stdio or streamable HTTP, with the official SDK.

Every MCP session has a world of its own, so the server speaks the protocol versions that have sessions
(the `initialize` handshake); a client that probes for a later, sessionless version is told so and falls
back by itself. Run it as `python -m robustops.serving.mcp_server --domain itsm`.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.server import Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from robustops import __version__
from robustops.errors import ConfigError, RobustOpsError, TransportError, unknown_name
from robustops.records import Task, ToolCall, ToolResult
from robustops.serving import wire
from robustops.worlds.domain import Domain, get_domain
from robustops.worlds.environment import LocalWorld, World
from robustops.worlds.probes import free_task
from robustops.worlds.toolset import reply_text

TRANSPORTS = ("stdio", "http")
PATH = "/mcp"
#: Snapshots and whole tasks travel in requests; a real database is some megabytes.
MAX_BODY = 1024 * 1024
MAX_ADMIN_BODY = 256 * 1024 * 1024
_WORLD = "robustops_world"

WorldFactory = Callable[[Domain], World]
Context = ServerRequestContext[Any, Any]


class ServedWorld:
    """One session's world: answers tool calls, and the reserved ones if `admin`."""

    def __init__(self, world: World, task: Task, *, admin: bool) -> None:
        self.world = world
        self.admin = admin
        world.reset(task)

    def tools(self) -> list[types.Tool]:
        """The tools the current task allows, then the reserved ones if `admin`."""
        offered = [
            types.Tool(
                name=spec.name,
                description=spec.description,
                input_schema=spec.input_schema,
                annotations=types.ToolAnnotations(read_only_hint=spec.kind == "read"),
            )
            for spec in self.world.specs().values()
        ]
        if self.admin:
            for name, (description, schema) in wire.RESERVED_TOOLS.items():
                offered.append(types.Tool(name=name, description=description, input_schema=schema))
        return offered

    def call(self, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        """Execute one call; a refusal is a result with `is_error`."""
        if self.admin and name in wire.RESERVED_TOOLS:
            result = self._reserved(name, arguments)
        else:
            result = self.world.step(ToolCall(name, arguments))
        changes = getattr(self.world, "changes", None)
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=result.text)],
            is_error=result.is_error,
            _meta={wire.CHANGES_KEY: changes} if self.admin and changes is not None else None,
        )

    def _reserved(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        try:
            return ToolResult(reply_text(self._drive(name, arguments)))
        except RobustOpsError as error:
            return wire.failure(error)

    def _drive(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name == wire.SNAPSHOT:
            return {"snapshot": wire.pack_snapshot(self.world.snapshot())}
        if name == wire.EVALUATE:
            return {"passed": list(self.world.evaluate(wire.unpack_checks(arguments.get("checks"))))}
        if name == wire.RESET:
            self.world.reset(wire.unpack_task(arguments.get("task")))
        else:
            self.world.restore(wire.unpack_snapshot(arguments.get("snapshot")))
        return {"tools": list(self.world.specs())}


def _session_world(context: Context, new: Callable[[], ServedWorld]) -> ServedWorld:
    """The world of this request's MCP session, made at its first use and closed with the session."""
    # The SDK keeps state and clean-up of a session on its Connection, but gives handlers no public way
    # to it; ServerSession is the one object that leads there.
    connection = context.session._connection
    served: ServedWorld | None = connection.state.get(_WORLD)
    if served is None:
        served = connection.state[_WORLD] = new()
        connection.exit_stack.callback(served.world.close)
    return served


async def _refuse_sessionless(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Refuse protocol versions without sessions, in the form that makes a client fall back."""
    if ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
        supported = list(HANDSHAKE_PROTOCOL_VERSIONS)
        raise MCPError(
            types.UNSUPPORTED_PROTOCOL_VERSION,
            f"a world needs a session; open one with initialize, at one of {', '.join(supported)}",
            {"supported": supported, "requested": ctx.protocol_version},
        )
    return await call_next(ctx)


def build_server(
    domain: Domain | str,
    *,
    task: Task | None = None,
    admin: bool = False,
    seed: int = 0,
    size: str = "small",
    world_factory: WorldFactory = LocalWorld,
) -> Server[Any]:
    """An MCP server of a domain, for any transport of the SDK that has sessions.

    task: its allowed tools, start database and acting user hold for every session; without one every
    tool is offered on the generated database of that seed and size. admin: adds the reserved tools of
    `robustops.serving.wire`, with which a harness can read and replace the whole state and open the
    database files that a task names: only for clients that are trusted. world_factory: makes a
    session's world, a fault-injecting one say. WorldError where the task is of another domain.
    """
    domain = get_domain(domain) if isinstance(domain, str) else domain
    start = task or free_task(domain, seed=seed, size=size)

    def new() -> ServedWorld:
        return ServedWorld(world_factory(domain), start, admin=admin)

    new().world.close()  # a task that does not fit fails here, not in the first session

    async def list_tools(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=_session_world(context, new).tools())

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        return _session_world(context, new).call(params.name, dict(params.arguments or {}))

    server: Server[Any] = Server(
        f"robustops-{domain.name}",
        version=__version__,
        instructions=start.policy or None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    server.middleware.append(_refuse_sessionless)
    return server


def serve(
    domain: Domain | str,
    *,
    transport: str = "stdio",
    host: str = "127.0.0.1",
    port: int = 8000,
    task: Task | None = None,
    admin: bool = False,
    seed: int = 0,
    size: str = "small",
    world_factory: WorldFactory = LocalWorld,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a domain until the client leaves (stdio) or Ctrl-C or SIGTERM comes; returns then.

    transport: stdio | http (streamable HTTP at `/mcp`); host: other than loopback opens the world to the
    network, without authentication; port: 0 takes a free one; on_ready: called with the URL once the
    port listens (default: one line on standard error). The rest: see `build_server`. ConfigError: unknown
    transport or domain, or an address that cannot be listened on.
    """
    if transport not in TRANSPORTS:
        raise unknown_name("transport", transport, TRANSPORTS)
    server = build_server(domain, task=task, admin=admin, seed=seed, size=size, world_factory=world_factory)
    if transport == "stdio":
        anyio.run(_serve_stdio, server)
        return
    listener = _listen(host, port)
    url = _url(host, listener)
    (on_ready or _announce)(url)
    _HttpServer(_http_config(server, host, admin)).run(sockets=[listener])
    print(f"stopped serving {url}", file=sys.stderr, flush=True)


@contextmanager
def background_server(
    domain: Domain | str, *, host: str = "127.0.0.1", port: int = 0, **options: Any
) -> Iterator[str]:
    """Serve over HTTP in a thread of this process; gives the URL. options: see `build_server`."""
    server = build_server(domain, **options)
    listener = _listen(host, port)
    http = _HttpServer(_http_config(server, host, bool(options.get("admin"))))
    thread = threading.Thread(target=http.run, kwargs={"sockets": [listener]}, name="mcp-server", daemon=True)
    thread.start()
    try:
        yield _url(host, listener)
    finally:
        http.should_exit = True
        thread.join(timeout=10)
        if thread.is_alive():
            raise TransportError("the MCP server did not stop within 10 s")


def _announce(url: str) -> None:
    print(f"serving {url} (Ctrl-C stops)", file=sys.stderr, flush=True)


def _url(host: str, listener: socket.socket) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}{PATH}"


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; ConfigError says why there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=128)
        # asyncio sets this only on sockets made with an explicit protocol number; without it every
        # reply waits 40 ms for a delayed acknowledgement. Accepted sockets inherit it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is in use; choose another, or port=0 for a free one"
            ) from error
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    except OverflowError as error:
        raise ConfigError(f"port {port} does not exist; choose one of 0-65535") from error


def _http_config(server: Server[Any], host: str, admin: bool) -> uvicorn.Config:
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        host=host,
        max_request_body_size=MAX_ADMIN_BODY if admin else MAX_BODY,
    )
    return uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)


class _HttpServer(uvicorn.Server):
    """uvicorn that returns after a signal, where the original raises the signal again."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def _serve_stdio(server: Server[Any]) -> None:
    async with _stop_on_signal(), stdio_server() as (read, write), server.lifespan(server) as state:
        await serve_loop(server, read, write, lifespan_state=state)


@asynccontextmanager
async def _stop_on_signal() -> AsyncIterator[None]:
    """End the process at SIGINT or SIGTERM.

    The SDK reads standard input in a thread that nothing can interrupt, so an orderly return would wait
    for another line; worlds are in memory, so there is nothing to lose.
    """

    async def watch() -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                os._exit(0)

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        yield
        group.cancel_scope.cancel()


def main(arguments: list[str] | None = None) -> int:
    """`python -m robustops.serving.mcp_server`: exit status 0 done, 2 the request was wrong."""
    parser = argparse.ArgumentParser(prog="python -m robustops.serving.mcp_server", description=__doc__)
    parser.add_argument("--domain", required=True)
    parser.add_argument("--detail", default="brief", help="level of the replies: brief or full")
    parser.add_argument("--database", help="start database: a JSON or SQLite file (default: generated)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated database")
    parser.add_argument("--size", default="small", help="size of the generated database")
    parser.add_argument("--task", type=Path, help="JSON file with one task that every session starts in")
    parser.add_argument("--transport", default="stdio", help="stdio or http")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--admin", action="store_true", help="add the reserved tools for a harness")
    given = parser.parse_args(arguments)
    try:
        serve(
            get_domain(given.domain, given.detail, given.database),
            transport=given.transport,
            host=given.host,
            port=given.port,
            task=_read_task(given.task) if given.task else None,
            admin=given.admin,
            seed=given.seed,
            size=given.size,
        )
    except RobustOpsError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def _read_task(path: Path) -> Task:
    try:
        return wire.unpack_task(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the task file {path}: {error}") from error


if __name__ == "__main__":
    raise SystemExit(main())
