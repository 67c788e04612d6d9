"""What the ITSM task templates share: choosing rows, wording, state checks, expert blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from robustops.records import StateCheck
from robustops.worlds.database import CLOCK_START, Row, WorldDatabase
from robustops.worlds.domain import Draft, TaskTemplate
from robustops.worlds.domains.itsm.schema import TABLES
from robustops.worlds.expert import ExpertError, Read, Rows, Write, matches, read_row, read_rows, write

#: Tables that a tool can write to; the check against collateral damage counts touched rows in them.
WRITABLE = (
    "incident",
    "child_incident",
    "problem",
    "change",
    "change_request_mapping",
    "configuration_item",
    "incident_affected_cis",
    "knowledge",
    "incident_knowledge",
    "incident_sla",
    "notification",
    "users",
    "user_group_member",
)

#: A row's lookup value must be unique, else the agent could not tell which row is meant.
_UNIQUE = "(SELECT COUNT(*) FROM {table} o WHERE {same}) = 1"


class ItsmTemplate(TaskTemplate):
    """A template: `wordings` are format strings over the plan's facts."""

    wordings: tuple[str, ...]

    def draft(
        self,
        database: WorldDatabase,
        rng: Random,
        plan: Mapping[str, Any],
        checks: Sequence[StateCheck],
        *,
        writes: int,
        after: Sequence[tuple[str, str]] = (),
        avoid: Sequence[str] = (),
    ) -> Draft:
        """Word the request and close the checks with the one against collateral damage.

        checks: what was asked for, each false at the start; writes: rows that a right solution touches;
        after: prerequisites among the checks; avoid: ids of users who must not be the acting user.
        """
        last = nothing_else(database, writes)
        edges = [*after, *((check.name, last.name) for check in checks)]
        words = {n: spoken(v) if isinstance(v, list) else v for n, v in plan.items()}
        prompt = rng.choice(self.wordings).format(**words)
        return Draft(prompt, dict(plan), (*checks, last), tuple(edges), acting_user(database, rng, avoid))


# choosing ---------------------------------------------------------------------------------------
def acting_user(database: WorldDatabase, rng: Random, avoid: Sequence[str] = ()) -> str | None:
    """Id of an active agent or manager on whose behalf the request is worked on."""
    rows = database.query(
        "SELECT user_id FROM users WHERE active AND role IN ('agent', 'manager', 'admin') ORDER BY rowid"
    )
    ids = [row["user_id"] for row in rows if row["user_id"] not in avoid]
    return rng.choice(ids) if ids else None


def choose(database: WorldDatabase, rng: Random, sql: str, parameters: Sequence[Any] = ()) -> Row | None:
    """A random row of a SELECT, or None where it has none."""
    rows = database.query(sql, parameters)
    return rng.choice(rows) if rows else None


def some(rng: Random, rows: list[Row], count: int) -> list[Row] | None:
    """That many different rows, or None where there are fewer."""
    return rng.sample(rows, count) if len(rows) >= count else None


def _findable(table: str, *columns: str) -> str:
    same = " AND ".join(f"o.{column} = t.{column}" for column in columns)
    return _UNIQUE.format(table=table, same=same)


def incidents(database: WorldDatabase, where: str = "1") -> list[Row]:
    """Incidents that a look-up by number finds (numbers of two organisations can collide)."""
    return database.query(
        "SELECT * FROM incident t WHERE NOT EXISTS "
        "(SELECT 1 FROM incident o WHERE o.number = t.number AND o.rowid < t.rowid) "
        f"AND {where} ORDER BY rowid"
    )


def numbered(database: WorldDatabase, table: str, where: str = "1") -> list[Row]:
    """Problems or changes that a look-up by number finds."""
    return database.query(
        f"SELECT * FROM {table} t WHERE NOT EXISTS "
        f"(SELECT 1 FROM {table} o WHERE o.number = t.number AND o.rowid < t.rowid) "
        f"AND {where} ORDER BY rowid"
    )


def users(database: WorldDatabase, where: str = "1") -> list[Row]:
    """Active users whose full name is theirs alone."""
    unique = _findable("users", "first_name", "last_name")
    return database.query(f"SELECT * FROM users t WHERE {unique} AND active AND {where} ORDER BY rowid")


