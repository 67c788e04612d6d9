"""TRL, unsloth and ms-swift: `trainer_state.json`, printed dicts, JSON lines."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

from robustops.errors import ConfigError
from robustops.monitor.importers import jsonl
from robustops.monitor.importers.keymap import names_of
from robustops.monitor.importers.log import Log, Source, row_of

STATE = "trainer_state.json"
#: ms-swift's name for its JSON lines.
LOGGING = "logging.jsonl"
_DICT = re.compile(r"\{\s*'[^{}]*\}")
_BARE = re.compile(r"(?<=[:\s(])(-?)(nan|inf)(?=[,})\s])", re.IGNORECASE)
_CALL = re.compile(r"(?<=: )((?:np\.|numpy\.)?(?:float\d*|int\d*|tensor|array)\([^()]*\))")


def matches(source: Source) -> bool:
    """By content: a log history, printed dicts with metrics, or JSON lines with TRL's keys."""
    if source.is_folder:
        return _in_folder(source.path) is not None
    if source.text.lstrip().startswith(("{", "[")) and _history(source.text) is not None:
        return True
    if jsonl.matches(source):
        return names_of({key for row in jsonl.read(source).rows[:20] for key in row.values}) == "trl"
    keys = {str(key) for body in _dicts(source.text[:200_000])[0][:20] for key in body}
    return names_of(keys) == "trl"


def read(source: Source) -> Log:
    """Rows of training; final summaries and evaluations have no column and drop out later."""
    if source.is_folder:
        found = _in_folder(source.path)
        if found is None:
            raise ConfigError(f"{source.path} has no {STATE}, in itself or in checkpoint-*; name a file")
        log = read(Source(found))
        return Log(log.rows, (f"read {found.relative_to(source.path)}", *log.notes), log.kl_estimator)
    if (history := _history(source.text)) is not None:
        return Log(tuple(row_of(body) for body in history))
    if jsonl.matches(source):
        return jsonl.read(source)
    bodies, notes = _dicts(source.text)
    return Log(tuple(row_of(body) for body in bodies), tuple(notes))


def _in_folder(path: Path) -> Path | None:
    """The newest trainer state of an output folder, or ms-swift's log."""
    for name in (STATE, LOGGING):
        if (path / name).is_file():
            return path / name
    states = sorted(path.glob(f"checkpoint-*/{STATE}"), key=lambda place: _checkpoint(place.parent.name))
    return states[-1] if states else None


def _checkpoint(name: str) -> int:
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1


def _history(text: str) -> list[dict[str, Any]] | None:
    """The log history of a trainer state, or a list of rows that somebody saved."""
    try:
        body = json.loads(text)
    except ValueError:
        return None
    history = body.get("log_history") if isinstance(body, dict) else body
    if not isinstance(history, list) or not all(isinstance(item, dict) for item in history):
        return None
    return history


def _dicts(text: str) -> tuple[list[dict[str, Any]], list[str]]:
    """(printed dicts, notes). Progress bars and other lines between them are passed over."""
    bodies, broken, end = [], 0, 0
    for match in _DICT.finditer(text):
        plain = _CALL.sub(lambda call: repr(call.group(1)), match.group(0))
        plain = _BARE.sub(lambda found: repr(found.group(0)), plain)
        end = match.end()
        try:
            body = ast.literal_eval(plain)
        except (ValueError, SyntaxError):
            broken += 1
            continue
        if isinstance(body, dict):
            bodies.append(body)
    notes = [f"{broken} printed dicts are not readable: passed over"] if broken else []
    if re.search(r"\{\s*'[^{}]*\Z", text[end:]):
        notes.append("the last dict is torn or still being written: passed over")
    return bodies, notes
