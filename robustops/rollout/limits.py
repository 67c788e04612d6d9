"""What an engine must not be asked."""

from __future__ import annotations

from robustops.rollout.sampler import Request


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
