"""The arithmetic domain as an environment of TRL, and its reward parts as TRL's reward functions.

TRL makes one environment an episode, offers its public methods as tools, and takes a raised exception for a
failed call. World, tools, tasks and rewards are those of our own runs; the loop around them is not: a
message that TRL cannot read as a call ends an episode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from robustops.bench.transfer.trl_injection import Injection
from robustops.errors import RobustOpsError
from robustops.records import Episode, Group, RewardParts, Task, ToolCall, ToolResult, Turn
from robustops.rewards.parts import RewardRules, reward_parts
from robustops.rollout.hooks import HeldBack, Place
from robustops.worlds.domain import get_domain
from robustops.worlds.environment import LocalWorld

#: How TRL reads an answer of our policy: as of Qwen's, with the chat template's own marks.
RESPONSE_TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|end\|>\s*", "content": "text"},
    },
}
#: What TRL asks of a chat template beyond ours: that it can write calls. Nothing is rendered with it but the
#: marks around a reply, since histories are kept as token ids.
_CONTENT = "<|assistant|>{{ m.content }}"
_CALLS = "{%- for c in m.tool_calls or [] -%}<tool_call>{{ c.function | tojson }}</tool_call>{%- endfor -%}"
_OPEN, _TOOL, _ASSISTANT = "<tool_call>", "<|tool|>", "<|assistant|>"


def readable(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer of our policy, so that TRL can read its calls."""
    tokenizer.response_template = RESPONSE_TEMPLATE  # type: ignore[attr-defined]
    tokenizer.chat_template = str(tokenizer.chat_template).replace(_CONTENT, _CONTENT + _CALLS)
    return tokenizer


class CallFailed(RobustOpsError):
    """The reply of a call that is an error; TRL counts it and shows it to the policy."""


class Calculator:
    """One episode's world. TRL calls `reset` with a row of the data set, then the other methods as tools."""

    def __init__(self, tasks: Mapping[str, Task], injection: Injection | None = None) -> None:
        self._tasks = tasks
        self._injection = injection
        self._world = LocalWorld(get_domain("arithmetic"), tool_timeout_s=None)
        self._place: Place | None = None
        self._turns: list[Turn] = []
        self._start: tuple[bool, ...] = ()

    def reset(self, task: str, **row: Any) -> None:
        """Begin an episode of a task. row: what else the data set says."""
        self._world.reset(self._tasks[task])
        self._turns = []
        self._start = self._world.evaluate(self._world.task.checks)
        self._place = None if self._injection is None else self._injection.place(self._world.task.case_id)

    def compute(self, expression: str) -> str:
        """Compute one operation on two integers.

        Args:
            expression: such as 7*3
        """
        return self._call("compute", expression=expression)

    def submit(self, value: int) -> str:
        """Submit the answer.

        Args:
            value: the answer
        """
        return self._call("submit", value=value)

    def list_computations(self, expression: str | None = None) -> str:
        """List stored computations.

        Args:
            expression: such as 7*3
        """
        return self._call("list_computations", expression=expression)

    def list_answers(self) -> str:
        """List submitted answers."""
        return self._call("list_answers")

    @property
    def task(self) -> Task:
        """What the episode is about; a property, since TRL takes methods for tools."""
        return self._world.task

    def _call(self, name: str, **arguments: Any) -> str:
        call = ToolCall(name, {key: value for key, value in arguments.items() if value is not None})
        before = self._world.changes
        result = self._asked(call)
        self._turns.append(Turn("", call, result, changed=self._world.changes != before))
        if result.is_error:
            raise CallFailed(result.text)
        return result.text

    def _asked(self, call: ToolCall) -> ToolResult:
        if self._injection is None or self._place is None:
            return self._world.step(call)
        mechanism, place = self._injection.mechanism, self._place._replace(turn=len(self._turns))
        allowed = mechanism.on_tool_call(place, call)
        if isinstance(allowed, HeldBack):
            return allowed.reply
        earlier = [turn.result for turn in self._turns if turn.result is not None]
        return mechanism.on_tool_reply(place, call, self._world.step(allowed), earlier)

    def _episode(self, index: int, stop: str, token_ids: Sequence[int], own: Sequence[bool]) -> Episode:
        """The episode so far as our rewards take it."""
        final = self._world.evaluate(self.task.checks)
        turns = tuple(self._turns)
        ids, mask, zeros = tuple(token_ids), tuple(own), (0.0,) * len(token_ids)
        return Episode(
            self.task.case_id, "clean", index, ids, mask, zeros, turns, 0, stop, self._start, final
        )


class Rewards:
    """TRL's reward functions `success`, `progress` and `quality`, which it asks in this order."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        group_size: int,
        rules: RewardRules,
        injection: Injection | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._group_size = group_size
        self._rules = rules
        self._injection = injection
        self._marks = {str(tokenizer.convert_tokens_to_ids(mark)): mark for mark in (_TOOL, _ASSISTANT)}
        self._parts: list[RewardParts] = []

    def success(
        self, environments: Any, completions: Any, completion_ids: Any, prompts: Any, **_: Any
    ) -> Any:
        """Judges the episodes of a generation: 1 for each whose state checks pass."""
        episodes = [
            self._judged(row, *one)
            for row, one in enumerate(zip(environments, completions, completion_ids, prompts, strict=True))
        ]
        groups = list(_grouped(episodes, self._group_size))
        if self._injection is not None:
            groups = self._injection.rewarded(groups)
        self._parts = [
            e.reward_parts for group in groups for e in group.episodes if e.reward_parts is not None
        ]
        return [part.success for part in self._parts]

    def progress(self, **_: Any) -> Any:
        """Of the same episodes."""
        return [part.progress for part in self._parts]

    def quality(self, **_: Any) -> Any:
        """Of the same episodes."""
        return [part.quality for part in self._parts]

    def _judged(self, row: int, world: Calculator, completion: Any, ids: Any, prompt: Any) -> Episode:
        asked = list(self._tokenizer.apply_chat_template(prompt[:2], tokenize=True, return_dict=False))
        own = [False] * len(asked) + list(self._own(ids))
        index = row % self._group_size
        episode = world._episode(index, stop_of(completion[-1]), [*asked, *ids], own)
        return dataclasses.replace(episode, reward_parts=reward_parts(world.task, episode, self._rules))

    def _own(self, ids: Sequence[int]) -> Iterator[bool]:
        """Whether the policy wrote a token: all but replies, from their mark to that of the next answer."""
        inside = False
        for token in ids:
            mark = self._marks.get(str(int(token)))
            inside = inside or mark == _TOOL
            yield not inside
            inside = inside and mark != _ASSISTANT


def stop_of(message: Mapping[str, Any]) -> str:
    """How an episode ended, by its last message."""
    if message.get("role") == "tool" or message.get("tool_calls"):
        return "max_turns"
    return "malformed" if _OPEN in str(message.get("content", "")) else "final_answer"


def _grouped(episodes: Sequence[Episode], size: int) -> Iterator[Group]:
    for first in range(0, len(episodes), size):
        members = tuple(episodes[first : first + size])
        yield Group(members[0].case_id, "clean", members)
