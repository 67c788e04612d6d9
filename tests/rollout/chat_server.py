"""A real HTTP server that behaves like an OpenAI-compatible chat endpoint, for tests."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

KEY = "sk-very-secret"


class ChatServer:
    """Answers by the name of the model that is asked for; keeps what it was sent.

    Models: `words` (as many words as allowed, at most 8, a function of messages and seed), `caller` (two
    tool calls), `badcall` (arguments that are no JSON), `listcall` (arguments that are no object), `filter`,
    `empty` (no choice), `flaky` (503 twice for each request, then words), `broken` (500 always), `together`
    (answers when four requests are open), `slow` (after a minute).
    """

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.tries: dict[str, int] = {}
        self.base_url = ""
        self._open = 0

    async def complete(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            given = request.headers.get("authorization", "")
            return JSONResponse({"error": {"message": f"wrong key: {given}"}}, 401)
        body = await request.json()
        self.bodies.append(body)
        text = json.dumps([body["messages"], body.get("seed")])
        self.tries[text] = self.tries.get(text, 0) + 1
        match body["model"]:
            case "broken":
                return _fault(500, "the model fell over")
            case "flaky" if self.tries[text] <= 2:
                return _fault(503, "overloaded")
            case "echo-key":
                return _fault(400, f"bad request with {request.headers['authorization']}")
            case "slow":
                await asyncio.sleep(60)
            case "together":
                self._open += 1
                while self._open < 4:
                    await asyncio.sleep(0.01)
        return JSONResponse(_reply(body, text))


def _fault(status: int, message: str) -> Response:
    # The client would wait for seconds; this header asks it not to.
    return JSONResponse({"error": {"message": message}}, status, headers={"retry-after-ms": "5"})


def _reply(body: dict[str, Any], text: str) -> dict[str, Any]:
    allowed = body.get("max_tokens", body.get("max_completion_tokens", 8))
    words = [f"w{zlib.crc32(f'{text}{i}'.encode()) % 1000}" for i in range(min(8, allowed))]
    message: dict[str, Any] = {"role": "assistant", "content": " ".join(words)}
    reason = "length" if allowed < 8 else "stop"
    calls = {
        "caller": ['{"name": "garden"}', '{"name": "attic"}'],
        "badcall": ['{"name": garden'],
        "listcall": ['["garden"]'],
        "emptycall": [""],
    }.get(body["model"])
    if calls:
        message["content"], reason = None, "tool_calls"
        message["tool_calls"] = [
            {"id": f"c{i}", "type": "function", "function": {"name": "list_boxes", "arguments": arguments}}
            for i, arguments in enumerate(calls)
        ]
    if body["model"] == "filter":
        reason = "content_filter"
    choices = [{"index": 0, "message": message, "finish_reason": reason}]
    usage = {"prompt_tokens": 11, "completion_tokens": len(words), "total_tokens": 11 + len(words)}
    return {
        "id": "chat-1",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [] if body["model"] == "empty" else choices,
        "usage": usage,
    }


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    """The server on a free port of this machine, until the block ends."""
    chat = ChatServer()
    app = Starlette(routes=[Route("/v1/chat/completions", chat.complete, methods=["POST"])])
    with running(app) as url:
        chat.base_url = f"{url}/v1"
        yield chat


@contextmanager
def running(app: Starlette) -> Iterator[str]:
    """The application on a free port of this machine, until the block ends; gives its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 30
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.started, "the test server did not start"
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=10)
