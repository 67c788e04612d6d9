"""A world's SQLite database: rows in and out, atomic writes, a logical clock, snapshots."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from robustops.errors import WorldError

CLOCK_FORMAT = "%Y-%m-%d %H:%M:%S"
CLOCK_START = "2026-01-05 09:00:00"
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")

Row = dict[str, Any]


@dataclass(frozen=True)
class DatabaseSnapshot:
    """A whole database at one moment: SQLite image, clock (seconds since its start), id counters."""

    image: bytes
    seconds: int
    counters: tuple[tuple[str, int], ...]


def _row(cursor: sqlite3.Cursor, values: Sequence[Any]) -> Row:
    return {column[0]: value for column, value in zip(cursor.description, values, strict=True)}


_READING = (
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
)


def _only_reading(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY


def check_name(name: str) -> str:
    """Refuse a table or column name that is not an identifier (names are put into SQL text)."""
    if not _NAME.match(name):
        raise WorldError(f"'{name}' is not a table or column name")
    return name


class WorldDatabase:
    """Rows of one world. Every write runs in `atomic()`, which moves the logical clock by one step.

    path: None keeps the database in memory, else a SQLite file; clock_start: text of the first moment;
    clock_step: seconds a write takes (0 freezes the clock, for replays of recordings).
    """

    def __init__(
        self, path: str | Path | None = None, *, clock_start: str = CLOCK_START, clock_step: int = 1
    ) -> None:
        target = ":memory:" if path is None else str(path)
        try:
            self._connection = sqlite3.connect(target, isolation_level=None, check_same_thread=False)
            self._connection.row_factory = _row
            self._connection.execute("PRAGMA foreign_keys = OFF")
        except sqlite3.Error as error:
            raise WorldError(f"cannot open database {target}: {error}") from error
        self.clock_start = datetime.strptime(clock_start, CLOCK_FORMAT)
        self.clock_step = clock_step
        self.seconds = 0
        self.counters: dict[str, int] = {}
        #: How many atomic blocks took effect.
        self.commits = 0
        self._depth = 0
        self._undone = 0
        self._in_file = path is not None

    # reading ------------------------------------------------------------------------------------
    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of one SELECT."""
        return self._connection.execute(sql, parameters).fetchall()

    def one(self, sql: str, parameters: Sequence[Any] = ()) -> Row | None:
        """The first row of one SELECT, or None."""
        row: Row | None = self._connection.execute(sql, parameters).fetchone()
        return row

    def scalar(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first column of the first row, or None where there is no row."""
        row = self.one(sql, parameters)
        return None if row is None else next(iter(row.values()))

    def find(self, table: str, **equals: Any) -> list[Row]:
        """Rows whose columns equal the given values, in table order."""
        where = " AND ".join(f'"{check_name(name)}" IS ?' for name in equals)
        sql = f'SELECT * FROM "{check_name(table)}"' + (f" WHERE {where}" if where else "")
        return self.query(sql + " ORDER BY rowid", tuple(equals.values()))

    def tables(self) -> list[str]:
        """Names of the user tables, in alphabetical order."""
        rows = self.query(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        )
        return [row["name"] for row in rows]

    def dump(self) -> dict[str, list[Row]]:
        """Every row of every table: the form in which two database states are compared."""
        return {table: self.query(f'SELECT * FROM "{table}" ORDER BY rowid') for table in self.tables()}

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Inside, SQLite refuses (sqlite3.DatabaseError) every statement that is more than a SELECT."""
        self._connection.set_authorizer(_only_reading)
        try:
            yield
        finally:
            self._connection.set_authorizer(None)

    # writing ------------------------------------------------------------------------------------
    def now(self) -> str:
        """The logical time as text."""
        return (self.clock_start + timedelta(seconds=self.seconds)).strftime(CLOCK_FORMAT)

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """All writes inside happen, or none; the clock moves one step with the outermost block."""
        before, written = (self.seconds, dict(self.counters)), self.changes
        outermost = self._depth == 0
        self._connection.execute("BEGIN" if outermost else f"SAVEPOINT level_{self._depth}")
        if outermost:
            self.seconds += self.clock_step
        self._depth += 1
        try:
            yield
        except BaseException:
            self._depth -= 1
            if outermost:
                if self._connection.in_transaction:  # some errors end it by themselves
                    self._connection.execute("ROLLBACK")
            else:
                self._connection.execute(f"ROLLBACK TO level_{self._depth}")
                self._connection.execute(f"RELEASE level_{self._depth}")
            self.seconds, self.counters = before
            self._undone += self.changes - written
            raise
        self._depth -= 1
        self._connection.execute("COMMIT" if outermost else f"RELEASE level_{self._depth}")
        self.commits += outermost

    def script(self, sql: str) -> None:
        """Run a schema script; refused inside an atomic block, which it would end."""
        if self._depth:
            raise WorldError("schema script inside an open transaction; run it before any write")
        self._connection.executescript(sql)

    def insert(self, table: str, row: Mapping[str, Any]) -> None:
        """Insert one row."""
        self.insert_many(table, [row])

    def insert_many(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Insert rows that all have the columns of the first."""
        rows = list(rows)
        if not rows:
            return
        names = [check_name(name) for name in rows[0]]
        columns = ", ".join(f'"{name}"' for name in names)
        marks = ", ".join("?" for _ in names)
        sql = f'INSERT INTO "{check_name(table)}" ({columns}) VALUES ({marks})'
        self._connection.executemany(sql, [tuple(row[name] for name in names) for row in rows])

    def update(self, table: str, where: Mapping[str, Any], changes: Mapping[str, Any]) -> int:
        """Set columns of the rows that match; returns how many rows matched."""
        assignments = ", ".join(f'"{check_name(name)}" = ?' for name in changes)
        condition = " AND ".join(f'"{check_name(name)}" IS ?' for name in where)
        sql = f'UPDATE "{check_name(table)}" SET {assignments} WHERE {condition}'
        return self._connection.execute(sql, (*changes.values(), *where.values())).rowcount

    def delete(self, table: str, where: Mapping[str, Any]) -> int:
        """Delete the rows that match; returns how many."""
        condition = " AND ".join(f'"{check_name(name)}" IS ?' for name in where)
        sql = f'DELETE FROM "{check_name(table)}" WHERE {condition}'
        return self._connection.execute(sql, tuple(where.values())).rowcount

    def next_number(self, table: str, column: str, prefix: str) -> int:
        """Highest number among texts `prefix` + digits of a column (prefix as in `INC_`), plus one."""
        highest = self.scalar(
            f'SELECT MAX(CAST(substr("{check_name(column)}", {len(prefix) + 1}) AS INTEGER)) '
            f'FROM "{check_name(table)}" WHERE "{column}" GLOB ?',
            (f"{prefix}[0-9]*",),
        )
        return int(highest or 0) + 1

    def count(self, counter: str) -> int:
        """Advance a named counter (kept with snapshots) and return its new value, from 1."""
        self.counters[counter] = self.counters.get(counter, 0) + 1
        return self.counters[counter]

    @property
    def changes(self) -> int:
        """Rows written and not rolled back since the connection was opened.

        Equal before and after a pure read and a refused write.
        """
        return self._connection.total_changes - self._undone

    # moments ------------------------------------------------------------------------------------
    def snapshot(self) -> DatabaseSnapshot:
        """The whole state now; refused inside an open atomic block and of a database without a schema."""
        if self._depth:
            raise WorldError("snapshot inside an open transaction; take it between tool calls")
        try:
            image = self._connection.serialize()
        except sqlite3.Error as error:
            raise WorldError(f"no snapshot of a database without tables: {error}") from error
        return DatabaseSnapshot(image, self.seconds, tuple(sorted(self.counters.items())))

    def restore(self, snapshot: DatabaseSnapshot) -> None:
        """Go back to a snapshot exactly: rows, clock and counters."""
        if self._depth:
            raise WorldError("restore inside an open transaction; do it between tool calls")
        try:
            if self._in_file:
                with closing(sqlite3.connect(":memory:")) as source:
                    source.deserialize(snapshot.image)
                    source.backup(self._connection)
            else:
                self._connection.deserialize(snapshot.image)
            self.tables()
        except sqlite3.Error as error:
            raise WorldError(f"the snapshot holds no SQLite database: {error}") from error
        self.seconds = snapshot.seconds
        self.counters = dict(snapshot.counters)

    def interrupt(self) -> None:
        """Make the statement that another thread runs here fail; nothing where there is none."""
        self._connection.interrupt()

    def salvage(self) -> DatabaseSnapshot:
        """The committed state, where another thread is stuck in the middle of its writes.

        Waits while SQLite is at work for that thread. The database must not be used any more.
        """
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise WorldError(f"cannot roll back what another thread left open: {error}") from error
        self._depth = 0
        return self.snapshot()

    def close(self) -> None:
        self._connection.close()
