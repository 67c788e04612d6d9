"""A domain's tools as an MCP server, over stdio or streamable HTTP, with the official SDK.

Every MCP session has a world of its own, so the server speaks the protocol versions that have sessions
(the `initialize` handshake); a client that probes for a later, sessionless version is told so and falls
back by itself. Run it as `python -m robustops.serving.mcp_server --domain itsm`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from robustops import __version__
from robustops.errors import ConfigError, RobustOpsError, unknown_name
from robustops.records import Task, ToolCall, ToolResult
from robustops.serving import wire
from robustops.serving.hosting import MAX_BODY, http_server, in_background, listen, run_stdio, url_of
from robustops.worlds.domain import Domain, get_domain
from robustops.worlds.environment import LocalWorld, World
from robustops.worlds.probes import free_task
from robustops.worlds.toolset import reply_text

TRANSPORTS = ("stdio", "http")
#: Snapshots and whole tasks travel in requests; a real database is some megabytes.
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
        anyio.run(run_stdio, server)
        return
    listener = listen(host, port)
    url = url_of(host, listener)
    (on_ready or _announce)(url)
    http_server(server, host, max_body=MAX_ADMIN_BODY if admin else MAX_BODY).run(sockets=[listener])
    print(f"stopped serving {url}", file=sys.stderr, flush=True)


def background_server(
    domain: Domain | str, *, host: str = "127.0.0.1", port: int = 0, **options: Any
) -> AbstractContextManager[str]:
    """Serve over HTTP in a thread of this process; gives the URL. options: see `build_server`."""
    max_body = MAX_ADMIN_BODY if options.get("admin") else MAX_BODY
    return in_background(build_server(domain, **options), host, port, max_body=max_body)


def _announce(url: str) -> None:
    print(f"serving {url} (Ctrl-C stops)", file=sys.stderr, flush=True)


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
