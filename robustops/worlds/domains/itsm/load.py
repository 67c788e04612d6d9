"""Database files of the ITSM world: JSON tables, or SQLite with the same tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from robustops.errors import ConfigError
from robustops.worlds.database import Row, WorldDatabase
from robustops.worlds.domains.itsm.schema import TABLES, Table, encode
from robustops.worlds.loading import read_tables

_TYPES: dict[str, tuple[type, ...]] = {"text": (str,), "bool": (bool,), "int": (int,), "float": (int, float)}


def load_file(database: WorldDatabase, path: str) -> None:
    """Write all rows of a file.

    path: JSON of the form {table: {key: row}} or {table: [row]}, or an SQLite file. Missing tables stay
    empty, missing nullable columns null. Raises ConfigError that names the table and what does not fit.
    """
    tables = read_tables(path, _decoded)
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


def _decoded(name: str, row: Row) -> Row:
    return TABLES[name].decode(row) if name in TABLES else row
