"""What detectors have learned, on disk: JSON that says what it is and of which version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from robustops.errors import ConfigError
from robustops.files import atomic_write_text


def write_versioned(path: Path | str, kind: str, version: int, body: dict[str, Any]) -> None:
    """The file is whole or absent."""
    text = json.dumps({"kind": kind, "version": version, **body}, separators=(",", ":"))
    atomic_write_text(path, text + "\n")


def read_versioned(path: Path | str, kind: str, version: int) -> dict[str, Any]:
    """The body; ConfigError for a file that cannot be read, or is of another kind or version."""
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {kind} {path}: {error.strerror}; check the path") from error
    except ValueError as error:
        raise ConfigError(f"{kind} {path} is not valid JSON ({error}); write it again") from error
    return checked(body, path, kind, version)


def checked(head: Any, path: Path | str, kind: str, version: int) -> dict[str, Any]:
    """What a file says of itself; ConfigError where that is another kind or version."""
    if not isinstance(head, dict) or head.get("kind") != kind:
        raise ConfigError(f"{path} is no {kind}; name a file that was saved as one")
    if head.get("version") != version:
        raise ConfigError(
            f"{path} is a {kind} of version {head.get('version')}, this program reads {version}; fit it again"
        )
    return head
