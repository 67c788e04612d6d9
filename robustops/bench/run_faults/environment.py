"""Tool and environment faults of training: calls (TE-1), replies (TE-2) and endings (TE-3).

Unlike the tool faults of `robustops.faults`, which agents are trained to cope with, these are failures of the
training run's own plumbing: nothing records them on the episode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from robustops.bench.run_faults.mechanism import Mechanism
from robustops.bench.run_faults.spec import unit_key
from robustops.errors import ToolError
from robustops.records import ToolCall, ToolResult
from robustops.rollout.episode import MALFORMED
from robustops.rollout.hooks import HeldBack, Place
from robustops.rollout.tool_calls import TOOL_UNAVAILABLE
from robustops.seeding import generator
from robustops.worlds.toolset import refusal

OUTAGE = refusal(ToolError(TOOL_UNAVAILABLE, "the tool is out of order; the call was not executed"))
#: Share of a reply that is cut at strength 1.
CUT = 0.7


class ToolOutage(Mechanism):
    """TE-1: a tool refuses calls that are in order, without executing them."""

    def on_tool_call(self, place: Place, call: ToolCall) -> ToolCall | HeldBack:
        if not self.occurs(place):
            return call
        self.note(place, call.key(), OUTAGE.text)
        return HeldBack(OUTAGE)


class RejectedCall(Mechanism):
    """TE-1: the parser cannot read calls that are in order."""

    def on_tool_call(self, place: Place, call: ToolCall) -> ToolCall | HeldBack:
        if not self.occurs(place):
            return call
        self.note(place, call.key(), MALFORMED.text)
        return HeldBack(MALFORMED, unread=True)


class ReplyMechanism(Mechanism):
    """Changes what the agent sees of a reply; whether it is an error stays as it was."""

    def on_tool_reply(
        self, place: Place, call: ToolCall, result: ToolResult, earlier: Sequence[ToolResult]
    ) -> ToolResult:
        if (level := self.force(place)) == 0:
            return result
        text = self.distort(place, result.text, [reply.text for reply in earlier], level)
        self.note(place, result.text, text, numbers=[(len(result.text), len(text))])
        return dataclasses.replace(result, text=text)

    def distort(self, place: Place, text: str, earlier: Sequence[str], level: float) -> str:
        """The text that the agent sees instead."""
        raise NotImplementedError


class DigitNoise(ReplyMechanism):
    """TE-2: digits are replaced by others."""

    def distort(self, place: Place, text: str, earlier: Sequence[str], level: float) -> str:
        rng = generator(self.spec.seed, "digits", *unit_key("turn", place))
        return "".join(
            str((int(c) + rng.randrange(1, 10)) % 10) if c in "0123456789" and rng.random() < level else c
            for c in text
        )


class StaleReply(ReplyMechanism):
    """TE-2: the reply to the episode's call before, where it had another one."""

    def distort(self, place: Place, text: str, earlier: Sequence[str], level: float) -> str:
        others = [reply for reply in earlier if reply != text]
        if not others or not self.spec.happens(unit_key("turn", place), level, "stale"):
            return text
        return others[-1]


class TruncatedReply(ReplyMechanism):
    """TE-2: the end of the reply is missing."""

    def distort(self, place: Place, text: str, earlier: Sequence[str], level: float) -> str:
        return text[: round(len(text) * (1 - CUT * level))]


class EarlyDone(Mechanism):
    """TE-3: the environment says that it is done after the first turn."""

    def ends_after(self, place: Place, turns: int, max_turns: int) -> bool:
        done = self.occurs(place)
        if done:
            self.note(place, max_turns, turns)
        return done


class StopIgnored(Mechanism):
    """TE-3: the environment does not notice final answers; an episode goes on to its limit of turns."""

    def overlooks_answer(self, place: Place) -> bool:
        overlooked = self.occurs(place)
        if overlooked:
            self.note(place, "answer", "overlooked")
        return overlooked


class TurnLimit(Mechanism):
    """TE-3: the environment counts with a lower limit of turns than the configuration says."""

    def ends_after(self, place: Place, turns: int, max_turns: int) -> bool:
        if (level := self.force(place)) == 0:
            return False
        limit = max(1, round(max_turns * (1 - level)))
        if turns < limit:
            return False
        self.note(place, max_turns, limit)
        return True
