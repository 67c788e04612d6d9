"""Reading the tables of a start database from a file; each domain checks them against its schema."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from robustops.errors import ConfigError
from robustops.worlds.database import Row, WorldDatabase

_MAGIC = b"SQLite format 3\x00"


def read_tables(path: str, decode: Callable[[str, Row], Row] | None = None) -> dict[str, list[Any]]:
    """The rows of each table of a JSON or SQLite file.

    path: JSON of the form {table: {key: row}} or {table: [row]}, or an SQLite file; decode: what a row of a
    table in SQLite stands for, which has no booleans (None: itself). ConfigError where the
    file is absent, is neither, or holds something else than tables. Rows are not looked at.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"database file '{path}' does not exist; give a JSON or SQLite file")
    with file.open("rb") as stream:
        is_sqlite = stream.read(len(_MAGIC)) == _MAGIC
    if not is_sqlite:
        return _read_json(file)
    tables = _read_sqlite(file)
    return tables if decode is None else {t: [decode(t, row) for row in rows] for t, rows in tables.items()}


def load_rows(
    database: WorldDatabase, path: str, known: Sequence[str], fit: Callable[[str, list[Any]], list[Row]]
) -> None:
    """Write the rows of a file into an empty database that has the schema.

    known: its tables, each of which must be in the file, an empty one will do; fit: rows of a table as the
    schema has them. ConfigError names the first table or row that does not fit.
    """
    tables = read_tables(path)
    for table in tables:
        if table not in known:
            raise ConfigError(f"{path}: unknown table '{table}'; allowed are: {', '.join(known)}")
    for table in known:
        if table not in tables:
            raise ConfigError(f"{path}: table '{table}' is missing; add it, an empty list will do")
        rows = fit(table, tables[table])
        try:
            database.insert_many(table, rows)
        except sqlite3.Error as error:
            raise ConfigError(f"{path}: table '{table}' does not fit: {error}") from error


def _read_sqlite(file: Path) -> dict[str, list[Any]]:
    source = WorldDatabase(file)
    try:
        return dict(source.dump())
    except sqlite3.Error as error:
        raise ConfigError(f"{file} cannot be read as SQLite: {error}") from error
    finally:
        source.close()


def _read_json(file: Path) -> dict[str, list[Any]]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is neither SQLite nor JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: the top level must be an object of tables, not {type(data).__name__}")
    tables = {}
    for name, content in data.items():
        if not isinstance(content, Mapping | list):
            raise ConfigError(f"{file}: table '{name}' must be rows by key or a list of rows")
        tables[name] = list(content.values() if isinstance(content, Mapping) else content)
    return tables
