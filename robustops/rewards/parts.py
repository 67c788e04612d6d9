"""Raw reward parts of one episode: success, dependency-gated progress, quality (RobustOps).

    S = 1 if all checks pass at the end, else 0
    P = (gated count at the end - gated count at the continuation start) / number of checks
    Q = S * (1 - B / max(1, C))

C counts the tool calls that the episode itself attempted (after an inherited prefix), B the bad ones
among them. The source asks for evidence and spares legitimate retries and state checks; the evidence
taken here is in `bad_turns` and `repeated_reads`.
"""

from __future__ import annotations

from collections.abc import Sequence

from robustops.errors import RewardError
from robustops.records import Episode, RewardParts, Task, Turn
from robustops.worlds.checks import gated_count

#: A no-progress read is marked from this occurrence on.
REPEATS = 3


def reward_parts(task: Task, episode: Episode) -> RewardParts:
    """S in {0, 1}, P in [-1, 1] (negative where valid progress was undone), Q in [0, 1].

    Raises RewardError for an episode that failed, belongs to another task, or was not checked: such an
    episode is invalid and must be left out, never counted as reward 0.
    """
    _require_checked(task, episode)
    success = float(all(episode.checks_final))
    names = [check.name for check in task.checks]
    start = gated_count(names, episode.checks_start, task.prerequisites)
    final = gated_count(names, episode.checks_final, task.prerequisites)
    bad, attempts = sum(bad_turns(episode)), sum(attempted_turns(episode))
    return RewardParts(
        success=success,
        progress=(final - start) / len(names),
        quality=success * (1 - bad / max(1, attempts)),
    )


def attempted_turns(episode: Episode) -> tuple[bool, ...]:
    """One bool a turn: the episode itself tried to call a tool here. Inherited turns are False.

    A message cut off by the token budget is no attempt: whatever it began to call was never sent.
    """
    return _own(episode, [_is_attempt(episode, place) for place in range(len(episode.turns))])


def bad_turns(episode: Episode) -> tuple[bool, ...]:
    """One bool a turn: a confirmed bad call. Inherited turns are False.

    Bad is a call that the tool itself refused (an error reply that was injected is not the agent's
    doing), a call that could not be read, and a no-progress repeated read (`repeated_reads`).
    """
    repeated = repeated_reads(episode)
    flags = [
        repeated[place]
        or _is_malformed(episode, place)
        or (_is_attempt(episode, place) and _is_refused(episode.turns[place]))
        for place in range(len(episode.turns))
    ]
    return _own(episode, flags)


def repeated_reads(episode: Episode) -> tuple[bool, ...]:
    """One bool a turn: third or later occurrence of a call that brought nothing new. Inherited: False.

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
            repeat = seen >= REPEATS
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
    return turn.result is not None and turn.result.is_error and turn.fault is None


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
