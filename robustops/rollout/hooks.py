"""Places in a rollout where something may look on or step in; by default nothing does.

A hook is told *which* message or reply it has before it by stable facts (`Place`), never by the order in
which episodes happen to run, so that what it does depends neither on batching nor on the number of workers.
Only episodes of training have a place; the probes of fault groups and evaluations have none and are left
alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from robustops.records import ToolCall, ToolResult

if TYPE_CHECKING:
    from torch import Tensor

    from robustops.rollout.hf_session import Session
    from robustops.rollout.sampler import Completion, Request


class Place(NamedTuple):
    """Which message of which training episode.

    step: the optimiser step that the episode is sampled for, from 1; group: number of the group among those
    of its condition in this run; member: within the group; attempt: at this episode, from 1; turn: of the
    message, from 0; asked: how often its tool was asked again.
    """

    step: int
    case_id: str
    condition: str
    group: int
    member: int
    attempt: int = 1
    turn: int = 0
    asked: int = 0


@dataclass(frozen=True)
class HeldBack:
    """In place of a tool call: it is not executed, and this is its reply. unread: the call counts as one that
    could not be read.
    """

    reply: ToolResult
    unread: bool = False


class RolloutHooks:
    """Does nothing. Override what is to be watched or changed.

    reads_logits: `on_logits` is overridden, so that the sampler must offer logits (hf does).
    """

    reads_logits: bool = False

    def on_logits(self, logits: Tensor, sessions: Sequence[Session], stop_ids: Collection[int]) -> Tensor:
        """Logits (rows, vocabulary) of the next token of each session, before temperature and sampling."""
        return logits

    def on_request(self, place: Place, request: Request) -> Request:
        """What is asked of the sampler for a message."""
        return request

    def on_completion(
        self, place: Place, request: Request, completion: Completion, stop_ids: Collection[int]
    ) -> Completion:
        """What the sampler answered; not called where it failed."""
        return completion

    def on_tool_call(self, place: Place, call: ToolCall) -> ToolCall | HeldBack:
        """The call that the world is to execute."""
        return call

    def on_tool_reply(
        self, place: Place, call: ToolCall, result: ToolResult, earlier: Sequence[ToolResult]
    ) -> ToolResult:
        """The reply that the agent is to see; what the world recorded and its state checks stay as they are.

        earlier: the replies that this episode has seen before.
        """
        return result

    def ends_after(self, place: Place, turns: int, max_turns: int) -> bool:
        """Whether the environment ends the episode after so many turns, although `max_turns` allows more."""
        return False

    def overlooks_answer(self, place: Place) -> bool:
        """Whether the environment does not notice that this message is a final answer, and goes on."""
        return False


#: Shared by all who were given none: it has no state.
NO_HOOKS = RolloutHooks()
