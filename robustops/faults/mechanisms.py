"""The seven tool faults as pure functions from a call and its native reply to the reply that is seen.

A mechanism is eligible if the call, the native reply and the state allow it to keep its promise (a lost
receipt needs a write that succeeded and changed the database) and if the faulty reply leaves evidence that
an agent can notice. No name or label of the task plays a part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from robustops.errors import ToolError, unknown_name
from robustops.faults.plan import SUBTYPES
from robustops.records import ToolCall, ToolResult, canonical_json
from robustops.worlds.expert import NO_RECEIPT, NOT_EXECUTED, same
from robustops.worlds.toolset import ToolSpec, refusal, reply_text

#: Shortest reply that is worth cutting, in characters.
SHORTEST_CUT = 24
#: How many other rows are tried for a reply about another object at most.
SIBLING_TRIES = 12
#: Optional arguments that page through a list: they are no filters.
PAGING = frozenset(
    {"limit", "offset", "page", "pagesize", "pagetoken", "maxresults", "top", "skip", "cursor", "count"}
    | {"perpage", "orderby", "sort", "sortby", "order"}
)
REFUSED = refusal(ToolError(NOT_EXECUTED, "the service is busy; the call was not executed"))
UNKNOWN_OUTCOME = refusal(ToolError(NO_RECEIPT, "no reply arrived; the call may have been executed"))

Exchange = tuple[ToolCall, ToolResult]


@dataclass(frozen=True)
class Context:
    """All that a mechanism may look at.

    result: the native reply; changed: whether the call changed the database; earlier: the native replies
    of the episode so far, oldest first; read: runs another read call and returns its native reply;
    rows: the distinct values of columns of a table, in table order; rng: draws among admissible faulty
    replies (it never decides on eligibility).
    """

    call: ToolCall
    spec: ToolSpec
    result: ToolResult
    changed: bool
    earlier: Sequence[Exchange]
    read: Callable[[ToolCall], ToolResult]
    rows: Callable[[str, Sequence[str]], Sequence[Sequence[Any]]]
    rng: Random


def faulty_reply(subtype: str, context: Context) -> ToolResult | None:
    """What the agent sees instead of the native reply; None where the mechanism is not eligible."""
    mechanism = _MECHANISMS.get(subtype)
    if mechanism is None:
        raise unknown_name("fault subtype", subtype, SUBTYPES)
    if context.result.is_error:
        return None
    return mechanism(context)


def eligible(subtype: str, context: Context) -> bool:
    """Whether the mechanism could strike this call."""
    return faulty_reply(subtype, context) is not None


def inject(subtype: str, context: Context) -> ToolResult:
    """The faulty reply of an eligible call; ValueError (a bug of the caller) for any other."""
    reply = faulty_reply(subtype, context)
    if reply is None:
        raise ValueError(f"{context.call.key()} is not eligible for {subtype}; ask eligible() first")
    return reply


def _temporary_refusal(context: Context) -> ToolResult | None:
    """The service is busy. Whoever injects it makes sure that the call was not executed."""
    return REFUSED


def _lost_receipt(context: Context) -> ToolResult | None:
    """The write is committed, its reply gets lost."""
    return UNKNOWN_OUTCOME if context.spec.kind == "write" and context.changed else None


def _missing_rows(context: Context) -> ToolResult | None:
    """At least one row of a list is absent; the reply says that it is incomplete."""
    data = context.result.data
    key = list_key(data)
    if context.spec.kind != "read" or context.spec.identity or key is None or len(data[key]) < 2:
        return None
    rows = data[key]
    kept = sorted(context.rng.sample(range(len(rows)), context.rng.randrange(len(rows))))
    return ToolResult(reply_text({**data, key: [rows[i] for i in kept], "incomplete": True}))


def _truncated_body(context: Context) -> ToolResult | None:
    """The body ends early: 30 to 70 % of it arrive, which is no JSON any more."""
    text = context.result.text
    if context.spec.kind != "read" or len(text) < SHORTEST_CUT or not text.startswith(("{", "[")):
        return None
    return ToolResult(text[: round(len(text) * context.rng.uniform(0.3, 0.7))])


def _other_request(context: Context) -> ToolResult | None:
    """The reply of an earlier, different request of this episode.

    Reads only: a write whose reply is lost to another request is an unknown commit. Replies that could
    just as well answer this request are left out, since nobody could notice them.
    """
    if context.spec.kind != "read":
        return None
    texts = [
        result.text
        for call, result in context.earlier
        if not result.is_error
        and call.key() != context.call.key()
        and result.text != context.result.text
        and _tellable(context, result.data)
    ]
    choices = list(dict.fromkeys(texts))
    return ToolResult(context.rng.choice(choices)) if choices else None


def _tellable(context: Context, data: Any) -> bool:
    """Whether a reply shows that it does not answer the call."""
    if not isinstance(data, dict):
        return True
    asked = {_plain(name): value for name, value in context.call.arguments.items()}
    identity = context.spec.identity
    if identity:
        columns = [(name, target.rpartition(".")[2]) for name, target in identity.items()]
        given = [(column, context.call.arguments[n]) for n, column in columns if n in context.call.arguments]
        return any(not same(data.get(column), value) for column, value in given)
    key = list_key(context.result.data)
    if key is None or not isinstance(data.get(key), list):
        return key is not None
    # Rows of the same kind: they must all carry one other value of an argument that was given.
    seen: dict[str, set[str]] = {}
    for row in data[key]:
        for name, value in row.items() if isinstance(row, dict) else ():
            seen.setdefault(_plain(name), set()).add(canonical_json(value).lower())
    return any(
        len(v) == 1 and canonical_json(asked[n]).lower() not in v for n, v in seen.items() if n in asked
    )


def _other_object(context: Context) -> ToolResult | None:
    """The same tool's reply about another object of the same kind."""
    if context.spec.kind != "read" or not context.spec.identity:
        return None
    # The table of the last identity argument is the most specific one (event of a calendar).
    tables = dict.fromkeys(target.partition(".")[0] for target in reversed(context.spec.identity.values()))
    for table in tables:
        found = _siblings(context, table)
        if found:
            return context.rng.choice(found)
    return None


