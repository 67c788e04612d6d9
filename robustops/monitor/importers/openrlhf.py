"""OpenRLHF: console lines `Global step N: {...}`, or JSON lines with its keys."""

from __future__ import annotations

import ast
import re

from robustops.monitor.importers import jsonl
from robustops.monitor.importers.keymap import names_of
from robustops.monitor.importers.log import Log, Row, Source, row_of

_ANSI = re.compile(r"\x1b?\[[0-9;]*m")
_LINE = re.compile(r"[Gg]lobal step:? (\d+):? (\{.*\})")
_TORN = re.compile(r"[Gg]lobal step:? \d+:? \{[^}]*$")
_BARE = re.compile(r"(?<=[:\s])(-?)(nan|inf)(?=[,}\s])", re.IGNORECASE)
_ESTIMATOR = re.compile(r"kl_estimator['\"]?\s*[:=\s]\s*['\"]?(k1|k3)\b")


def matches(source: Source) -> bool:
    """Its console lines, or JSON lines with its keys."""
    if source.is_folder:
        return False
    if jsonl.matches(source):
        return names_of({key for row in jsonl.read(source).rows[:20] for key in row.values}) == "openrlhf"
    return any(_LINE.search(_ANSI.sub("", line)) for _, line in source.lines())


def read(source: Source) -> Log:
    """Rows of global steps; a dict that is not readable is passed over."""
    if jsonl.matches(source):
        return jsonl.read(source)
    rows: list[Row] = []
    broken = 0
    last = ""
    for _, line in source.lines():
        last = _ANSI.sub("", line)
        match = _LINE.search(last)
        if not match:
            continue
        try:
            body = ast.literal_eval(_BARE.sub(lambda found: repr(found.group(0)), match.group(2)))
        except (ValueError, SyntaxError):
            broken += 1
            continue
        rows.append(Row(int(match.group(1)), row_of(body).values))
    notes = [f"{broken} lines of global steps are not readable: passed over"] if broken else []
    if _TORN.search(last):
        notes.append("the last line is torn or still being written: passed over")
    named = set(_ESTIMATOR.findall(source.text))
    return Log(tuple(rows), tuple(notes), named.pop() if len(named) == 1 else None)
