"""What an engine is asked, and what it must not be."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from robustops.rollout.sampler import Request


def sampling_values(request: Request, temperature: float, stop_ids: Collection[int]) -> dict[str, Any]:
    """VLLM's sampling parameters of a request: nothing truncated, the log-prob of the sampled token alone."""
    values: dict[str, Any] = {
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": 0,
        "max_tokens": request.max_new_tokens,
        "seed": request.seed,
        "logprobs": 0,
        # The model's own end-of-text ids are not ours: only `stop_ids` end a message.
        "ignore_eos": True,
        "stop_token_ids": [] if request.never_stops else sorted(stop_ids),
        "detokenize": False,
        "skip_special_tokens": False,
    }
    return values | {"min_tokens": request.min_new_tokens} if request.min_new_tokens else values


def whole_prompt_tokens(max_model_len: int | None) -> int:
    """Most prompt tokens of an engine step on a CPU, where no prompt may be read in pieces: between them vLLM
    sets a request's random generator back, which a CPU generator cannot do.
    """
    return max(8192, max_model_len or 0)


def unfit(request: Request, *, holds: int, vocab_size: int, remedy: str) -> str | None:
    """Why an engine must not see a request: it would cut it short, refuse it, or die of it.

    holds: tokens of context and answer together; vocab_size: ids are below it; remedy: how to get an engine
    that holds more.
    """
    context, needed = len(request.token_ids), len(request.token_ids) + request.max_new_tokens
    if needed > holds:
        return (
            f"the request needs {needed} tokens ({context} of context, {request.max_new_tokens} of "
            f"answer), the engine holds {holds}; {remedy} or lower the context limit"
        )
    if context == 0 or not 0 <= min(request.token_ids) <= max(request.token_ids) < vocab_size:
        return f"the request needs token ids of 0 to {vocab_size - 1}; model and tokenizer do not match"
    return None
