"""Offline runs of Weights & Biases: the `.wandb` file of a run, also while it is being written.

The file is a log in LevelDB's format (github.com/google/leveldb, doc/log_format.md: blocks of 32 KiB, records
with checksum, length and type), whose records are messages of the wandb package (extra `wandb`). The package
has no public reader any more: its writer is no longer Python.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robustops.errors import ConfigError
from robustops.extras import require
from robustops.monitor.importers.jsonl import row_of_object
from robustops.monitor.importers.log import Log, Row, Source

_MAGIC = b":W&B"
#: Magic, two bytes of a second magic, one of the version.
_FILE_HEADER = 7
_HEADER = struct.Struct("<IHB")
_BLOCK = 32 * 1024
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_ESTIMATORS = {"kl": "k1", "k1": "k1", "low_var_kl": "k3", "k3": "k3"}


def matches(source: Source) -> bool:
    """A `.wandb` file, a run's folder, or a `wandb` folder."""
    return bool(_files(source.path))


def read(source: Source) -> Log:
    """The history, row by row. A record that is torn, or damaged, ends the reading with a note."""
    files = _files(source.path)
    if not files:
        raise ConfigError(f"{source.path} holds no run-*.wandb; name that file or an offline run's folder")
    if len(files) > 1:
        names = ", ".join(place.parent.name for place in files[:5])
        raise ConfigError(f"{source.path} holds {len(files)} runs ({names}, ...); name one of them")
    messages = require("wandb.proto.wandb_internal_pb2", "wandb")
    rows: list[Row] = []
    notes: list[str] = []
    config: dict[str, Any] = {}
    for body in _records(files[0].read_bytes(), notes):
        record = messages.Record()
        record.ParseFromString(body)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            rows.append(row_of_object(_values(record.history.item)))
        elif kind in ("run", "config"):
            config |= _values((record.run.config if kind == "run" else record.config).update)
    return Log(tuple(rows), tuple(notes), _estimator(config))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        with path.open("rb") as file:
            return [path] if file.read(len(_MAGIC)) == _MAGIC else []
    found = {
        p.resolve() for depth in ("", "*/", "wandb/*/") for p in path.glob(f"{depth}*.wandb") if p.is_file()
    }
    return sorted(found)


def _records(data: bytes, notes: list[str]) -> Iterator[bytes]:
    """Bodies of whole records."""
    place = _FILE_HEADER
    parts: list[bytes] = []
    while place + _HEADER.size <= len(data):
        room = _BLOCK - place % _BLOCK
        if room < _HEADER.size:
            place += room
            continue
        checksum, size, kind = _HEADER.unpack_from(data, place)
        body = data[place + _HEADER.size : place + _HEADER.size + size]
        if kind == 0 and size == 0:  # the rest of a block that was reserved and not yet written
            place += room
            continue
        if len(body) < size:
            break
        if checksum != zlib.crc32(bytes([kind]) + body):
            notes.append(f"the file is damaged at byte {place}: what follows is not read")
            return
        place += _HEADER.size + size
        if kind in (_FULL, _FIRST):
            parts = []
        parts.append(body)
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
            parts = []
    if place < len(data) or parts:
        notes.append("the last record is torn or still being written: passed over")


def _values(items: Any) -> dict[str, Any]:
    values = {}
    for item in items:
        try:
            values[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        except ValueError:
            continue
    return values


def _estimator(config: dict[str, Any]) -> str | None:
    """The KL estimator that a configuration names: verl's kl_loss_type, OpenRLHF's kl_estimator."""
    place: Any = config
    for name in ("actor_rollout_ref", "actor", "kl_loss_type"):
        place = place.get(name) if isinstance(place, dict) else None
    return _ESTIMATORS.get(str(place or config.get("kl_estimator")).rstrip("+"))
