"""What commands print for people; JSON goes through the runner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table of texts."""
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    Console().print(table)


def show_wide(table: Table) -> None:
    """A table for a pager or a file: it is not folded to the terminal."""
    Console(width=200).print(table)


def show_line(text: str) -> None:
    """One line, whatever the width of the terminal."""
    Console().print(escape(text), soft_wrap=True, highlight=False)


def place(path: Path) -> str:
    """A path as the user would type it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
