"""Reading a start state from a file: JSON tables or SQLite, checked against the schema."""

from __future__ import annotations

from typing import Any

from robustops.errors import ConfigError, ToolError
from robustops.worlds.database import Row, WorldDatabase
from robustops.worlds.domains.arithmetic.expressions import parse_operation
from robustops.worlds.domains.arithmetic.schema import TABLES
from robustops.worlds.loading import load_rows

_COLUMNS: dict[str, dict[str, type]] = {
    "answers": {"number": int, "value": int},
    "bounds": {"operand": int, "result": int},
    "computations": {"number": int, "expression": str, "value": int},
}


def load_tables(database: WorldDatabase, path: str) -> None:
    """Write the rows of a file into an empty database that has the schema.

    path: JSON (`{table: [row, ...]}`) or SQLite; every table must be there, an empty one will do, but
    `bounds` has one row. ConfigError names the first table, column or row that does not fit.
    """

    def fit(table: str, rows: list[Any]) -> list[Row]:
        fitted = [_fit(table, index, row, path) for index, row in enumerate(rows)]
        if table == "bounds" and len(fitted) != 1:
            raise ConfigError(f"{path}: table 'bounds' has {len(fitted)} rows; give one")
        return fitted

    load_rows(database, path, TABLES, fit)


def _fit(table: str, index: int, row: Any, path: str) -> Row:
    """The row with the columns of its table; a computation must be right, and is stored in its short form."""
    where, columns = f"{path}: row {index} of table '{table}'", _COLUMNS[table]
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is no object")
    for name in (*row, *columns):
        if name not in columns:
            raise ConfigError(f"{where} has an unknown column '{name}'; allowed are: {', '.join(columns)}")
        if type(row.get(name)) is not columns[name]:
            kind = "an integer" if columns[name] is int else "a text"
            raise ConfigError(f"{where}: column '{name}' takes {kind}, not {row.get(name)!r}")
    if table == "bounds" and min(row.values()) < 9:
        raise ConfigError(f"{where}: bounds below 9 leave no requests; give {row} larger ones")
    if table != "computations":
        return {name: row[name] for name in columns}
    try:
        step = parse_operation(row["expression"])
    except ToolError as error:
        raise ConfigError(f"{where}: {error.message}") from error
    if step.value != row["value"]:
        raise ConfigError(f"{where}: {step.text} is {step.value}, not {row['value']}; correct its value")
    return {"number": row["number"], "expression": step.text, "value": step.value}
