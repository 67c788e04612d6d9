"""One conversation as a small state machine: request -> completion -> tool -> request ..."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from robustops.errors import ToolError, WorldError
from robustops.faults.plan import FaultPlan
from robustops.faults.wrapper import FaultyWorld, Opportunity
from robustops.records import Episode, EpisodeError, FaultEvent, Task, ToolCall, ToolResult, Turn
from robustops.rollout.hooks import NO_HOOKS, HeldBack, Place, RolloutHooks
from robustops.rollout.render import Message, Renderer, call_text, chat_tools
from robustops.rollout.sampler import Completion, Request
from robustops.rollout.tool_calls import ask_tool
from robustops.seeding import child_seed
from robustops.worlds.environment import Snapshot
from robustops.worlds.toolset import refusal

#: What an environment replies that has not noticed a final answer.
NO_REPLY = ToolResult("")
MALFORMED = refusal(ToolError("MALFORMED_CALL", "a call is JSON with a name and arguments"))


@dataclass(frozen=True)
class Limits:
    """Budgets in tokens and turns: context_tokens holds everything, answer_tokens is one message.

    min_new_tokens: shortest message, without its stop token; repetition_penalty: of the sampler, 1: none;
    min_turns: turns before which no environment ends an episode; tool_retries: how often a call is made
    again that a tool out of order did not execute; check_replies: a reply that is not what the world said
    is replaced by that; max_answers: the final answer that ends an episode whatever the environment says,
    None: it is believed; reread_calls: a call refused as unreadable that can be read is made after all.
    """

    context_tokens: int
    answer_tokens: int
    max_turns: int
    min_new_tokens: int = 0
    repetition_penalty: float = 1.0
    min_turns: int = 0
    tool_retries: int = 0
    check_replies: bool = False
    max_answers: int | None = None
    reread_calls: bool = False


@dataclass(frozen=True)
class Prefix:
    """What the members of a fault group share: dialogue, turns and world after the fault."""

    token_ids: tuple[int, ...]
    turns: tuple[Turn, ...]
    snapshot: Snapshot


@dataclass(frozen=True)
class EpisodeStart:
    """Where an episode begins. seed: fixes its sampling; plan: a fault to inject on the way; prefix:
    continue from a shared snapshot; observe: record the opportunities for faults without injecting; place:
    of its first message in a training run, for hooks.
    """

    task: Task
    condition: str
    index: int
    seed: int
    plan: FaultPlan | None = None
    prefix: Prefix | None = None
    observe: bool = False
    place: Place | None = None


@dataclass
class EpisodeRun:
    """The episode in flight. `advance` is called with each completion until `episode` is set.

    chat: the sampler takes messages rather than tokens; failures: errors of earlier attempts at the same
    start, of which nothing else is kept. A later attempt samples with other seeds. A WorldError at any
    moment, the state checks included, ends the episode as invalid; a tool call is never executed twice.
    """

    session: int
    start: EpisodeStart
    world: FaultyWorld
    renderer: Renderer
    limits: Limits
    chat: bool = False
    weight_version: int = 0
    failures: tuple[EpisodeError, ...] = ()
    hooks: RolloutHooks = NO_HOOKS
    asked: Request | None = None
    episode: Episode | None = None
    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    inherited: int = 0
    checks_start: tuple[bool, ...] = ()

    def begin(self) -> Request | None:
        """Put the world into its start state; the first request, or None if the episode is over at once."""
        try:
            self._enter()
            return self._request()
        except WorldError as error:
            self._fail("world", str(error))
            return None

    def advance(self, completion: Completion) -> Request | None:
        """Take one assistant message: run its call and ask for the next, or end the episode."""
        if completion.error is not None:
            self._fail("sampler", completion.error)
            return None
        if self.place is not None and self.asked is not None:
            stops = self.renderer.stop_ids
            completion = self.hooks.on_completion(self.place, self.asked, completion, stops)
        if (short := self._too_short(completion)) is not None:
            self._fail("sampler", short)
            return None
        message, ids, log_probs = self._read(completion)
        begin = len(self.token_ids)
        self._extend(ids, log_probs)
        if not completion.finished:
            self._turn(message, None, begin)
            self._end("answer_budget")
            return None
        try:
            if message.call is None and not message.malformed:
                return self._answer(message, begin)
            return self._act(message, begin)
        except WorldError as error:
            self._fail("world", str(error))
            return None

    @property
    def attempts(self) -> int:
        """How often the episode was begun, this time included."""
        return len(self.failures) + 1

    @property
    def seed(self) -> int:
        """The start's seed for the first attempt, one derived from it for each later one."""
        seed = self.start.seed
        return child_seed(seed, "attempt", self.attempts) if self.failures else seed

    @property
    def place(self) -> Place | None:
        """Of the message that comes next, or whose call is being made; None outside training."""
        place = self.start.place
        return None if place is None else place._replace(attempt=self.attempts, turn=len(self.turns))

    @property
    def opportunities(self) -> list[Opportunity]:
        """Calls before which a fault could have been injected (only when observing)."""
        return list(self.world.opportunities)

    # ---------------------------------------------------------------------------------------------
    def _enter(self) -> None:
        """The start state, its dialogue and its state checks."""
        start = self.start
        if start.prefix is None:
            self.world.reset(start.task)
            specs = list(self.world.specs().values())
            self._extend(self.renderer.prompt(start.task, specs))
        else:
            self.world.restore(start.prefix.snapshot)
            self._extend(start.prefix.token_ids)
            self.turns = list(start.prefix.turns)
            self.inherited = len(self.turns)
        self.checks_start = self.world.evaluate(start.task.checks)

    def _answer(self, message: Message, begin: int) -> Request | None:
        """A final answer ends the episode, unless the environment has not noticed it."""
        overlooked = self.place is not None and self.hooks.overlooks_answer(self.place)
        self._turn(message, None, begin)
        answers = sum(turn.call is None and turn.result is None for turn in self.turns)
        most = self.limits.max_answers
        if overlooked and (most is None or answers < most):
            self._extend(self.renderer.result(NO_REPLY))
            return self._request()
        self._end("final_answer")
        return None

    def _act(self, message: Message, begin: int) -> Request | None:
        event: FaultEvent | None = None
        said: str | None = None
        before = self.world.changes
        if message.call is None:
            result = MALFORMED
        else:
            reply = self._reply(message.call)
            result, executed = (reply.reply, False) if isinstance(reply, HeldBack) else (reply, True)
            if isinstance(reply, HeldBack) and reply.unread:
                message = dataclasses.replace(message, call=None, malformed=True)
            if executed:
                event, said = self.world.last_event, self.world.said
            if event is not None:
                event = dataclasses.replace(event, turn=len(self.turns))
        self._turn(message, result, begin, event, self.world.changes != before, said)
        self._extend(self.renderer.result(result))
        return self._request()

    def _reply(self, call: ToolCall) -> ToolResult | HeldBack:
        """What the agent sees of a call. A probe's calls are made once: they are matched to its turns."""
        return ask_tool(
            self.world.step,
            call,
            self.hooks,
            self.place,
            [turn.result for turn in self.turns if turn.result is not None],
            retries=0 if self.start.observe else self.limits.tool_retries,
            checked=self.limits.check_replies,
            reread=self.limits.reread_calls,
        )

    def _too_short(self, completion: Completion) -> str | None:
        """Why an engine that was told of a shortest message cannot have sampled this one."""
        content = len(completion.token_ids) - 1
        if not completion.finished or not completion.token_ids or content >= self.limits.min_new_tokens:
            return None
        return (
            f"the sampler ended a message after {content} tokens, sampler.min_new_tokens is "
            f"{self.limits.min_new_tokens}"
        )

    def _read(self, completion: Completion) -> tuple[Message, tuple[int, ...], tuple[float, ...]]:
        """The message and its ids; text-only samplers are tokenised here, once, and not trained on."""
        if completion.token_ids:
            return self.renderer.parse(completion.token_ids), completion.token_ids, completion.log_probs
        if completion.call is not None:
            text = call_text(completion.call)
            ids = self.renderer.answer(text)
            return Message(text, completion.call), tuple(ids), (0.0,) * len(ids)
        ids = self.renderer.answer(completion.text or "")
        return self.renderer.parse(ids), tuple(ids), (0.0,) * len(ids)

    def _extend(self, ids: list[int] | tuple[int, ...], log_probs: tuple[float, ...] | None = None) -> None:
        self.token_ids.extend(ids)
        self.loss_mask.extend([log_probs is not None] * len(ids))
        self.log_probs.extend(log_probs if log_probs is not None else [0.0] * len(ids))

    def _turn(
        self,
        message: Message,
        result: ToolResult | None,
        begin: int,
        event: FaultEvent | None = None,
        changed: bool = False,
        said: str | None = None,
    ) -> None:
        end = len(self.token_ids)
        self.turns.append(Turn(message.text, message.call, result, begin, end, event, changed, said))

    def _request(self) -> Request | None:
        if len(self.turns) >= self.limits.max_turns or self._ended_early():
            self._end("max_turns")
            return None
        if len(self.token_ids) + self.limits.answer_tokens > self.limits.context_tokens:
            self._end("context")
            return None
        self.asked = self._asked()
        return self.asked

    def _ended_early(self) -> bool:
        """Whether the environment ends the episode here, in a turn from which on it is believed."""
        own, place = len(self.turns) - self.inherited, self.place
        if place is None or own == 0:
            return False
        ended = self.hooks.ends_after(place, len(self.turns), self.limits.max_turns)
        return ended and own >= self.limits.min_turns

    def _asked(self) -> Request:
        task, limits = self.start.task, self.limits
        request = Request(
            session=self.session,
            token_ids=tuple(self.token_ids),
            max_new_tokens=limits.answer_tokens,
            seed=child_seed(self.seed, "turn", len(self.turns)),
            messages=self._messages() if self.chat else (),
            tools=tuple(chat_tools(self.world.specs().values())) if self.chat else (),
            task=task,
            history=self._history() if self.chat else (),
            min_new_tokens=limits.min_new_tokens,
            repetition_penalty=limits.repetition_penalty,
            place=self.place,
        )
        if request.place is None:
            return request
        changed = self.hooks.on_request(request.place, request)
        floor = min(limits.min_new_tokens + 1, limits.answer_tokens) if limits.min_new_tokens else 1
        return dataclasses.replace(changed, max_new_tokens=max(changed.max_new_tokens, floor))

    def _history(self) -> tuple[tuple[ToolCall, ToolResult], ...]:
        return tuple((t.call, t.result) for t in self.turns if t.call is not None and t.result is not None)

    def _messages(self) -> tuple[dict[str, object], ...]:
        """The conversation in chat form, for endpoints that take messages."""
        task = self.start.task
        messages: list[dict[str, object]] = [
            {"role": "system", "content": task.policy},
            {"role": "user", "content": task.prompt},
        ]
        for turn in self.turns:
            messages.append({"role": "assistant", "content": turn.text, "call": turn.call})
            if turn.result is not None:
                messages.append({"role": "tool", "content": turn.result.text})
        return tuple(messages)

    def _drop_overflow(self) -> None:
        """A last reply that no message follows must not make the episode longer than its context."""
        if self.turns and len(self.token_ids) > self.limits.context_tokens:
            for values in (self.token_ids, self.loss_mask, self.log_probs):
                del values[self.turns[-1].end :]

    def _end(self, stop: str, error: EpisodeError | None = None) -> None:
        self._drop_overflow()
        checks: tuple[bool, ...] = ()
        if error is None:
            try:
                checks = self.world.evaluate(self.start.task.checks)
            except WorldError as failure:  # a state that cannot be checked is no state worth 0
                stop, error = "error", EpisodeError("world", str(failure))
        self.episode = Episode(
            case_id=self.start.task.case_id,
            condition=self.start.condition,
            index=self.start.index,
            token_ids=tuple(self.token_ids),
            loss_mask=tuple(self.loss_mask),
            old_log_probs=tuple(self.log_probs),
            turns=tuple(self.turns),
            inherited_turns=self.inherited,
            stop=stop,
            checks_start=self.checks_start,
            checks_final=checks,
            error=error,
            weight_version=self.weight_version,
        )

    def _fail(self, boundary: str, message: str) -> None:
        self._end("error", EpisodeError(boundary, message))
