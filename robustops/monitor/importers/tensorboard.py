"""TensorBoard event files, through the tensorboard package (extra `tensorboard`)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from robustops.errors import ConfigError
from robustops.extras import require
from robustops.monitor.importers.log import Log, Row, Source


def matches(source: Source) -> bool:
    """A file with `tfevents` in its name, or a folder with one, at most three levels down."""
    return bool(_folders(source.path))


def read(source: Source) -> Log:
    """Scalars by step. What a resumed run overwrote is dropped by the package itself."""
    module = require("tensorboard.backend.event_processing.event_accumulator", "tensorboard")
    folders = _folders(source.path)
    if not folders:
        raise ConfigError(f"{source.path} holds no event file (*tfevents*); name the folder of a run")
    if len(folders) > 1:
        names = ", ".join(str(folder.relative_to(source.path)) for folder in folders[:5])
        raise ConfigError(f"{source.path} holds {len(folders)} runs ({names}, ...); name one of them")
    events = module.EventAccumulator(str(folders[0]), size_guidance={"scalars": 0})
    events.Reload()
    rows: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            rows[event.step][tag] = float(event.value)
    return Log(tuple(Row(step, rows[step]) for step in sorted(rows)))


def _folders(path: Path) -> list[Path]:
    """The file itself, or folders that hold event files."""
    if path.is_file():
        return [path] if "tfevents" in path.name else []
    found = [
        p for depth in ("", "*/", "*/*/", "*/*/*/") for p in path.glob(f"{depth}*tfevents*") if p.is_file()
    ]
    return sorted({place.parent for place in found})
