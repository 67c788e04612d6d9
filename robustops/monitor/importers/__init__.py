"""Logs of any trainer as telemetry: one reader a source, one key map, one way to put rows together.

    load(path) -> Imported: panel, what was seen and has no column, notes

A metric that a source does not log is an absent column, never a 0. Rows without a step are numbered; torn
lines, repeated steps and gaps are tolerated, each with a note.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from robustops.errors import ConfigError, unknown_name
from robustops.monitor.importers import csv, jsonl, openrlhf, ours, tensorboard, trl, verl, wandb
from robustops.monitor.importers.assemble import assemble
from robustops.monitor.importers.log import Imported, Log, Source

__all__ = ["FORMATS", "Imported", "load"]


class _Reader(NamedTuple):
    """names: whose keys the file has, None: found out from the keys."""

    matches: Callable[[Source], bool]
    read: Callable[[Source], Log]
    names: str | None


#: In the order in which a source is tried: what is told apart surest comes first.
_READERS: dict[str, _Reader] = {
    "wandb": _Reader(wandb.matches, wandb.read, None),
    "tensorboard": _Reader(tensorboard.matches, tensorboard.read, None),
    "verl": _Reader(verl.matches, verl.read, "verl"),
    "openrlhf": _Reader(openrlhf.matches, openrlhf.read, "openrlhf"),
    # After those two, whose logs may hold printed dicts as well.
    "trl": _Reader(trl.matches, trl.read, "trl"),
    "jsonl": _Reader(jsonl.matches, jsonl.read, None),
    "csv": _Reader(csv.matches, csv.read, None),
}
#: Likewise for a folder: an output folder of TRL may hold event files and W&B runs of the same run.
_IN_FOLDERS = ("trl", "csv", "wandb", "tensorboard")
#: What `source_format` may be.
FORMATS = ("auto", "ours", *_READERS)


def load(path: Path | str, format: str = "auto", kl_estimator: str | None = None) -> Imported:
    """A log, whatever wrote it.

    Args:
        path: file or folder.
        format: one of FORMATS; auto: found by content.
        kl_estimator: k1 or k3, of a source that logs a KL to the reference and does not say which.

    Raises:
        ConfigError: there is nothing to read, it is no log that is known, or an extra is not installed.
    """
    source = Source(Path(path))
    if not source.path.exists():
        raise ConfigError(f"there is no {path}; name a log file or a run folder")
    if format not in FORMATS:
        raise unknown_name("source_format", format, FORMATS)
    if format == "auto":
        format = detect(source)
    if format == "ours":
        return ours.load(source)
    if source.is_folder and format in ("verl", "openrlhf", "jsonl"):
        raise ConfigError(f"{path} is a folder; for source_format={format} name a file")
    reader = _READERS[format]
    log = reader.read(source)
    if not log.rows:
        raise ConfigError(f"{path} has no row of {format} yet; name another source_format, or wait for one")
    return assemble(log, str(path), format, reader.names, kl_estimator)


def detect(source: Source) -> str:
    """The format of a source; ConfigError where none fits."""
    if ours.matches(source):
        return "ours"
    for name in _IN_FOLDERS if source.is_folder else _READERS:
        if _READERS[name].matches(source):
            return name
    what = "folder" if source.is_folder else "file"
    raise ConfigError(
        f"the {what} {source.path} is no log that is known: none of {', '.join(FORMATS[1:])}; name the file "
        "itself, or force a reader with source_format="
    )
