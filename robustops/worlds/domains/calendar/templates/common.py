"""What the calendar templates share: choosing rows, state checks, pieces of experts."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any, ClassVar

from robustops.records import StateCheck, ToolCall, ToolResult
from robustops.worlds.database import Row, WorldDatabase
from robustops.worlds.domain import Draft, TaskTemplate
from robustops.worlds.domains.calendar.schema import TIME_FORMAT, room_bookings
from robustops.worlds.domains.calendar.vocabulary import all_titles
from robustops.worlds.expert import (
    ExpertError,
    Rows,
    Write,
    matches,
    read_rows,
    seen_in,
    seen_values,
    write,
)

DONE = "Done."
Facts = dict[str, Any]
_COUNTED = ("acl_rules", "attendees", "calendar_list", "calendars", "events", "notifications", "reminders")


class CalendarTemplate(TaskTemplate):
    """A template whose request is one of `wordings`, filled with facts of the start state."""

    wordings: ClassVar[tuple[str, ...]]

    def draft(
        self,
        database: WorldDatabase,
        rng: Random,
        plan: Facts,
        checks: Sequence[StateCheck],
        edges: Sequence[tuple[str, str]],
        **words: str,
    ) -> Draft:
        """The draft of a task. words: further values of the wording that the plan need not hold."""
        prompt = rng.choice(self.wordings).format(**{**plan, **words})
        prompt = prompt[0].upper() + prompt[1:]
        return Draft(prompt, plan, tuple(checks), tuple(edges), acting_user=acting_user(database))


# start states -----------------------------------------------------------------------------------
def acting_user(database: WorldDatabase) -> str:
    """The person on whose behalf tasks are worked on: the first user."""
    return str(database.scalar("SELECT email FROM users ORDER BY rowid LIMIT 1"))


def pick(rng: Random, rows: Sequence[Row]) -> Row | None:
    """One of the rows, or None where there are none."""
    return rng.choice(rows) if rows else None


def people(database: WorldDatabase) -> list[Row]:
    """Users whose full name is theirs alone."""
    return database.query(
        "SELECT * FROM users u WHERE (SELECT COUNT(*) FROM users v WHERE v.full_name = u.full_name "
        "COLLATE NOCASE) = 1 ORDER BY email"
    )


def calendars(database: WorldDatabase) -> list[Row]:
    """Shared calendars whose name is theirs alone; primary ones belong to a person and are left out."""
    return database.query(
        "SELECT * FROM calendars c WHERE is_primary = 0 AND (SELECT COUNT(*) FROM calendars d "
        "WHERE d.name = c.name COLLATE NOCASE) = 1 ORDER BY calendar_id"
    )


def events(database: WorldDatabase, *, alone: bool = False) -> list[Row]:
    """Confirmed events that calendar name and title single out (`alone`: the title by itself does).

    Each row has the columns of the event and `calendar`, the calendar's name.
    """
    scope = "1 = 1" if alone else "x.calendar_id = e.calendar_id"
    names = {row["calendar_id"]: row["name"] for row in calendars(database)}
    rows = database.query(
        "SELECT e.* FROM events e WHERE e.status = 'confirmed' AND (SELECT COUNT(*) FROM events x "
        f"WHERE x.title = e.title COLLATE NOCASE AND {scope}) = 1 ORDER BY e.event_id"
    )
    return [{**row, "calendar": names[row["calendar_id"]]} for row in rows if row["calendar_id"] in names]


def outsiders(database: WorldDatabase, event: Row) -> list[Row]:
    """People who are not invited to an event."""
    invited = {row["email"] for row in database.find("attendees", event_id=event["event_id"])}
    return [row for row in people(database) if row["email"] not in invited]


def new_title(database: WorldDatabase, rng: Random) -> str:
    """A title that no event has."""
    used = {row["title"] for row in database.query("SELECT title FROM events")}
    return rng.choice([title for title in all_titles() if title not in used])


def new_times(database: WorldDatabase, rng: Random, event: Row | None = None) -> tuple[str, str] | None:
    """Start and end of a free time in office hours; of `event`, its length is kept and its room is free."""
    length = timedelta(minutes=rng.choice((30, 45, 60, 90)))
    if event is not None:
        length = _time(event["end_time"]) - _time(event["start_time"])
    for _ in range(20):
        day = datetime(2026, 1, 12) + timedelta(days=rng.randrange(80))
        start = day + timedelta(minutes=30 * rng.randrange(16, 34))
        times = start.strftime(TIME_FORMAT), (start + length).strftime(TIME_FORMAT)
        if day.weekday() < 5 and not (event and _hindered(database, event, *times)):
            return times
    return None


def _time(text: str) -> datetime:
    return datetime.strptime(text, TIME_FORMAT)


def _hindered(database: WorldDatabase, event: Row, start: str, end: str) -> bool:
    """Whether an event cannot or need not move to a time: its room is taken, or it is there already."""
    room = event["room_id"]
    taken = room is not None and bool(room_bookings(database, room, start, end, event["event_id"]))
    return taken or start == event["start_time"]


# state checks -----------------------------------------------------------------------------------
def quote(value: str) -> str:
    """A text as a SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def on_calendar(name: str) -> str:
    """SQL condition on rows with a calendar_id: the calendar of that name."""
    return f"calendar_id IN (SELECT calendar_id FROM calendars WHERE name = {quote(name)})"


