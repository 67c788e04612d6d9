"""`run.json`: what the last accepted start of a run folder was made with.

    {"format": 1, "overrides": ["domain=itsm"], "settings": {"grpo.steps": 120}, "contents": {...}, ...}

overrides: of the command line (null: the run was not started from it); settings: dotted key -> value; the
rest is `robustops.learning.fingerprint`'s. Hydra's own `.hydra/` holds what a start asked for, also one that
was refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from robustops.errors import ConfigError
from robustops.files import atomic_write_json, read_json

NAME = "run.json"
FORMAT = 1


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Replace the record in one step."""
    atomic_write_json(folder / NAME, {"format": FORMAT, **record})


def read_record(folder: Path) -> dict[str, Any] | None:
    """The folder's record, or None where it has none. ConfigError where it is not readable."""
    path = folder / NAME
    if not path.exists():
        return None
    body = read_json(path, what="run record")
    parts = ("settings", "contents", "versions")
    if not isinstance(body, dict) or not all(isinstance(body.get(part), dict) for part in parts):
        raise ConfigError(f"{path} is no run record; remove it to go on without a comparison of settings")
    if body.get("format") != FORMAT:
        raise ConfigError(f"{path} has format {body.get('format')}, this version reads format {FORMAT}")
    return body


def leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every setting in nested mappings."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
