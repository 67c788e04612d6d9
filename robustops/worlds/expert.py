"""Building blocks of scripted experts: reads and writes that recover from every tool fault.

They act on what an agent can see, namely the reply's text: an error code, a missing end, an `incomplete`
mark, a row about something else. A block is a generator: it yields calls, is sent results, and returns
what it learnt (`row = yield from read_row(...)`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from robustops.errors import TaskError
from robustops.records import ToolCall, ToolResult
from robustops.worlds.database import Row
from robustops.worlds.time_limit import TOOL_TIMEOUT

#: Error codes that promise that the call was not executed.
NOT_EXECUTED = "TEMPORARILY_UNAVAILABLE"
#: Error code of a call whose outcome is unknown: it may have been executed.
NO_RECEIPT = "NO_RECEIPT"
#: Error codes of calls without an answer.
NO_ANSWER = (NO_RECEIPT, TOOL_TIMEOUT)
#: How often a block repeats a call before it gives up.
ATTEMPTS = 8

Read = Generator[ToolCall, ToolResult, Row | None]
Rows = Generator[ToolCall, ToolResult, list[Row]]
Write = Generator[ToolCall, ToolResult, Row]


class ExpertError(TaskError):
    """The scripted expert met a reply that it has no answer to."""


def error_code(result: ToolResult) -> str | None:
    """The code of a structured refusal, or None."""
    body = result.data
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        return str(body["error"].get("code"))
    return None


def same(actual: Any, expected: Any) -> bool:
    """Equality as an agent sees it; text regardless of case."""
    if isinstance(actual, str) and isinstance(expected, str):
        return actual.lower() == expected.lower()
    return bool(actual == expected)


def matches(row: Any, match: Mapping[str, Any]) -> bool:
    """Whether a row has all the expected values."""
    return isinstance(row, dict) and all(k in row and same(row[k], v) for k, v in match.items())


def _give_up(call: ToolCall, result: ToolResult) -> ExpertError:
    return ExpertError(f"no use repeating {call.key()}: {result.text[:200]}")


def read_row(
    name: str, arguments: dict[str, Any], *, match: Mapping[str, Any], optional: bool = False
) -> Read:
    """Ask for one object until the reply is about it.

    match: columns that the row must have with these values (at least one, it tells a reply about another
    object or another request); optional: a NOT_FOUND refusal returns None.
    """
    call = ToolCall(name, arguments)
    result = ToolResult("")
    for _ in range(ATTEMPTS):
        result = yield call
        if matches(result.data, match):
            row: Row = result.data
            return row
        code = error_code(result)
        if code == "NOT_FOUND" and optional:
            return None
        if code not in (None, NOT_EXECUTED, *NO_ANSWER):
            break
    raise _give_up(call, result)


def read_rows(
    name: str, arguments: dict[str, Any], *, rows: str, match: Mapping[str, Any] | None = None
) -> Rows:
    """Ask for a list until it is complete; rows that do not match are left out (an ignored filter).

    rows: key of the list in the reply; a reply that is a bare list will do, too.
    """
    call = ToolCall(name, arguments)
    result = ToolResult("")
    for _ in range(ATTEMPTS):
        result = yield call
        data = {rows: result.data} if isinstance(result.data, list) else result.data
        if isinstance(data, dict) and isinstance(data.get(rows), list) and not data.get("incomplete"):
            found = [row for row in data[rows] if matches(row, match or {})]
            if found or not data[rows] or not _foreign(data[rows], match or {}):
                return found
        if error_code(result) not in (None, NOT_EXECUTED, *NO_ANSWER):
            break
    raise _give_up(call, result)


def _foreign(rows: list[Row], match: Mapping[str, Any]) -> bool:
    """Rows that are all about one other object: a mixed-up reply rather than an unfiltered one."""
    return bool(match) and len({tuple(row.get(name) for name in match) for row in rows}) == 1


def write(name: str, arguments: dict[str, Any], *, landed: Callable[[], Read]) -> Write:
    """Make a change exactly once.

    landed: a block that reads back and returns the changed row, or None if the change is not there; it
    runs only when the receipt was lost.
    """
    call = ToolCall(name, arguments)
    result = ToolResult("")
    for _ in range(ATTEMPTS):
        result = yield call
        code = error_code(result)
        if code is None and isinstance(result.data, dict):
            row: Row = result.data
            return row
        if code == NOT_EXECUTED:
            continue
        if code not in (None, *NO_ANSWER):
            break
        seen = yield from landed()
        if seen is not None:
            return seen
    raise _give_up(call, result)


def seen_row(
    name: str, arguments: dict[str, Any], *, rows: str, match: Mapping[str, Any]
) -> Callable[[], Read]:
    """A `landed` block: look for a matching row in a list."""

    def look() -> Read:
        found = yield from read_rows(name, arguments, rows=rows, match=match)
        return found[0] if found else None

    return look


def seen_values(
    name: str, arguments: dict[str, Any], *, identity: Mapping[str, Any], values: Mapping[str, Any]
) -> Callable[[], Read]:
    """A `landed` block: read one object back and see whether it has the new values."""

    def look() -> Read:
        row = yield from read_row(name, arguments, match=identity)
        return row if row is not None and matches(row, values) else None

    return look


def seen_in(
    name: str, arguments: dict[str, Any], *, rows: str, match: Mapping[str, Any], gone: bool = False
) -> Callable[[], Read]:
    """A `landed` block: a list about `arguments` has a row that matches (`gone`: has none)."""

    def look() -> Read:
        found = yield from read_rows(name, arguments, rows=rows, match=arguments)
        hits = [row for row in found if matches(row, match)]
        if gone:
            return None if hits else {"deleted": True}
        return hits[0] if hits else None

    return look


def or_refused(block: Write, code: str) -> Read:
    """Run a write, but return None where it is refused with this code."""
    call = next(block)
    while True:
        result = yield call
        if error_code(result) == code:
            block.close()
            return None
        try:
            call = block.send(result)
        except StopIteration as stop:
            row: Row = stop.value
            return row