def of_event(title: str, calendar: str | None = None) -> str:
    """SQL condition on rows with an event_id: the event of that title (and calendar)."""
    where = f"title = {quote(title)}" + (f" AND {on_calendar(calendar)}" if calendar else "")
    return f"event_id IN (SELECT event_id FROM events WHERE {where})"


def counted(name: str, table: str, where: str, expected: int = 1) -> StateCheck:
    """A check on the number of rows that satisfy a condition."""
    return StateCheck(name, f"SELECT COUNT(*) FROM {table} WHERE {where}", expected, world="calendar")


def row_counts(database: WorldDatabase, **more: int) -> StateCheck:
    """Against duplicates: every table has as many rows as at the start, plus those asked for."""
    parts = [f"'{table} ' || (SELECT COUNT(*) FROM {table})" for table in _COUNTED]
    query = "SELECT " + " || ', ' || ".join(parts)
    counts = {table: int(database.scalar(f"SELECT COUNT(*) FROM {table}")) for table in _COUNTED}
    expected = ", ".join(f"{table} {counts[table] + more.get(table, 0)}" for table in _COUNTED)
    return StateCheck("no_extra_rows", query, expected, world="calendar")


def others_untouched(database: WorldDatabase, *targets: str) -> StateCheck:
    """Against collateral damage: no event changed but those that one of the conditions selects."""
    where = f"updated_at > {quote(database.now())}"
    for target in targets:
        where += f" AND NOT ({target})"
    before = int(database.scalar(f"SELECT COUNT(*) FROM events WHERE {where}"))
    return counted("other_events_untouched", "events", where, before)


def access_list(
    database: WorldDatabase, calendar: str, changes: Mapping[str, str | None], name: str = "access_list"
) -> StateCheck:
    """The whole access list of a calendar after changes (e-mail -> role, None = no access)."""
    query = (
        "SELECT group_concat(email || ' ' || role, ', ') FROM (SELECT email, role FROM acl_rules WHERE "
        f"{on_calendar(calendar)} ORDER BY email)"
    )
    rules = database.query(f"SELECT email, role FROM acl_rules WHERE {on_calendar(calendar)}")
    roles = {**{rule["email"]: rule["role"] for rule in rules}, **changes}
    expected = ", ".join(f"{email} {role}" for email, role in sorted(roles.items()) if role)
    return StateCheck(name, query, expected, world="calendar")


# pieces of experts ------------------------------------------------------------------------------
def find_one(
    name: str, arguments: Facts, *, rows: str, scope: Mapping[str, Any], match: Mapping[str, Any]
) -> Generator[ToolCall, ToolResult, Row]:
    """Look an object up in a list.

    scope: columns that every row of a reply to this question has in common, which tells another
    request's reply; match: what singles the object out.
    """
    found = yield from read_rows(name, arguments, rows=rows, match=scope)
    for row in found:
        if matches(row, match):
            return row
    raise ExpertError(f"{name} {arguments} shows nothing with {dict(match)}")


def find_calendar(name: str) -> Write:
    """Look a calendar up by name."""
    match = {"name": name}
    return find_one("list_calendars", match, rows="calendars", scope=match, match=match)


def find_user(full_name: str) -> Write:
    """Look a person up by full name."""
    match = {"full_name": full_name}
    return find_one("list_users", match, rows="users", scope=match, match=match)


def find_event(title: str, calendar_id: str | None = None) -> Write:
    """Look an event up by title, on one calendar if that is known."""
    arguments = {"title": title} if calendar_id is None else {"calendar_id": calendar_id, "title": title}
    scope = {"title": title} if calendar_id is None else {"calendar_id": calendar_id}
    return find_one("list_events", arguments, rows="events", scope=scope, match={"title": title})


def find_event_on(calendar: str, title: str) -> Write:
    """Look a calendar up by name, then an event on it by title."""
    found = yield from find_calendar(calendar)
    return (yield from find_event(title, found["calendar_id"]))


def events_on(calendar_id: str) -> Rows:
    """All events of one calendar."""
    match = {"calendar_id": calendar_id}
    return read_rows("list_events", dict(match), rows="events", match=match)


def update_event(event_id: str, **values: Any) -> Write:
    """Change columns of an event that get_event shows."""
    landed = seen_values("get_event", {"event_id": event_id}, identity={"event_id": event_id}, values=values)
    return write("update_event", {"event_id": event_id, **values}, landed=landed)


def add_attendee(event_id: str, email: str) -> Write:
    """Invite a person to an event."""
    landed = seen_in("list_attendees", {"event_id": event_id}, rows="attendees", match={"email": email})
    return write("add_attendee", {"event_id": event_id, "email": email}, landed=landed)


def notify(event_id: str, message: str) -> Write:
    """Send a message to an event's attendees."""
    match = {"message": message}
    landed = seen_in("list_notifications", {"event_id": event_id}, rows="notifications", match=match)
    return write("notify_attendees", {"event_id": event_id, "message": message}, landed=landed)


def move_event(event_id: str, calendar_id: str) -> Write:
    """Move an event to another calendar."""
    arguments = {"calendar_id": calendar_id}
    landed = seen_in("list_events", arguments, rows="events", match={"event_id": event_id})
    return write("move_event", {"event_id": event_id, **arguments}, landed=landed)


def listed(names: Sequence[str]) -> str:
    """`A`, `A and B`, `A, B and C`."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
