"""A world behind MCP, driven through the same contract as a world in this process.

The server must offer the reserved tools of `robustops.serving.wire` (`admin=True`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import anyio
import httpx2
import mcp_types as types
from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from robustops.errors import ConfigError, TransportError, WorldError
from robustops.records import StateCheck, Task, ToolCall, ToolResult
from robustops.serving import wire
from robustops.worlds.domain import Domain, get_domain
from robustops.worlds.environment import Snapshot
from robustops.worlds.time_limit import TOOL_TIMEOUT_S, check_limit, timeout_receipt
from robustops.worlds.toolset import ToolSpec

Result = TypeVar("Result")


class McpWorld:
    """One session with a served world of `domain` (name or object, with the server's level of detail).

    url: a streamable HTTP endpoint such as `http://127.0.0.1:8000/mcp`; or command: program and
    arguments of a stdio server, started for this world alone; env: variables added to this process's
    for it. timeout: seconds allowed for an answer to the harness; tool_timeout_s: for the answer to an
    agent's call, None for no limit. An agent's call without an answer gets a receipt with the code
    TOOL_TIMEOUT; it may still be executed, an answer that comes later is dropped, and no call is ever
    sent twice. The session opens at the first use and lives in a background thread until `close()`; one
    that failed, or owes an answer, is replaced at the next reset or restore. TransportError: not
    reachable, late, lost, or outside the protocol; errors of the served world itself come back as the
    errors that a local world raises.
    """

    def __init__(
        self,
        *,
        domain: Domain | str,
        url: str | None = None,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        tool_timeout_s: float | None = TOOL_TIMEOUT_S,
    ) -> None:
        if (url is None) == (not command):
            raise ConfigError("a world behind MCP needs either url=http://... or command=[program, ...]")
        self.domain = get_domain(domain) if isinstance(domain, str) else domain
        self._target: str | StdioServerParameters
        if command:
            self._target = StdioServerParameters(
                command=command[0], args=list(command[1:]), env={**os.environ, **(env or {})}
            )
        else:
            self._target = str(url)
        self._timeout = timeout
        self.tool_timeout_s = check_limit(tool_timeout_s)
        self._link: _Link | None = None
        self._stale = False
        self._task: Task | None = None
        self._verified: set[str] = set()
        self._changes = 0

    @property
    def task(self) -> Task:
        if self._task is None:
            raise WorldError("the world has no task yet; call reset(task) before step or snapshot")
        return self._task

    def reset(self, task: Task) -> None:
        self._renew()
        self._drive(wire.RESET, {"task": task.to_dict()})
        self._task = task
        self._verify()

    def step(self, call: ToolCall) -> ToolResult:
        if call.name in wire.RESERVED_TOOLS:
            raise TransportError(f"'{call.name}' is reserved for the harness; no agent may call it")
        _ = self.task
        try:
            return self._call(call.name, call.arguments, self.tool_timeout_s)
        except _NoAnswer as late:
            return timeout_receipt(self.domain.toolset.specs().get(call.name), late.seconds)

    def snapshot(self) -> Snapshot:
        _ = self.task
        return wire.unpack_snapshot(self._drive(wire.SNAPSHOT, {}).get("snapshot"))

    def restore(self, snapshot: Snapshot) -> None:
        self._renew()
        self._drive(wire.RESTORE, {"snapshot": wire.pack_snapshot(snapshot)})
        self._task = snapshot.task
        self._verify()

    def evaluate(self, checks: Sequence[StateCheck]) -> tuple[bool, ...]:
        _ = self.task
        passed = self._drive(wire.EVALUATE, {"checks": [check.to_dict() for check in checks]}).get("passed")
        if not isinstance(passed, list) or len(passed) != len(checks):
            raise TransportError(f"{wire.EVALUATE} answered {passed!r} to {len(checks)} checks")
        return tuple(bool(value) for value in passed)

    def specs(self) -> dict[str, ToolSpec]:
        known = self.domain.toolset.specs()
        return {name: known[name] for name in self.task.allowed_tools}

    @property
    def changes(self) -> int:
        """A number that moves if and only if the database is written to; as of the latest reply."""
        return self._changes

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = self._task = None
        self._stale = False
        self._verified.clear()

    # the session --------------------------------------------------------------------------------
    def _renew(self) -> None:
        """Leave a session that failed, or whose world an unanswered call may still change."""
        if self._stale:
            self.close()

    def _ask(self, request: Callable[[Client], Coroutine[Any, Any, Result]], seconds: float | None) -> Result:
        """One request, sent once. Whatever goes wrong, the session is not used for another start."""
        try:
            if self._link is None:
                self._link = _Link(self._target, self._timeout)
            return self._link.call(request, seconds)
        except TransportError:
            self._stale = True
            raise

    def _drive(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """One reserved call; raises what the served world raised."""
        result = self._call(name, arguments, self._timeout)
        body = result.data
        if result.is_error:
            wire.raise_failure(body)
            raise TransportError(
                f"the server refused {name}: {result.text[:200]}; was it started with admin=True?"
            )
        if not isinstance(body, dict):
            raise TransportError(f"{name} answered no JSON object: {result.text[:200]}")
        return body

    def _call(self, name: str, arguments: dict[str, Any], seconds: float | None) -> ToolResult:
        reply = self._ask(lambda client: client.call_tool(name, arguments), seconds)
        content = reply.content
        if len(content) != 1 or not isinstance(content[0], types.TextContent):
            kinds = [type(part).__name__ for part in content]
            raise TransportError(f"'{name}' answered {kinds}; expected one text")
        self._changes = int((reply.meta or {}).get(wire.CHANGES_KEY, self._changes))
        return ToolResult(content[0].text, reply.is_error)

    def _verify(self) -> None:
        """Refuse a server whose tools differ from this domain's (checked once a tool)."""
        wanted = {n: s for n, s in self.specs().items() if n not in self._verified}
        if not wanted:
            return
        listed = self._ask(lambda client: client.list_tools(), self._timeout)
        offered = {tool.name: tool.input_schema for tool in listed.tools}
        differing = sorted(n for n, spec in wanted.items() if offered.get(n) != spec.input_schema)
        if differing:
            raise TransportError(
                f"the server's tools are not those of domain '{self.domain.name}': {', '.join(differing)}"
            )
        self._verified.update(wanted)


class _NoAnswer(TransportError):
    """Nothing came back within so many seconds."""

    def __init__(self, name: str, seconds: float, tail: str) -> None:
        super().__init__(f"{name} gave no answer within {seconds:g} s{tail}")
        self.seconds = seconds


class _Link:
    """An open MCP session in a background thread, called from this one."""

    def __init__(self, target: str | StdioServerParameters, timeout: float) -> None:
        self.name = target if isinstance(target, str) else " ".join([target.command, *target.args])
        self._target = target
        self._complaints = tempfile.TemporaryFile("a+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._opened: Future[Client] = Future()
        self._client: Client | None = None
        self._thread = start_blocking_portal()
        self._portal = self._thread.__enter__()
        self._closing = self._portal.call(anyio.Event)
        self._held = self._portal.start_task_soon(self._hold)
        try:
            self._client = self._wait(self._opened, timeout)
        except BaseException:
            self.close()
            raise

    def call(self, request: Callable[[Client], Coroutine[Any, Any, Result]], seconds: float | None) -> Result:
        """Run one request to its end; TransportError if it fails, _NoAnswer if it is late."""
        if self._held.done() or self._client is None:
            raise TransportError(f"the session with {self.name} has ended{self._tail()}")
        future: Future[Result] = self._portal.start_task_soon(request, self._client)
        return self._wait(future, seconds)

    def close(self) -> None:
        """End the session and the thread; the server process too, if there is one."""
        self._portal.call(self._closing.set)
        if self._client is None:  # still opening, and perhaps stuck there
            self._held.cancel()
        with suppress(Exception, CancelledError):  # a session that broke has told so already
            self._held.result(timeout=10)
        self._held.cancel()
        self._thread.__exit__(None, None, None)
        self._complaints.close()

    async def _hold(self) -> None:
        """Keep the session open; entered and left in one task, as anyio demands."""
        target = self._target
        if isinstance(target, StdioServerParameters):
            transport = stdio_client(target, errlog=self._complaints)
        else:
            transport = _http(target)
        try:
            async with Client(transport, mode="legacy", cache=None) as client:
                self._opened.set_result(client)
                await self._closing.wait()
        except Exception as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    def _wait(self, future: Future[Result], seconds: float | None) -> Result:
        wait([future], seconds)
        if not future.done() and future.cancel():
            raise _NoAnswer(self.name, seconds or 0.0, self._tail())
        try:
            return future.result()
        # The SDK lets the errors of many libraries through (HTTP, anyio, pydantic, groups of them).
        except Exception as error:
            raise TransportError(f"{self.name} failed: {_reason(error)}{self._tail()}") from error

    def _tail(self) -> str:
        """The end of what a server process wrote to its standard error."""
        self._complaints.seek(0)
        text = self._complaints.read().strip()
        return f"; it wrote: {text[-500:]}" if text else ""


@asynccontextmanager
async def _http(url: str) -> AsyncIterator[Any]:
    """The SDK's HTTP transport on a client that keeps its connection while an agent thinks."""
    client = httpx2.AsyncClient(
        timeout=httpx2.Timeout(30, read=300), limits=httpx2.Limits(keepalive_expiry=wire.CLIENT_IDLE_S)
    )
    async with client, streamable_http_client(url, http_client=client) as streams:
        yield streams


def _reason(error: BaseException) -> str:
    """The message of the innermost error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
