"""Database files of the ITSM world: JSON tables, or SQLite with the same tables."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from robustops.errors import ConfigError
from robustops.worlds.database import Row, WorldDatabase
from robustops.worlds.domains.itsm.schema import TABLES, Table, encode

_TYPES: dict[str, tuple[type, ...]] = {"text": (str,), "bool": (bool,), "int": (int,), "float": (int, float)}
_MAGIC = b"SQLite format 3\x00"


def load_file(database: WorldDatabase, path: str) -> None:
    """Write all rows of a file.

    path: JSON of the form {table: {key: row}} or {table: [row]}, or an SQLite file. Missing tables stay
    empty, missing nullable columns null. Raises ConfigError that names the table and what does not fit.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"database file '{path}' does not exist; give a JSON or SQLite file")
    with file.open("rb") as stream:
        is_sqlite = stream.read(len(_MAGIC)) == _MAGIC
    tables = _read_sqlite(file) if is_sqlite else _read_json(file)
    unknown = sorted(set(tables) - set(TABLES))
    if unknown or not tables:
        raise ConfigError(
            f"{path}: tables {', '.join(unknown) or '(none)'} do not belong to the itsm world; "
            f"it has: {', '.join(sorted(TABLES))}"
        )
    for name, table in TABLES.items():
        rows = [_checked(path, table, row) for row in tables.get(name, [])]
        try:
            database.insert_many(name, rows)
        except sqlite3.IntegrityError as error:
            raise ConfigError(f"{path}: table '{name}': {error}; keys must be unique") from error


def _read_json(file: Path) -> dict[str, list[Row]]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file}: neither SQLite nor JSON ({error})") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: the top level must be an object of tables, not {type(data).__name__}")
    tables = {}
    for name, content in data.items():
        if not isinstance(content, Mapping | list):
            raise ConfigError(f"{file}: table '{name}' must be rows by key or a list of rows")
        rows: Iterable[Any] = content.values() if isinstance(content, Mapping) else content
        tables[name] = list(rows)
    return tables


def _read_sqlite(file: Path) -> dict[str, list[Row]]:
    source = WorldDatabase(file)
    try:
        tables = source.dump()
    except sqlite3.Error as error:
        raise ConfigError(f"{file}: cannot be read as SQLite: {error}") from error
    finally:
        source.close()
    return {
        name: [TABLES[name].decode(row) for row in rows] if name in TABLES else rows
        for name, rows in tables.items()
    }


def _checked(path: str, table: Table, row: Any) -> Row:
    """The row as it is stored, or a ConfigError that names the misfit."""
    where = f"{path}: table '{table.name}'"
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where}: a row must be an object, not {type(row).__name__}")
    unknown = sorted(set(row) - set(table.columns))
    if unknown:
        raise ConfigError(f"{where}: unknown column '{unknown[0]}'; it has: {', '.join(table.columns)}")
    for name, kind in table.columns.items():
        value = row.get(name)
        if value is None:
            if name not in table.nullable:
                raise ConfigError(f"{where}: column '{name}' must have a value in {dict(row)!r}")
        elif not isinstance(value, _TYPES[kind]) or (kind != "bool" and isinstance(value, bool)):
            raise ConfigError(f"{where}: column '{name}' must be {kind}, not {value!r}")
    return encode(table, row)
