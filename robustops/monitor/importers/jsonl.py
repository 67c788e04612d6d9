"""JSON lines, whoever wrote them: an object a line, flat or with the metrics under `data` or `metrics`."""

from __future__ import annotations

import json
from typing import Any

from robustops.monitor.importers.log import Log, Row, Source, row_of, step_of

_NESTED = ("data", "metrics")
_NAMED = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}


def matches(source: Source) -> bool:
    """Whether the first line that holds something is a JSON object."""
    if source.is_folder:
        return False
    return next((_object(line) is not None for _, line in source.lines()), False)


def read(source: Source) -> Log:
    """Lenient: a line that is no object is passed over with a note, a torn last one too."""
    rows: list[Row] = []
    notes: list[str] = []
    lines = list(source.lines())
    wrong = []
    for number, line in lines:
        body = _object(line)
        if body is not None:
            rows.append(row_of_object(body))
        elif number == lines[-1][0]:
            notes.append(f"line {number}, the last, is torn or still being written: passed over")
        else:
            wrong.append(number)
    if wrong:
        notes.append(f"{len(wrong)} lines are no JSON objects, the first is line {wrong[0]}: passed over")
    return Log(tuple(rows), tuple(notes))


def row_of_object(body: dict[str, Any]) -> Row:
    """A row of an object; metrics may stand one level down, with the step beside them."""
    nested = [body[key] for key in _NESTED if isinstance(body.get(key), dict)]
    flat = {key: value for part in (*nested, body) for key, value in part.items()}
    row = row_of(
        {key: _NAMED.get(value, value) if isinstance(value, str) else value for key, value in flat.items()}
    )
    return row if row.step is not None else Row(step_of(body), row.values)


def _object(line: str) -> dict[str, Any] | None:
    text = line.strip()
    if not text.startswith("{"):
        return None
    try:
        body = json.loads(text)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None
