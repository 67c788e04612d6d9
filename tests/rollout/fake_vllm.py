"""The HTTP face of a vLLM server without a model: it answers, fails and takes weights as a test tells it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from safetensors import safe_open
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.rollout.chat_server import running

ROUTES = {
    "POST": (
        "/inference/v1/generate",
        "/pause",
        "/resume",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/update_weight_version",
        "/init_weight_transfer_engine",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/shutdown_weight_transfer_engine",
    ),
    "GET": ("/v1/models", "/server_info", "/weight_info", "/get_world_size"),
}


class FakeVLLM:
    """One replica.

    calls: (path, body) of what it was asked, in order; faults: path -> statuses to answer with first, each
    once; log_prob: of every token; hold: requests for tokens wait while it is set; peak: most of them that
    were open at once; left: how many clients went away before their answer; loaded: names of the weights of
    each reload; mode, version, world_size, cached, resets: what it reports.
    """

    def __init__(self, world_size: int = 1) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.faults: dict[str, list[int]] = {}
        self.loaded: list[set[str]] = []
        self.log_prob = -0.5
        self.finish_reason = "length"
        self.mode = "processed_logprobs"
        self.version = "default"
        self.keeps_version = False
        self.resets = True
        self.cached: int | None = 0
        self.world_size = world_size
        self.hold = threading.Event()
        self.open = self.peak = self.left = 0
        self.url = ""

    def paths(self, without: tuple[str, ...] = ("/v1/models", "/server_info")) -> list[str]:
        return [path for path, _ in self.calls if path not in without]

    def bodies(self, path: str) -> list[Any]:
        return [body for called, body in self.calls if called == path]

    async def answer(self, request: Request) -> Response:
        path = request.url.path
        content = await request.body()
        body = await request.json() if content else None
        self.calls.append((path, body))
        self.headers.append(dict(request.headers))
        if statuses := self.faults.get(path):
            status = statuses.pop(0)
            return JSONResponse({"error": {"message": f"planted\nfault {status}", "code": status}}, status)
        match path:
            case "/inference/v1/generate":
                return await self._generate(request, body)
            case "/v1/models":
                return JSONResponse({"data": [{"id": "m", "max_model_len": 512}]})
            case "/server_info":
                return JSONResponse({"vllm_config": {"model_config": {"logprobs_mode": self.mode}}})
            case "/weight_info":
                return JSONResponse({"weight_version": self.version})
            case "/get_world_size":
                return JSONResponse({"world_size": self.world_size})
            case "/reset_prefix_cache":
                return JSONResponse({"success": self.resets})
            case "/update_weight_version" if not self.keeps_version:
                self.version = body["new_version"]
            case "/collective_rpc":
                self._reload(body["kwargs"]["weights_path"])
        return JSONResponse({})

    def _reload(self, folder: str) -> None:
        with safe_open(f"{folder}/model.safetensors", framework="pt") as weights:
            self.loaded.append(set(weights.keys()))

    async def _generate(self, request: Request, body: dict[str, Any]) -> Response:
        self.open += 1
        self.peak = max(self.peak, self.open)
        try:
            while self.hold.is_set():
                if await request.is_disconnected():
                    self.left += 1
                    return Response()
                await asyncio.sleep(0.01)
            return JSONResponse(self._tokens(body))
        finally:
            self.open -= 1

    def _tokens(self, body: dict[str, Any]) -> dict[str, Any]:
        sampling, context = body["sampling_params"], body["token_ids"]
        ids = [(sum(context) + sampling["seed"] + i) % 400 + 50 for i in range(sampling["max_tokens"])]
        content = [{"token_id": token, "logprob": self.log_prob} for token in ids]
        choice = {
            "finish_reason": self.finish_reason,
            "token_ids": ids,
            "logprobs": {"content": content},
            "weight_versions": [{"version": self.version, "start": 0, "end": len(ids)}],
        }
        details = None if self.cached is None else {"cached_tokens": self.cached}
        usage = {"prompt_tokens": len(context), "prompt_tokens_details": details}
        return {"choices": [choice], "usage": usage}


@contextmanager
def fake_vllm(*world_sizes: int) -> Iterator[list[FakeVLLM]]:
    """Replicas on free ports of this machine, one for each number of workers, until the block ends."""
    with ExitStack() as stack:
        servers = [FakeVLLM(size) for size in world_sizes or (1,)]
        for server in servers:
            routes = [
                Route(path, server.answer, methods=[m]) for m, paths in ROUTES.items() for path in paths
            ]
            server.url = stack.enter_context(running(Starlette(routes=routes)))
        yield servers
        for server in servers:
            server.hold.clear()