def groups(database: WorldDatabase) -> list[Row]:
    """Groups whose name is theirs alone."""
    unique = _findable("user_group", "name")
    return database.query(f"SELECT * FROM user_group t WHERE {unique} ORDER BY rowid")


def items(database: WorldDatabase, where: str = "1") -> list[Row]:
    """Configuration items."""
    return database.query(f"SELECT * FROM configuration_item t WHERE {where} ORDER BY rowid")


def spoken(values: Sequence[str]) -> str:
    """A list as a person writes it: `A, B and C`."""
    *head, last = values
    return f"{', '.join(head)} and {last}" if head else last


def full_name(user: Mapping[str, Any]) -> str:
    """First and last name."""
    return f"{user['first_name']} {user['last_name']}"


# checks -----------------------------------------------------------------------------------------
def quoted(value: Any) -> str:
    """An SQL literal."""
    return "NULL" if value is None else "'" + str(value).replace("'", "''") + "'"


def count_where(table: str, **equals: Any) -> str:
    """A query that counts the rows with these values."""
    where = " AND ".join(f"{name} IS {quoted(value)}" for name, value in equals.items())
    return f"SELECT COUNT(*) FROM {table} WHERE {where}"


def holds(name: str, table: str, *, times: int = 1, **equals: Any) -> StateCheck:
    """Exactly `times` rows have these values."""
    return StateCheck(name, count_where(table, **equals), times, world="itsm")


def all_have(name: str, table: str, ids: Sequence[str], **equals: Any) -> StateCheck:
    """All rows with these ids have these values."""
    where = " AND ".join(f"{column} IS {quoted(value)}" for column, value in equals.items())
    keys = ", ".join(quoted(key) for key in ids)
    query = f"SELECT COUNT(*) FROM {table} WHERE {TABLES[table].id} IN ({keys}) AND {where}"
    return StateCheck(name, query, len(ids), world="itsm")


def nothing_else(database: WorldDatabase, writes: int) -> StateCheck:
    """Exactly `writes` rows are new or changed since the start, in all tables that tools write to."""
    parts = " UNION ALL ".join(
        f"SELECT COUNT(*) AS n FROM {table} WHERE {TABLES[table].updated} > '{CLOCK_START}'"
        for table in WRITABLE
    )
    query = f"SELECT SUM(n) FROM ({parts})"
    before = int(database.scalar(query) or 0)
    return StateCheck("nothing_else", query, before + writes, world="itsm")


# expert blocks ----------------------------------------------------------------------------------
def find_user(name: str) -> Read:
    """Look a user up by full name."""
    first, _, last = name.partition(" ")
    names = {"first_name": first, "last_name": last}
    return read_row("get_user_using_name", names, match=names)


def find_by(tool: str, column: str, value: str) -> Read:
    """Look one object up by a column of its own."""
    return read_row(tool, {column: value}, match={column: value})


def find_incident(number: str) -> Read:
    """Look an incident up by number."""
    return find_by("find_incident_by_number", "number", number)


def find_group(name: str) -> Read:
    """Look a group up by name."""
    return find_by("find_group_by_name", "name", name)


def find_item(serial: str) -> Read:
    """Look a configuration item up by serial number."""
    return find_by("find_configuration_item_by_serial_number", "serial_number", serial)


def list_incidents(**filters: str) -> Rows:
    """List incidents by filters that are columns of theirs."""
    return read_rows("list_incidents", filters, rows="incidents", match=filters)


def update_incident(incident_id: str, **changes: str) -> Write:
    """Change an incident; a lost receipt is looked into with a list that filters on the new values."""
    values = {"incident_id": incident_id, **changes}
    return write("update_incident", values, landed=in_list("list_incidents", "incidents", values))


def in_list(
    tool: str, rows: str, filters: Mapping[str, str], *, match: Mapping[str, Any] | None = None
) -> Callable[[], Read]:
    """A `landed` block: a row of the list under these filters.

    match: values that the row must have; by default the filters, as far as the row shows them.
    """

    def agrees(row: Row) -> bool:
        return matches(row, match or {n: v for n, v in filters.items() if n in row})

    def look() -> Read:
        found = yield from read_rows(tool, dict(filters), rows=rows)
        return next((row for row in found if agrees(row)), None)

    return look


def needed(row: Row | None, column: str) -> str:
    """A value of a row that was found."""
    if row is None:
        raise ExpertError(f"no row to take '{column}' from")
    return str(row[column])
