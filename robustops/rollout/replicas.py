"""HTTP to the replicas of a vLLM server: requests run at once, in one background thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2

from robustops.errors import ConfigError, SamplerError

T = TypeVar("T")
Reply = dict[str, Any]

_ABSENT = "; it must be vLLM 0.32 or later, started with VLLM_SERVER_DEV_MODE=1 and --enable-scale-out"
#: Statuses that may pass: time-out, too many requests, and every error of the server's own.
_PASSING = frozenset({408, 429, *range(500, 600)})
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True)
class Failure:
    """Why a replica gave no answer. passing: another try may get one; gone: nothing listens there."""

    message: str
    passing: bool
    gone: bool = False


class Replicas:
    """Sends requests to each of some servers that hold the same model.

    urls: of the servers, without a path; api_key: sent as a bearer token; max_in_flight: sampling requests
    open at once, the rest waits here; timeout: seconds for one try; retries: further tries after a lost
    connection, a time-out, status 408, 429 or 5xx; pause: seconds before the first of them, doubled each
    time; control_timeout: seconds for a control call such as loading new weights.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        api_key: str | None = None,
        max_in_flight: int = 64,
        timeout: float = 120.0,
        retries: int = 3,
        pause: float = 0.5,
        control_timeout: float = 600.0,
    ) -> None:
        if not urls or not all(url.startswith(("http://", "https://")) for url in urls):
            raise ConfigError(
                f"sampler.urls is {list(urls)}; give the addresses of running vLLM servers, e.g. "
                "sampler.urls=[http://127.0.0.1:8000]"
            )
        self.urls = tuple(url.rstrip("/").removesuffix("/v1") for url in urls)
        self.timeout = timeout
        self.retries = retries
        self.pause = pause
        self.control_timeout = control_timeout
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm-replicas", daemon=True)
        self._thread.start()
        self._places = asyncio.Semaphore(max_in_flight)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        kept = httpx2.Limits(max_keepalive_connections=max_in_flight, keepalive_expiry=3.0)
        self._client = httpx2.AsyncClient(headers=headers, timeout=None, limits=kept, trust_env=False)
        # Control calls are not repeated, so that none may meet a connection that the server has closed.
        fresh = httpx2.Limits(max_keepalive_connections=0)
        self._control_client = httpx2.AsyncClient(
            headers=headers, timeout=None, limits=fresh, trust_env=False
        )

    def send(
        self, replica: int, path: str, body: Reply, on_done: Callable[[Reply | Failure], None]
    ) -> Future[None]:
        """Post to one replica; `on_done` gets the answer in the background thread. Cancel to give it up."""

        async def work() -> None:
            on_done(await self._retried(replica, path, body))

        return self._start(work())

    def post(self, path: str, body: Reply | None = None, **params: str) -> list[Reply]:
        """Post to all replicas at once and wait for all; their answers. SamplerError if one has none."""
        return self.post_each(path, [body] * len(self.urls), **params)

    def post_each(self, path: str, bodies: Sequence[Reply | None], **params: str) -> list[Reply]:
        """As `post`, with a body for each replica."""
        return self._control("POST", path, bodies, params)

    def get(self, path: str, **params: str) -> list[Reply]:
        """Get from all replicas at once; their answers. SamplerError if one has none."""
        return self._control("GET", path, [None] * len(self.urls), params)

    def close(self) -> None:
        """Give up what is under way; further calls do nothing."""
        if self._loop.is_closed():
            return
        self._start(self._stop()).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    # ---------------------------------------------------------------------------------------------
    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _stop(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.aclose()
        await self._control_client.aclose()

    def _control(
        self, method: str, path: str, bodies: Sequence[Reply | None], params: Mapping[str, str]
    ) -> list[Reply]:
        async def one(url: str, body: Reply | None) -> Reply | Failure:
            call = self._control_client.request(method, f"{url}{path}", json=body, params=params)
            return await _outcome(call, f"{url}{path}", self.control_timeout)

        async def everyone() -> list[Reply | Failure]:
            return await asyncio.gather(*map(one, self.urls, bodies))

        replies: list[Reply] = []
        for outcome in self._start(everyone()).result():
            if isinstance(outcome, Failure):
                raise SamplerError(outcome.message)
            replies.append(outcome)
        return replies

    async def _retried(self, replica: int, path: str, body: Reply) -> Reply | Failure:
        url = f"{self.urls[replica]}{path}"
        async with self._places:
            for attempt in range(self.retries + 1):
                if attempt:
                    await asyncio.sleep(min(self.pause * 2 ** (attempt - 1), _LONGEST_PAUSE))
                outcome = await _outcome(self._client.post(url, json=body), url, self.timeout)
                if not isinstance(outcome, Failure) or not outcome.passing:
                    break
            return outcome


async def _outcome(call: Awaitable[httpx2.Response], url: str, limit: float) -> Reply | Failure:
    """The answer to one call, or why there is none within `limit` seconds."""
    try:
        async with asyncio.timeout(limit):
            reply = await call
    except TimeoutError:
        return Failure(f"{url} gave no answer in {limit:g} s; raise sampler.timeout_s", passing=True)
    except httpx2.TransportError as error:
        gone = isinstance(error, httpx2.ConnectError)
        return Failure(f"{url} cannot be reached: {type(error).__name__} {error}", True, gone)
    if reply.is_success:
        return _json(reply)
    hint = _ABSENT if reply.status_code in (403, 404) else ""
    message = f"{url} answered {reply.status_code}: {_said(reply)}{hint}"
    return Failure(message, passing=reply.status_code in _PASSING)


def _json(reply: httpx2.Response) -> Reply | Failure:
    """The answer's object; an empty body is an empty one."""
    try:
        content = reply.json() if reply.content else {}
    except ValueError:
        content = None
    if not isinstance(content, dict):
        return Failure(f"{reply.url} did not answer with a JSON object", passing=False)
    return content


def _said(reply: httpx2.Response) -> str:
    """The server's message in one line."""
    text = reply.text
    try:
        error = json.loads(text)["error"]
        text = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        pass
    return " ".join(text.split())[:500]
