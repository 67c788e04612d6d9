"""Reading a start database from a file: JSON tables or SQLite, checked against the schema."""

from __future__ import annotations

from typing import Any

from robustops.errors import ConfigError
from robustops.worlds.database import Row, WorldDatabase
from robustops.worlds.loading import load_rows


def load_tables(database: WorldDatabase, path: str) -> None:
    """Write the rows of a file into an empty database that has the schema.

    path: JSON (`{table: [row, ...]}`) or SQLite; every table of the schema must be there, an empty one
    will do. ConfigError names the first table, column, row or reference that does not fit.
    """

    def fit(table: str, rows: list[Any]) -> list[Row]:
        return [_fit(database, table, index, row, path) for index, row in enumerate(rows)]

    load_rows(database, path, database.tables(), fit)
    _check_references(database, path)


def _fit(database: WorldDatabase, table: str, index: int, row: Any, path: str) -> Row:
    """A row with all columns of its table, defaults filled in."""
    where = f"{path}: row {index} of table '{table}'"
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is no object")
    columns = database.query(f'PRAGMA table_info("{table}")')
    names = [column["name"] for column in columns]
    for name in row:
        if name not in names:
            raise ConfigError(f"{where} has an unknown column '{name}'; allowed are: {', '.join(names)}")
    fitted: Row = {}
    for column in columns:
        value = row.get(column["name"])
        if value is None and column["dflt_value"] is not None:
            value = int(column["dflt_value"])
        if value is None and (column["notnull"] or column["pk"]):
            raise ConfigError(f"{where} needs a value in column '{column['name']}'")
        if isinstance(value, list | dict):
            raise ConfigError(f"{where}: column '{column['name']}' takes a plain value, not {value!r}")
        fitted[column["name"]] = value
    return fitted


def _check_references(database: WorldDatabase, path: str) -> None:
    for table in database.tables():
        for key in database.query(f'PRAGMA foreign_key_list("{table}")'):
            column, parent, target = key["from"], key["table"], key["to"]
            lost = database.one(
                f'SELECT "{column}" AS value FROM "{table}" WHERE "{column}" IS NOT NULL '
                f'AND "{column}" NOT IN (SELECT "{target}" FROM "{parent}")'
            )
            if lost is not None:
                raise ConfigError(
                    f"{path}: {table}.{column} = '{lost['value']}' is not in {parent}.{target}; "
                    "add that row or correct the reference"
                )
