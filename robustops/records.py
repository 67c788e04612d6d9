"""Frozen records of the data's route, in the order in which it meets them.

Task -> ToolCall -> ToolResult -> Turn -> Episode -> Group -> RewardParts. They hold plain Python values
only, so that they go to JSON and back unchanged (`to_dict`, `from_dict`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Self, get_args, get_type_hints


class Record:
    """Mixin: JSON round trip of a frozen dataclass, nested records included."""

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        hints = get_type_hints(cls)
        values = {
            f.name: _restore(hints[f.name], data[f.name])
            for f in dataclasses.fields(cls)  # type: ignore[arg-type]
            if f.name in data
        }
        return cls(**values)


def _restore(hint: Any, value: Any) -> Any:
    """Rebuild nested records and tuples from their JSON form, guided by the type hint."""
    if value is None:
        return None
    choices = [a for a in get_args(hint) if a is not type(None)]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint.from_dict(value)  # type: ignore[attr-defined]
    if getattr(hint, "__origin__", None) is tuple:
        inner = choices[0] if choices else Any
        fixed = len(choices) > 1 and choices[1] is not Ellipsis
        items = [_restore(choices[i] if fixed else inner, item) for i, item in enumerate(value)]
        return tuple(items)
    if len(choices) == 1 and getattr(hint, "__origin__", None) not in (dict, list):
        return _restore(choices[0], value)
    return value


@dataclass(frozen=True)
class StateCheck(Record):
    """A predicate over the final database (EnterpriseOps-Gym: verifier of type database_state).

    query: one SELECT whose single value is compared with `expected`;
    comparison: equals | greater_than | less_than | contains; world: name of the domain queried.
    """

    name: str
    query: str
    expected: Any
    comparison: str = "equals"
    world: str = ""


@dataclass(frozen=True)
class DatabaseSpec(Record):
    """Where a start database comes from: a file (JSON tables or SQLite), or a seed and a size."""

    seed: int = 0
    size: str = "small"
    path: str | None = None


@dataclass(frozen=True)
class Task(Record):
    """One request: prompt, policy, allowed tools, start database, state checks.

    tools: names that the scripted expert needs (the `oracle` configuration);
    distractors: five further names that `plus5` adds; tool_config: which of the two this row is;
    prerequisites: pairs (before, after) of check names; plan: what the scripted expert is told, i.e.
    the facts that the prompt states, never ids that must be looked up.
    """

    id: str
    domain: str
    template: str
    policy: str
    prompt: str
    tools: tuple[str, ...]
    distractors: tuple[str, ...]
    database: DatabaseSpec
    acting_user: str | None
    checks: tuple[StateCheck, ...]
    prerequisites: tuple[tuple[str, str], ...]
    plan: dict[str, Any] = field(default_factory=dict)
    split: str = "train"
    tool_config: str = "oracle"

    @property
    def case_id(self) -> str:
        """Task x tool configuration."""
        return f"{self.id}/{self.tool_config}"

    @property
    def allowed_tools(self) -> tuple[str, ...]:
        """Names offered to the agent, in alphabetical order so that order tells nothing."""
        extra = self.distractors if self.tool_config == "plus5" else ()
        return tuple(sorted({*self.tools, *extra}))


@dataclass(frozen=True)
class ToolCall(Record):
    """One call: a tool's name and its arguments by name."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def key(self) -> str:
        """Canonical text; equal calls have equal keys."""
        return f"{self.name} {canonical_json(self.arguments)}"


@dataclass(frozen=True)
class ToolResult(Record):
    """What the agent sees of a call: text (normally JSON) and whether it is an error."""

    text: str
    is_error: bool = False

    @property
    def data(self) -> Any:
        """The parsed JSON, or None where the text is not JSON (a truncated body, say)."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


@dataclass(frozen=True)
class FaultEvent(Record):
    """One injected tool fault: which mechanism, at which turn, and its place in the repetition cap."""

    family: str
    subtype: str
    turn: int
    tool: str
    repetition: int = 1
    cap: int = 1


@dataclass(frozen=True)
class Turn(Record):
    """One assistant message and its tool result.

    start, end: span of the assistant's generated tokens in `Episode.token_ids` (end exclusive; includes
    the end-of-turn token); call None: the message was no tool call (a final answer, or malformed).
    changed: whether the call changed the database; said: `text_digest` of what the world replied, taken at
    the tool boundary, None where no world was asked.
    """

    text: str
    call: ToolCall | None
    result: ToolResult | None
    start: int = 0
    end: int = 0
    fault: FaultEvent | None = None
    changed: bool = False
    said: str | None = None


@dataclass(frozen=True)
class EpisodeError(Record):
    """A typed failure that makes an episode invalid: boundary (sampler, tool, reward, world) and message."""

    boundary: str
    message: str


@dataclass(frozen=True)
class RewardParts(Record):
    """S success, P dependency-gated progress, Q quality: raw values before any normalisation."""

    success: float
    progress: float
    quality: float


#: Ways for an episode to stop at a token budget rather than at the agent's will.
CUT_OFF = frozenset({"answer_budget", "context"})


@dataclass(frozen=True)
class Episode(Record):
    """One sampled conversation, kept as token ids.

    token_ids, loss_mask, old_log_probs: equal lengths; loss_mask True = generated by the policy in this
    episode and trained; old_log_probs 0.0 where the mask is False. turns[:inherited_turns] came with the
    snapshot that a fault group shares. checks_start / checks_final: one bool a state check, at the
    continuation boundary and at the end. stop: final_answer | max_turns | context | answer_budget |
    malformed | error. weight_version: optimiser steps the sampling policy had seen.
    """

    case_id: str
    condition: str
    index: int
    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    old_log_probs: tuple[float, ...]
    turns: tuple[Turn, ...]
    inherited_turns: int
    stop: str
    checks_start: tuple[bool, ...]
    checks_final: tuple[bool, ...]
    reward_parts: RewardParts | None = None
    error: EpisodeError | None = None
    weight_version: int = 0

    @property
    def own_turns(self) -> tuple[Turn, ...]:
        """Turns generated in this episode (the suffix after an inherited prefix)."""
        return self.turns[self.inherited_turns :]

    @property
    def faults(self) -> tuple[FaultEvent, ...]:
        return tuple(turn.fault for turn in self.turns if turn.fault is not None)

    @property
    def success(self) -> bool:
        return self.error is None and bool(self.checks_final) and all(self.checks_final)


@dataclass(frozen=True)
class Group(Record):
    """Episodes that share one start state; condition is `clean` or `fault`."""

    case_id: str
    condition: str
    episodes: tuple[Episode, ...]


def canonical_json(value: Any) -> str:
    """Compact JSON with sorted keys: the form in which calls are compared."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def text_digest(text: str) -> str:
    """16 hex digits (8 bytes of SHA-256) by which two texts are compared."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
