"""A tool call of an episode, between the message that makes it and the reply that the agent sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from robustops.records import ToolCall, ToolResult
from robustops.rollout.hooks import HeldBack, Place, RolloutHooks

#: Error code of a call that a tool out of order did not execute: it may be made again.
TOOL_UNAVAILABLE = "TOOL_UNAVAILABLE"


def ask_tool(
    step: Callable[[ToolCall], ToolResult],
    call: ToolCall,
    hooks: RolloutHooks,
    place: Place | None,
    earlier: Sequence[ToolResult],
    *,
    retries: int = 0,
    checked: bool = False,
    reread: bool = False,
) -> ToolResult | HeldBack:
    """What the agent sees of a call; HeldBack: it was not executed, however often it was made.

    step: executes a call in the world; place: None asks no hooks; earlier: replies that the episode has seen;
    retries: how often a call is made again that a tool out of order did not execute; checked: a reply that
    is not what the world said is replaced by that; reread: `call` is made although it was refused as one
    that cannot be read.
    """
    for asked in range(retries + 1):
        allowed: ToolCall | HeldBack = call
        if place is not None:
            place = place._replace(asked=asked)
            allowed = hooks.on_tool_call(place, call)
        if reread and isinstance(allowed, HeldBack) and allowed.unread:
            allowed = call
        reply = allowed if isinstance(allowed, HeldBack) else step(allowed)
        if _code(reply.reply if isinstance(reply, HeldBack) else reply) != TOOL_UNAVAILABLE:
            break
    if isinstance(reply, HeldBack) or place is None:
        return reply
    seen = hooks.on_tool_reply(place, call, reply, earlier)
    return reply if checked and seen != reply else seen


def _code(reply: ToolResult) -> str | None:
    """The error code of a refusal; None of anything else."""
    if not reply.is_error:
        return None
    error = reply.data.get("error") if isinstance(reply.data, dict) else None
    return error.get("code") if isinstance(error, dict) else None
