"""Tables: CSV with a usual delimiter, tables of a terminal or of a page (cells apart by blanks or `|`)."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable

from robustops.monitor.importers.log import STEP_KEYS, Log, Source, number, row_of

#: What Lightning's CSV logger writes.
NAME = "metrics.csv"
_DELIMITERS = (",", "\t", ";")
_ELIDED = re.compile(r"[\s|.…⋮]*(\.{2,}|…|⋮)[\s|.…⋮]*")
_RULE = re.compile(r"[\s|+:=\-─━┼]+")


def matches(source: Source) -> bool:
    """A header of at least two names over a line of as many cells, with a number among them."""
    path = source.path / NAME if source.is_folder else source.path
    if not path.is_file():
        return False
    lines = [line for _, line in Source(path).lines()][:6]
    if len(lines) < 2 or lines[0].lstrip().startswith(("{", "[")):
        return False
    cells = _splitter(lines[0])
    header = cells(lines[0])
    below = next((cells(line) for line in lines[1:] if not _RULE.fullmatch(line)), [])
    named = len(header) >= 2 and all(name and number(name) is None for name in header)
    return named and len(header) == len(below) and any(number(cell) is not None for cell in below)


def read(source: Source) -> Log:
    """Empty cells were not observed. Rows of dots stand for rows that somebody left out."""
    source = Source(source.path / NAME) if source.is_folder else source
    lines = list(source.lines())
    cells = _splitter(lines[0][1])
    header = cells(lines[0][1])
    rows, notes, elided, wrong = [], [], 0, []
    for place, line in lines[1:]:
        if _RULE.fullmatch(line):
            continue
        if _ELIDED.fullmatch(line):
            elided += 1
            continue
        found = cells(line)
        if len(found) != len(header):
            wrong.append(place)
            continue
        body = {name: cell for name, cell in zip(header, found, strict=True) if cell}
        rows.append(row_of(body))
    if elided:
        notes.append(f"rows are left out of the table in {elided} places: nothing is filled in")
    if wrong and wrong[-1] == lines[-1][0]:
        notes.append(f"line {wrong.pop()}, the last, is torn or still being written: passed over")
    if wrong:
        notes.append(
            f"{len(wrong)} lines have not the header's {len(header)} cells, the first is line {wrong[0]}: "
            "passed over"
        )
    if not any(name in STEP_KEYS for name in header):
        notes.append(f"no column names the step ({', '.join(STEP_KEYS[3:7])})")
    return Log(tuple(rows), tuple(notes))


def _splitter(header: str) -> Callable[[str], list[str]]:
    """How this table's lines are cut into cells."""
    delimiter = max(_DELIMITERS, key=header.count)
    if header.count(delimiter):
        return lambda line: [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    if "|" in header:
        return lambda line: [cell.strip() for cell in line.strip().strip("|").split("|")]
    return lambda line: line.split()
