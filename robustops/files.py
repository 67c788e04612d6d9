"""Files that are whole or absent: atomic writes, appended lines, JSON with clear errors."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from robustops.errors import ConfigError


def atomic_write_bytes(path: str | Path, data: bytes) -> Path:
    """Replace a file in one step: a reader, or a crash, sees the old content or the new, never a part.

    The data is on disk (fsync) before the new name points to it. Missing folders are made.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return path


def atomic_write_text(path: str | Path, text: str) -> Path:
    """`atomic_write_bytes` of UTF-8 text."""
    return atomic_write_bytes(path, text.encode())


def atomic_write_json(path: str | Path, value: Any, *, indent: int | None = 2) -> Path:
    """`atomic_write_bytes` of JSON. NaN and infinity are kept as Python's `NaN` and `Infinity`."""
    return atomic_write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def append_line(path: str | Path, line: str) -> None:
    """Append one line in a single write, so that lines of a crashed run are whole but for the last.

    A last line that a crash cut short is completed by a line end first, so that it spoils no other.
    """
    if "\n" in line:
        raise ValueError("append_line takes one line; the text contains a line end")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        start = b""
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            start = b"" if file.read(1) == b"\n" else b"\n"
        file.write(start + line.encode() + b"\n")


def read_json(path: str | Path, *, what: str = "file") -> Any:
    """The parsed JSON of a file.

    what: word for the file in messages, such as `summary` or `task file`.

    Raises:
        ConfigError: the file is absent or is not JSON; the message names line and column.
    """
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{what} {path} does not exist; check the path") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what} {path} is not valid JSON ({error}); write it again or remove it") from None
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error}") from None


def _umask() -> int:
    """The process's umask; there is no call that only reads it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def sync_folder(folder: Path) -> None:
    """Put a folder's names (a rename, say) on disk, where the file system can (not on every one)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
