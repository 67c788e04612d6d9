"""The contract of samplers: requests in, completions out, no barrier between episodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from robustops.records import Task, ToolCall, ToolResult
from robustops.rollout.hooks import Place

if TYPE_CHECKING:
    import torch

#: Error of a completion whose model gave NaN or infinite log-probs.
NOT_FINITE = "the model's log-probs are not finite; its weights are broken, go back to an earlier checkpoint"
NamedWeights = Iterable[tuple[str, "torch.Tensor"]]


@dataclass(frozen=True)
class Request:
    """One assistant message to be sampled.

    session: the episode it belongs to; a later request of the same session extends its tokens, so that
    a sampler may keep the session's key-value cache until `release`. token_ids: the whole context, ending
    where the assistant's message begins. seed: fixes the sampled tokens for given weights and context.
    messages, tools: the same context for endpoints that take chat messages. task, history: for the
    scripted expert. min_new_tokens: tokens before which no stop token may come; repetition_penalty: see
    `constraints.constrained`; never_stops: go on to the token budget; place: which message of a training
    episode it is, None for all others.
    """

    session: int
    token_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    task: Task | None = None
    history: tuple[tuple[ToolCall, ToolResult], ...] = ()
    min_new_tokens: int = 0
    repetition_penalty: float = 1.0
    never_stops: bool = False
    place: Place | None = None


@dataclass(frozen=True)
class Completion:
    """One sampled message.

    token_ids, log_probs: equal lengths; log-probs of the sampled ids under the sampling distribution
    (temperature applied). Samplers that produce text only leave both empty and set `text` or `call`.
    finished: the message ended with an end-of-turn token rather than at its token budget.
    error: the engine or endpoint failed on this request.
    """

    session: int
    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    finished: bool = True
    text: str | None = None
    call: ToolCall | None = None
    error: str | None = None
    usage: dict[str, int] = field(default_factory=dict)


class Sampler(Protocol):
    """What the collector needs of hf, vllm, openai and scripted samplers alike."""

    produces_tokens: bool
    weight_version: int

    def submit(self, request: Request) -> None:
        """Queue a request; returns at once."""

    def poll(self) -> list[Completion]:
        """Do some work and return the messages that are complete; SamplerError if the engine is gone."""

    def release(self, session: int) -> None:
        """The episode is over: forget what is cached for it."""

    def sync(self, weights: NamedWeights, version: int) -> None:
        """Sample from these weights from now on; refused while requests are in flight."""

    def close(self) -> None:
        """Give back memory, processes and connections."""


@runtime_checkable
class CountsPrefixes(Protocol):
    """A sampler that keeps the keys and values of contexts, and counts what that saves."""

    def prefix_cache_stats(self) -> dict[str, float]:
        """Of requests since the last call: queried_tokens, hit_tokens, hit_rate; empty if there was none."""


@runtime_checkable
class Sleeps(Protocol):
    """A sampler that can give its memory to the trainer between rollouts."""

    def sleep(self) -> None:
        """Give it away; refused while requests are in flight."""

    def wake_up(self) -> None:
        """Take it back; `submit` does so by itself."""
