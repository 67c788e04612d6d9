"""Replays recorded tool calls on fresh worlds, for differential testing of a domain's tools.

The line format is that of recordings of the ITSM world: one JSON object a call with `sequence`, `index`,
`db`, `context` (acting_user_id, now), `tool` and `arguments`; our lines carry `reply`, `error`,
`error_type`, `error_code`, `error_field` and `changes` as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from robustops.errors import ConfigError, WorldError
from robustops.records import DatabaseSpec, ToolCall, ToolResult
from robustops.worlds.database import CLOCK_START, DatabaseSnapshot, Row, WorldDatabase
from robustops.worlds.domain import Domain
from robustops.worlds.toolset import Toolset

#: `error_type` of our refusals.
ERROR_TYPE = "ToolError"
Line = dict[str, Any]


def read_lines(path: str | Path) -> list[Line]:
    """The calls of a JSON Lines file; ConfigError names the first line that is none."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"calls file '{path}' does not exist; give a JSON Lines file of tool calls")
    lines = []
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(line, dict) or not isinstance(line.get("tool"), str):
            raise ConfigError(f"{path}, line {number}: a call is an object with 'tool' and 'arguments'")
        lines.append(line)
    return lines


def write_lines(path: str | Path, lines: Iterable[Mapping[str, Any]]) -> int:
    """Write JSON Lines and return how many."""
    count = 0
    with Path(path).open("w", encoding="utf-8") as stream:
        for line in lines:
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += 1
    return count


def replay_calls(
    lines: Iterable[Mapping[str, Any]],
    domain: Domain,
    databases: Mapping[str, str] | str | None = None,
) -> Iterator[Line]:
    """Play calls and yield the same lines with our outcome.

    lines: calls; neighbours with one `sequence` value run in order on one database, which starts fresh,
    with the clock frozen at their first `context.now`; a call without `sequence` stands alone.
    domain: its detail must be `full` for replies in the recorded form.
    databases: a database file for all lines, or files by the lines' `db` value; None: the generated world.
    """
    images: dict[str | None, DatabaseSnapshot] = {}
    numbered = enumerate(lines)
    for _, group in groupby(numbered, key=lambda item: item[1].get("sequence", f"alone {item[0]}")):
        calls = sorted((line for _, line in group), key=lambda line: int(line.get("index") or 0))
        path = _database_path(databases, calls[0])
        if path not in images:
            images[path] = domain.start_image(DatabaseSpec(path=path))
        tools = open_frozen(domain, images[path], calls[0].get("context") or {})
        for line in calls:
            yield {**line, **_outcome(tools, line)}
        tools.database.close()


def open_frozen(domain: Domain, image: DatabaseSnapshot, context: Mapping[str, Any]) -> Toolset:
    """Tools over a private copy of an image whose clock stands still.

    context: `acting_user_id` and `now` (`T` or a space between date and time), both optional.
    """
    now = str(context.get("now") or CLOCK_START).replace("T", " ")
    try:
        database = WorldDatabase(clock_start=now, clock_step=0)
    except ValueError as error:
        raise ConfigError(f"context.now '{now}' is not YYYY-MM-DD HH:MM:SS") from error
    database.restore(image)
    return domain.toolset(database, acting_user=context.get("acting_user_id"), detail=domain.detail)


def _database_path(databases: Mapping[str, str] | str | None, line: Mapping[str, Any]) -> str | None:
    if databases is None or isinstance(databases, str):
        return databases
    name = str(line.get("db"))
    if name not in databases:
        raise ConfigError(f"no database file for db '{name}'; there are: {', '.join(sorted(databases))}")
    return databases[name]


def _outcome(tools: Toolset, line: Mapping[str, Any]) -> Line:
    """Reply or refusal of one call, and the rows that it changed."""
    before = table_rows(tools.database)
    result = tools.call(ToolCall(line["tool"], dict(line.get("arguments") or {})))
    changes = row_changes(before, table_rows(tools.database), table_keys(tools.database))
    return {**_reply(result), "changes": changes}


def _reply(result: ToolResult) -> Line:
    line: Line = dict.fromkeys(("reply", "error", "error_type", "error_code", "error_field"))
    if not result.is_error:
        line["reply"] = result.data
        return line
    body = result.data
    if not isinstance(body, dict) or "error" not in body:
        raise WorldError(f"a refusal without a structured error: {result.text[:200]}")
    error = body["error"]
    line |= {"error": error["message"], "error_type": ERROR_TYPE, "error_code": error["code"]}
    line["error_field"] = error.get("field")
    return line


def table_keys(database: WorldDatabase) -> dict[str, tuple[str, ...]]:
    """Primary key columns by table."""
    keys = {}
    for table in database.tables():
        columns = [c for c in database.query(f'PRAGMA table_info("{table}")') if c["pk"]]
        keys[table] = tuple(c["name"] for c in sorted(columns, key=lambda c: int(c["pk"])))
    return keys


def table_rows(database: WorldDatabase) -> dict[str, list[Row]]:
    """All rows by table, with columns declared BOOLEAN as booleans."""
    tables = database.dump()
    for table, rows in tables.items():
        columns = database.query(f'PRAGMA table_info("{table}")')
        for name in (c["name"] for c in columns if c["type"] == "BOOLEAN"):
            for row in rows:
                row[name] = None if row[name] is None else bool(row[name])
    return tables


def row_changes(
    before: Mapping[str, list[Row]], after: Mapping[str, list[Row]], keys: Mapping[str, tuple[str, ...]]
) -> list[Line]:
    """Changed rows as {table, key, op, before, after}.

    An insert carries the whole row in `after`, a delete in `before`, an update only the changed columns.
    """
    changes = []
    for table in after:
        old, new = _by_key(before[table], keys[table]), _by_key(after[table], keys[table])
        for key in sorted(old.keys() | new.keys()):
            was, now = old.get(key), new.get(key)
            if was == now:
                continue
            entry = {"table": table, "key": key}
            if was is None or now is None:
                op = "insert" if was is None else "delete"
                changes.append({**entry, "op": op, "before": was or {}, "after": now or {}})
                continue
            names = [name for name in now if was.get(name) != now[name]]
            part = {"before": {n: was.get(n) for n in names}, "after": {n: now[n] for n in names}}
            changes.append({**entry, "op": "update", **part})
    return changes


def _by_key(rows: list[Row], key: tuple[str, ...]) -> dict[str, Row]:
    return {":".join(str(row[name]) for name in key): row for row in rows}