def _siblings(context: Context, table: str) -> list[ToolResult]:
    """Up to three replies about other rows of a table that the call and its reply identify one row of."""
    identity, arguments = context.spec.identity, context.call.arguments
    columns = {name: t.partition(".")[2] for name, t in identity.items() if t.partition(".")[0] == table}
    given = [arguments.get(name) for name in columns]
    own = _shown(context.result, columns)
    if None in given or own is None or not _alike(own, given):
        return []
    found: list[ToolResult] = []
    for values in _neighbours(context.rows(table, tuple(columns.values())), given):
        other = {**arguments, **dict(zip(columns, values, strict=True))}
        reply = context.read(ToolCall(context.call.name, other))
        shown = _shown(reply, columns)
        if shown is not None and not _alike(shown, given):
            found.append(reply)
        if len(found) == 3:
            break
    return found


def _shown(result: ToolResult, columns: Mapping[str, str]) -> list[Any] | None:
    """The values of these columns in a reply about one object; None where one is missing."""
    data = result.data
    if result.is_error or not isinstance(data, dict):
        return None
    values = [data.get(column) for column in columns.values()]
    return None if None in values else values


def _alike(values: Sequence[Any], given: Sequence[Any]) -> bool:
    return all(same(a, b) for a, b in zip(values, given, strict=True))


def _neighbours(rows: Sequence[Sequence[Any]], given: Sequence[Any]) -> list[Sequence[Any]]:
    """Other rows, beginning after the given one and wrapping around."""
    place = next((i for i, row in enumerate(rows) if _alike(row, given)), 0)
    others = [*rows[place + 1 :], *rows[:place]]
    return [row for row in others if None not in row and not _alike(row, given)][:SIBLING_TRIES]


def _filter_dropped(context: Context) -> ToolResult | None:
    """The list without its optional filters: all right rows and some more."""
    spec, call = context.spec, context.call
    key = list_key(context.result.data)
    filters = [n for n in call.arguments if n not in spec.required and _plain(n) not in PAGING]
    if spec.kind != "read" or key is None or not filters:
        return None
    kept = {name: value for name, value in call.arguments.items() if name not in filters}
    broad = context.read(ToolCall(call.name, kept))
    rows = broad.data.get(key) if isinstance(broad.data, dict) and not broad.is_error else None
    if not isinstance(rows, list):
        return None
    right = {canonical_json(row) for row in context.result.data[key]}
    shown = {canonical_json(row) for row in rows}
    return broad if right < shown else None


def list_key(data: Any) -> str | None:
    """Key of the list of rows in a reply: the first list of objects, else the first list."""
    if not isinstance(data, dict):
        return None
    lists = [name for name, value in data.items() if isinstance(value, list)]
    full = [name for name in lists if data[name] and all(isinstance(row, dict) for row in data[name])]
    return next(iter(full or lists), None)


def _plain(name: str) -> str:
    """An argument or column name regardless of its spelling: boxId, box_id and BoxID are one."""
    return name.replace("_", "").lower()


_MECHANISMS: dict[str, Callable[[Context], ToolResult | None]] = {
    "temporary_refusal": _temporary_refusal,
    "missing_rows": _missing_rows,
    "truncated_body": _truncated_body,
    "other_request": _other_request,
    "other_object": _other_object,
    "lost_receipt": _lost_receipt,
    "filter_dropped": _filter_dropped,
}
