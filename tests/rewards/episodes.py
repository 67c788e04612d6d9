"""Hand-made tasks and episodes for reward and credit tests."""

from __future__ import annotations

from collections.abc import Sequence

from robustops.records import (
    DatabaseSpec,
    Episode,
    EpisodeError,
    FaultEvent,
    StateCheck,
    Task,
    ToolCall,
    ToolResult,
    Turn,
)


def make_task(checks: Sequence[str] = ("A", "B", "C"), edges: Sequence[tuple[str, str]] = ()) -> Task:
    return Task(
        id="t1",
        domain="itsm",
        template="x",
        policy="p",
        prompt="q",
        tools=(),
        distractors=(),
        database=DatabaseSpec(),
        acting_user=None,
        checks=tuple(StateCheck(name, "SELECT 1", 1) for name in checks),
        prerequisites=tuple(edges),
    )


def fault(subtype: str = "temporary_refusal") -> FaultEvent:
    return FaultEvent("known_not_executed", subtype, 0, "get")


def read(name: str = "get", reply: str = "{}", injected: FaultEvent | None = None, **arguments: int) -> Turn:
    """A call that changed nothing."""
    return Turn("", ToolCall(name, arguments), ToolResult(reply), fault=injected)


def write(name: str = "set", **arguments: int) -> Turn:
    return Turn("", ToolCall(name, arguments), ToolResult('{"ok":true}'), changed=True)


def refused(name: str = "get", injected: FaultEvent | None = None, **arguments: int) -> Turn:
    return Turn("", ToolCall(name, arguments), ToolResult('{"error":{}}', is_error=True), fault=injected)


def malformed() -> Turn:
    return Turn("<tool_call>{", None, ToolResult('{"error":{}}', is_error=True))


def answer() -> Turn:
    return Turn("Done.", None, None)


def make_episode(
    turns: Sequence[Turn],
    *,
    start: Sequence[bool] = (False, False, False),
    final: Sequence[bool] = (True, True, True),
    inherited: int = 0,
    stop: str = "final_answer",
    error: EpisodeError | None = None,
    case_id: str = "t1/oracle",
) -> Episode:
    """Turns get spans of three tokens after a prompt of two; a tool reply takes one token."""
    placed, place, mask = [], 2, [False, False]
    for number, turn in enumerate(turns):
        placed.append(Turn(**{**vars(turn), "start": place, "end": place + 3}))
        mask += [number >= inherited] * 3 + [False]
        place += 4
    return Episode(
        case_id=case_id,
        condition="clean",
        index=0,
        token_ids=tuple(range(len(mask))),
        loss_mask=tuple(mask),
        old_log_probs=(0.0,) * len(mask),
        turns=tuple(placed),
        inherited_turns=inherited,
        stop=stop,
        checks_start=tuple(start),
        checks_final=tuple(final),
        error=error,
    )
