"""Raw reward parts of one episode: success, dependency-gated progress, quality (RobustOps).

    S = 1 if all checks pass at the end, else 0
    P = (gated count at the end - gated count at the continuation start) / number of checks
    Q = S * (1 - B / max(1, C))

C counts the tool calls that the episode itself attempted (after an inherited prefix), B the bad ones
among them. The source asks for evidence and spares legitimate retries and state checks; the evidence
taken here is in `bad_turns` and `repeated_reads`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from robustops.errors import RewardError
from robustops.records import Episode, EpisodeError, RewardParts, Task, Turn
from robustops.worlds.checks import gated_count
from robustops.worlds.time_limit import TOOL_TIMEOUT

Reward = Callable[[Task, Episode], RewardParts]


@dataclass(frozen=True)
class RewardRules:
    """What counts. gated: progress needs the prerequisites of a check to have passed too; repeats: a
    no-progress read is bad from this occurrence on, None: never.
    """

    gated: bool = True
    repeats: int | None = 3


@dataclass(frozen=True)
class CallEvidence:
    """One bool a turn: the episode itself tried to call a tool here; this call is confirmed as bad."""

    attempted: tuple[bool, ...]
    bad: tuple[bool, ...]


def reward_parts(task: Task, episode: Episode, rules: RewardRules = RewardRules()) -> RewardParts:
    """S in {0, 1}, P in [-1, 1] (negative where valid progress was undone), Q in [0, 1].

    Raises RewardError for an episode that failed, belongs to another task, or was not checked: such an
    episode is invalid and must be left out, never counted as reward 0.
    """
    _require_checked(task, episode)
    success = float(all(episode.checks_final))
    names = [check.name for check in task.checks]
    edges = task.prerequisites if rules.gated else ()
    start = gated_count(names, episode.checks_start, edges)
    final = gated_count(names, episode.checks_final, edges)
    evidence = call_evidence(episode, rules)
    bad, attempts = sum(evidence.bad), sum(evidence.attempted)
    return RewardParts(
        success=success,
        progress=(final - start) / len(names),
        quality=success * (1 - bad / max(1, attempts)),
    )


def rewarded(task: Task, episode: Episode, reward: Reward = reward_parts) -> Episode:
    """The episode with its reward parts. Where they cannot be had it is invalid, never worth 0: an episode
    that failed before keeps its error, one whose reward fails or is not finite gets one.
    """
    if episode.error is not None:
        return episode
    try:
        parts = reward(task, episode)
        if not all(map(math.isfinite, (parts.success, parts.progress, parts.quality))):
            raise RewardError(f"the reward of {episode.case_id} is not finite: {parts}")
    except RewardError as error:
        return dataclasses.replace(episode, error=EpisodeError("reward", str(error)), stop="error")
    return dataclasses.replace(episode, reward_parts=parts)


def call_evidence(episode: Episode, rules: RewardRules = RewardRules()) -> CallEvidence:
    """Which turns of the episode are attempts, and which of these are bad; inherited turns are neither."""
    return CallEvidence(attempted_turns(episode), bad_turns(episode, rules.repeats))


def attempted_turns(episode: Episode) -> tuple[bool, ...]:
    """One bool a turn: the episode itself tried to call a tool here. Inherited turns are False.

    A message cut off by the token budget is no attempt: whatever it began to call was never sent.
    """
    return _own(episode, [_is_attempt(episode, place) for place in range(len(episode.turns))])


def bad_turns(episode: Episode, repeats: int | None = 3) -> tuple[bool, ...]:
    """One bool a turn: a confirmed bad call. Inherited turns are False.

    Bad is a call that the tool itself refused (an injected error reply or a timeout is not the agent's
    doing), a call that could not be read, and a no-progress repeated read (`repeated_reads`).
    """
    repeated = repeated_reads(episode, repeats)
    flags = [
        repeated[place]
        or _is_malformed(episode, place)
        or (_is_attempt(episode, place) and _is_refused(episode.turns[place]))
        for place in range(len(episode.turns))
    ]
    return _own(episode, flags)


def repeated_reads(episode: Episode, repeats: int | None = 3) -> tuple[bool, ...]:
    """One bool a turn: an occurrence of a call that brought nothing new, the `repeats`-th or a later one.
    Inherited: False; repeats None: all False.

    Occurrences are equal calls (same tool, same arguments) that changed nothing and got the same reply.
    The count starts anew after any change of the database (reading back a write is a state check), after
    a reply that differs (new information), and after a fault on that call (asking again is a legitimate
    retry; the faulty reply itself is no occurrence). Reads in an inherited prefix count as earlier
    occurrences, since the agent has their replies before it. Refused calls are bad by themselves.
    """
    counts: dict[str, tuple[str, int]] = {}
    flags = []
    for turn in episode.turns:
        repeat = False
        if turn.changed:
            counts.clear()
        elif turn.call is not None and turn.fault is not None:
            counts.pop(turn.call.key(), None)
        elif turn.call is not None and turn.result is not None and not turn.result.is_error:
            key = turn.call.key()
            reply, seen = counts.get(key, ("", 0))
            seen = seen + 1 if reply == turn.result.text else 1
            counts[key] = (turn.result.text, seen)
            repeat = repeats is not None and seen >= repeats
        flags.append(repeat)
    return _own(episode, flags)


def _is_malformed(episode: Episode, place: int) -> bool:
    """An unreadable call: answered with a refusal, or the very reason why the episode ended."""
    turn = episode.turns[place]
    if turn.call is not None:
        return False
    return turn.result is not None or (episode.stop == "malformed" and place == len(episode.turns) - 1)


def _is_attempt(episode: Episode, place: int) -> bool:
    turn = episode.turns[place]
    return (turn.call is not None and turn.result is not None) or _is_malformed(episode, place)


def _is_refused(turn: Turn) -> bool:
    """An error reply that is the call's own fault: neither injected nor for want of an answer."""
    result = turn.result
    if result is None or not result.is_error or turn.fault is not None:
        return False
    error = result.data.get("error") if isinstance(result.data, dict) else None
    return not (isinstance(error, dict) and error.get("code") == TOOL_TIMEOUT)


def _own(episode: Episode, flags: Sequence[bool]) -> tuple[bool, ...]:
    return tuple(flag and place >= episode.inherited_turns for place, flag in enumerate(flags))


def _require_checked(task: Task, episode: Episode) -> None:
    where = f"episode {episode.index} of {episode.case_id} ({episode.condition})"
    if episode.error is not None:
        raise RewardError(
            f"{where} failed at the {episode.error.boundary} boundary: {episode.error.message}; "
            "leave it out of the batch"
        )
    if episode.case_id != task.case_id:
        raise RewardError(f"{where} was given the task {task.case_id}; pass the task it was sampled on")
    expected = len(task.checks)
    found = (len(episode.checks_start), len(episode.checks_final))
    if expected == 0 or found != (expected, expected):
        raise RewardError(
            f"{where} has {found[0]} start and {found[1]} final check results; the task has {expected} "
            "checks, and a reward needs one result of each at both ends (and at least one check)"
        )
