"""Progress bars with an estimate of the time left, for phases that are not Lightning's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@contextmanager
def progress(
    console: Console, label: str, total: int, *, enabled: bool = True
) -> Iterator[Callable[[Any], None]]:
    """A bar over `total` items; call what it yields once an item.

    Without a terminal it prints one line at the end instead of redrawing.
    """
    if not enabled:
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=2) as bar:
        task = bar.add_task(label, total=total)
        yield lambda _: bar.advance(task)
