"""Tables of the run store, and the rows that an episode becomes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from robustops.monitor.intervention.journal import COLUMNS
from robustops.records import Episode
from robustops.tracking.results import EvaluationRow

Row = dict[str, Any]
CheckNames = Mapping[str, Sequence[str]]

_PLACE = {"stage": str, "step": int}
TABLES: dict[str, dict[str, type]] = {
    "steps": {**_PLACE, "seconds": float, "metrics": str, "at": str},
    "episodes": {
        **_PLACE,
        "policy": str,
        "condition": str,
        "case_id": str,
        "attempt": int,
        "success": int,
        "progress": float,
        "quality": float,
        "hit": int,
        "tool_calls": int,
        "completion_tokens": int,
        "stop": str,
        "inherited_turns": int,
        "weight_version": int,
        "error_boundary": str,
        "error": str,
    },
    "turns": {
        "episode_id": int,
        "position": int,
        "inherited": int,
        "text": str,
        "tool": str,
        "arguments": str,
        "result": str,
        "is_error": int,
        "changed": int,
        "tokens": int,
    },
    "tool_faults": {
        "episode_id": int,
        "turn": int,
        "inherited": int,
        "family": str,
        "subtype": str,
        "tool": str,
        "repetition": int,
        "cap": int,
    },
    "checks": {"episode_id": int, "position": int, "name": str, "at_start": int, "at_end": int},
    "alerts": {**_PLACE, "kind": str, "severity": float, "message": str, "detail": str, "at": str},
    "interventions": COLUMNS,
    "timings": {**_PLACE, "name": str, "seconds": float, "at": str},
}
CHILDREN = ("turns", "tool_faults", "checks")
INDICES = {
    "episodes": (["stage", "step"], ["policy", "condition"], ["case_id"]),
    "turns": (["episode_id"], ["tool"]),
    "tool_faults": (["episode_id"], ["family"]),
    "checks": (["episode_id"],),
    "alerts": (["stage", "step"],),
    "interventions": (["stage", "step"],),
    "timings": (["stage", "step"],),
}
#: Tables whose rows belong to a place in the run; others hang on an episode and go with it. What was decided
#: about the run (interventions, see `monitor.intervention.journal`) outlives the steps that it was about.
PLACED = ("steps", "episodes", "alerts", "timings")

_TEXTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: Any) -> Any:
    """Non-finite numbers as text, inside lists and dicts too; other values as they are."""
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def decode(value: Any) -> Any:
    """The inverse of `encode`."""
    if isinstance(value, dict):
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return _TEXTS.get(value, value) if isinstance(value, str) else value


def to_json(value: Any) -> str:
    """JSON text without bare NaN or Infinity, which SQLite cannot read."""
    return json.dumps(encode(value), ensure_ascii=False, allow_nan=False)


def now() -> str:
    """The wall clock, UTC, as ISO text."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def episode_row(number: int, stage: str, step: int, episode: Episode, row: EvaluationRow) -> Row:
    """The row of table episodes."""
    own = {name: encode(getattr(row, name)) for name in EvaluationRow.__dataclass_fields__}
    return {
        "id": number,
        "stage": stage,
        "step": step,
        **own,
        "inherited_turns": episode.inherited_turns,
        "weight_version": episode.weight_version,
        "error_boundary": episode.error.boundary if episode.error else None,
    }


def turn_rows(number: int, episode: Episode) -> list[Row]:
    """Rows of table turns, inherited turns included."""
    return [
        {
            "episode_id": number,
            "position": position,
            "inherited": position < episode.inherited_turns,
            "text": turn.text,
            "tool": turn.call.name if turn.call else None,
            "arguments": json.dumps(turn.call.arguments, ensure_ascii=False) if turn.call else None,
            "result": turn.result.text if turn.result else None,
            "is_error": turn.result.is_error if turn.result else None,
            "changed": turn.changed,
            "tokens": turn.end - turn.start,
        }
        for position, turn in enumerate(episode.turns)
    ]


def fault_rows(number: int, episode: Episode) -> list[Row]:
    """Rows of table tool_faults: what was injected, at which turn."""
    rows = []
    for position, turn in enumerate(episode.turns):
        if turn.fault is not None:
            place = {"episode_id": number, "inherited": position < episode.inherited_turns}
            rows.append({**place, **turn.fault.to_dict(), "turn": position})
    return rows


def check_rows(number: int, episode: Episode, names: CheckNames | None) -> list[Row]:
    """One row a check; an invalid episode has no final values."""
    count = len(episode.checks_start)
    known = (names or {}).get(episode.case_id) or [str(position) for position in range(count)]
    final: Sequence[bool | None] = episode.checks_final or (None,) * count
    return [
        {"episode_id": number, "position": i, "name": name, "at_start": start, "at_end": end}
        for i, (name, start, end) in enumerate(zip(known, episode.checks_start, final, strict=True))
    ]
