"""A table of numbers with intervals: as text, Markdown and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from robustops.files import atomic_write_json, atomic_write_text
from robustops.tracking.statistics import Interval
from robustops.tracking.tables import plain_table


@dataclass(frozen=True)
class Cell:
    """A number with its interval; kind: % (shown in percent), n (a number), p (a p-value)."""

    value: Interval | None
    kind: str = "%"

    def __str__(self) -> str:
        if self.value is None or math.isnan(self.value.estimate):
            return "-"
        scale, digits = {"%": (100.0, 1), "n": (1.0, 1), "p": (1.0, 4)}[self.kind]
        estimate, low, high = (f"{scale * number:.{digits}f}" for number in self.value)
        if self.kind == "p" and self.value.estimate < 1e-4:
            return "< 0.0001"
        return estimate if math.isnan(self.value.low) else f"{estimate} [{low}, {high}]"

    def plain(self) -> Any:
        """In JSON values."""
        if self.value is None or math.isnan(self.value.estimate):
            return None
        return {k: None if math.isnan(v) else v for k, v in self.value._asdict().items()}


@dataclass(frozen=True)
class EvaluationTable:
    """name: of its files; left: how many columns are names; rows: of texts and cells; note: below it."""

    name: str
    title: str
    columns: tuple[str, ...]
    left: int
    rows: tuple[tuple[str | Cell, ...], ...]
    note: str = ""

    def rich(self) -> RichTable:
        """For a terminal."""
        table = plain_table(self.title, self.columns[: self.left], self.columns[self.left :])
        previous = None
        for row in self.rows:
            if previous not in (None, row[0]) and self.left > 1:
                table.add_section()
            previous = row[0]
            table.add_row(*(escape(str(cell)) for cell in row))
        table.caption, table.caption_justify = escape(self.note) or None, "left"
        return table

    def markdown(self) -> str:
        """For a README."""
        lines = [f"### {self.title}", "", "| " + " | ".join(self.columns) + " |"]
        lines.append("|" + "---|" * self.left + "---:|" * (len(self.columns) - self.left))
        lines += ["| " + " | ".join(map(str, row)) + " |" for row in self.rows]
        return "\n".join([*lines, "", self.note, ""] if self.note else [*lines, ""])

    def plain(self) -> dict[str, Any]:
        """In JSON values."""
        rows = [
            {n: c.plain() if isinstance(c, Cell) else c for n, c in zip(self.columns, row, strict=True)}
            for row in self.rows
        ]
        return {"title": self.title, "rows": rows, "note": self.note}


def write(tables: Sequence[EvaluationTable], body: dict[str, Any], folder: Path) -> list[Path]:
    """A Markdown and a JSON file a table, `tables.md` with all of them, and `rows.json`, which is `body`."""
    paths = []
    for table in tables:
        paths.append(atomic_write_text(folder / f"{table.name}.md", table.markdown()))
        paths.append(atomic_write_json(folder / f"{table.name}.json", table.plain()))
    everything = "\n".join(table.markdown() for table in tables)
    paths.append(atomic_write_text(folder / "tables.md", everything))
    paths.append(atomic_write_json(folder / "rows.json", body, indent=None))
    return paths
