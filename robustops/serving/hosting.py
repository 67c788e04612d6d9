"""Runs an MCP server of the SDK: a listening socket, HTTP with a clean stop, standard input and output."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import uvicorn
from mcp.server import Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server

from robustops.errors import ConfigError, TransportError
from robustops.serving import wire

PATH = "/mcp"
#: Largest request body in bytes.
MAX_BODY = 1024 * 1024


def url_of(host: str, listener: socket.socket) -> str:
    """The address that clients of a listening socket use."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}{PATH}"


def listen(host: str, port: int) -> socket.socket:
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


def http_server(server: Server[Any], host: str, *, max_body: int = MAX_BODY) -> uvicorn.Server:
    """A web server of `server` at `PATH`; runs with `run(sockets=[listen(...)])`, stops by `should_exit`."""
    app = server.streamable_http_app(
        streamable_http_path=PATH, json_response=True, host=host, max_request_body_size=max_body
    )
    return _HttpServer(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_keep_alive=wire.SERVER_IDLE_S,
            timeout_graceful_shutdown=1,
        )
    )


@contextmanager
def in_background(server: Server[Any], host: str, port: int, *, max_body: int = MAX_BODY) -> Iterator[str]:
    """Serve over HTTP in a thread of this process; gives the URL."""
    listener = listen(host, port)
    http = http_server(server, host, max_body=max_body)
    thread = threading.Thread(target=http.run, kwargs={"sockets": [listener]}, name="mcp-server", daemon=True)
    thread.start()
    try:
        yield url_of(host, listener)
    finally:
        http.should_exit = True
        thread.join(timeout=10)
        if thread.is_alive():
            raise TransportError("the MCP server did not stop within 10 s")


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


async def run_stdio(server: Server[Any]) -> None:
    """Serve over standard input and output until the client closes them, or a signal comes."""
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
