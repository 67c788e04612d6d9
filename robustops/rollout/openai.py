"""Sampling from any OpenAI-compatible chat endpoint (OpenAI, vLLM's server, llama.cpp, proxies ...).

Such an endpoint gives text and tool calls, no token ids: its episodes can be evaluated and can become
demonstrations, but are not trained on as they are.
"""

from __future__ import annotations

import json
import os
import queue
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from robustops.errors import ConfigError, SamplerError
from robustops.records import ToolCall
from robustops.rollout.sampler import Completion, NamedWeights, Request

LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")
#: Some endpoints hold seeds in 32 bits.
_SEEDS = 2**31


class OpenAISampler:
    """Sends each request as one chat completion; up to `max_in_flight` at a time.

    model: the endpoint's name of the model; base_url: None is the OpenAI API; api_key_env: name of the
    environment variable that holds the key (a local endpoint needs none); temperature: None leaves it to
    the endpoint, as reasoning models demand; timeout: seconds for one try; retries: further tries after a
    time-out, a lost connection, status 408, 409, 429 or 5xx, with growing pauses; limit_field: how the
    endpoint calls the token limit; extra_body: further fields of the request body.
    """

    produces_tokens = False

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key_env: str | None = "OPENAI_API_KEY",
        max_in_flight: int = 16,
        temperature: float | None = 1.0,
        timeout: float = 120.0,
        retries: int = 4,
        limit_field: str = "max_tokens",
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise ConfigError(
                "sampler=openai needs the openai package; pip install 'robustops[openai]'"
            ) from error
        if limit_field not in LIMIT_FIELDS:
            raise ConfigError(
                f"sampler.limit_field '{limit_field}' is unknown; choose one of: {', '.join(LIMIT_FIELDS)}"
            )
        if max_in_flight < 1:
            raise ConfigError(f"sampler.max_in_flight is {max_in_flight}; give 1 or more")
        self.model = model
        self.temperature = temperature
        self.limit_field = limit_field
        self.extra_body = dict(extra_body or {})
        self.weight_version = 0
        self._key = _api_key(api_key_env, base_url)
        self._failures = openai.OpenAIError
        self._client = openai.OpenAI(
            api_key=self._key, base_url=base_url, timeout=timeout, max_retries=retries
        )
        self._threads = ThreadPoolExecutor(max_in_flight, thread_name_prefix="openai-sampler")
        self._done: queue.Queue[tuple[Request, Completion | BaseException]] = queue.Queue()
        self._open: dict[int, Request] = {}

    # the contract -------------------------------------------------------------------------------
    def submit(self, request: Request) -> None:
        self._open[request.session] = request
        self._threads.submit(self._work, request)

    def poll(self) -> list[Completion]:
        """Wait up to a second for an answer; return all that have come."""
        answers: list[Completion] = []
        block = bool(self._open)
        while True:
            try:
                request, answer = self._done.get(block=block, timeout=1.0 if block else None)
            except queue.Empty:
                return answers
            block = False
            if self._open.get(request.session) is not request:
                continue  # released meanwhile
            del self._open[request.session]
            if isinstance(answer, BaseException):
                raise answer
            answers.append(answer)

    def release(self, session: int) -> None:
        self._open.pop(session, None)

    def sync(self, weights: NamedWeights, version: int) -> None:
        raise SamplerError(
            "the weights behind an OpenAI endpoint cannot be set from here; choose sampler=hf or sampler=vllm"
        )

    def close(self) -> None:
        self._open.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    # ---------------------------------------------------------------------------------------------
    def _work(self, request: Request) -> None:
        """Runs in a thread: one request, its answer or its failure into the queue."""
        if self._open.get(request.session) is not request:
            return
        try:
            self._done.put((request, self._complete(request)))
        except BaseException as error:  # a bug here must surface in poll(), not die with its thread
            self._done.put((request, error))

    def _complete(self, request: Request) -> Completion:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": api_messages(request.messages),
            self.limit_field: request.max_new_tokens,
            "seed": request.seed % _SEEDS,
        }
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if request.tools:
            body["tools"] = list(request.tools)
        try:
            reply = self._client.chat.completions.create(**body, extra_body=self.extra_body)
        except self._failures as error:
            return Completion(request.session, error=self._reason(error))
        return _completion(request.session, reply)

    def _reason(self, error: Exception) -> str:
        """The failure in one line, without the key that some endpoints repeat."""
        text = " ".join(str(error).split())[:500].replace(self._key, "***")
        return f"endpoint failed for model '{self.model}': {type(error).__name__}: {text}"


def _api_key(variable: str | None, base_url: str | None) -> str:
    key = os.environ.get(variable, "") if variable is not None else ""
    if key:
        return key
    if base_url is None:
        raise ConfigError(
            f"no API key: environment variable {variable or '(none named)'} is empty; export it, or set "
            "sampler.base_url to an endpoint that needs no key"
        )
    return "no-key-needed"


def api_messages(messages: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    """An episode's conversation in the API's form: calls and results are joined by ids.

    An assistant message whose call could not be read has no call to answer to, so the tool's complaint
    about it goes back as a user message.
    """
    converted: list[dict[str, Any]] = []
    open_call: str | None = None
    for number, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if role == "assistant" and message.get("call") is not None:
            open_call = f"call_{number:04d}"
            converted.append(_call_message(message["call"], open_call))
        elif role == "tool" and open_call is not None:
            converted.append({"role": "tool", "tool_call_id": open_call, "content": content})
            open_call = None
        elif role == "tool":
            converted.append({"role": "user", "content": content})
        else:
            converted.append({"role": role, "content": content})
    return converted


def _call_message(call: ToolCall, call_id: str) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    tool_calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": tool_calls}


def _completion(session: int, reply: Any) -> Completion:
    """The first choice's message; of several tool calls the first (one call a turn)."""
    if not reply.choices:
        return Completion(session, error="the endpoint answered without a choice")
    choice = reply.choices[0]
    if choice.finish_reason == "content_filter":
        return Completion(session, error="the endpoint's content filter stopped the answer")
    usage = {}
    if reply.usage is not None:
        usage = {
            "prompt_tokens": reply.usage.prompt_tokens,
            "completion_tokens": reply.usage.completion_tokens,
        }
    finished = choice.finish_reason != "length"
    text = choice.message.content or ""
    calls = [c for c in choice.message.tool_calls or [] if getattr(c, "function", None) is not None]
    if not calls:
        return Completion(session, finished=finished, text=text, usage=usage)
    function = calls[0].function
    try:
        arguments = json.loads(function.arguments or "{}")
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        call = ToolCall(function.name, arguments)
        return Completion(session, finished=finished, text=text, call=call, usage=usage)
    # Keep what was said: the episode reads it as a malformed call and tells the agent so.
    spoken = (
        f'<tool_call>{{"name": {json.dumps(function.name)}, "arguments": {function.arguments}}}</tool_call>'
    )
    return Completion(session, finished=finished, text=spoken, usage=usage)
