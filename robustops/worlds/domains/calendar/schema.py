"""Tables of the calendar world, its enumerations, and the text forms of times."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Literal

from robustops.errors import ToolError
from robustops.worlds.database import Row, WorldDatabase

Role = Literal["freeBusyReader", "reader", "writer", "owner"]
Response = Literal["needsAction", "accepted", "tentative", "declined"]
Method = Literal["popup", "email"]
Visibility = Literal["default", "public", "private"]

TIME_FORMAT = "%Y-%m-%d %H:%M"
_TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d$")
_DAY = re.compile(r"^\d{4}-\d\d-\d\d$")

SCHEMA = """
CREATE TABLE users (
    email TEXT PRIMARY KEY,
    full_name TEXT NOT NULL,
    department TEXT NOT NULL,
    manager_email TEXT REFERENCES users(email),
    time_zone TEXT NOT NULL
);
CREATE TABLE calendars (
    calendar_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    description TEXT,
    owner_email TEXT NOT NULL REFERENCES users(email),
    time_zone TEXT NOT NULL,
    is_primary INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
);
CREATE TABLE colors (
    color_id TEXT PRIMARY KEY,
    color_name TEXT NOT NULL
);
CREATE TABLE calendar_list (
    email TEXT NOT NULL REFERENCES users(email),
    calendar_id TEXT NOT NULL REFERENCES calendars(calendar_id),
    color_id TEXT REFERENCES colors(color_id),
    hidden INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (email, calendar_id)
);
CREATE TABLE acl_rules (
    rule_id TEXT PRIMARY KEY,
    calendar_id TEXT NOT NULL REFERENCES calendars(calendar_id),
    email TEXT NOT NULL REFERENCES users(email),
    role TEXT NOT NULL,
    UNIQUE (calendar_id, email)
);
CREATE TABLE rooms (
    room_id TEXT PRIMARY KEY,
    room_name TEXT NOT NULL,
    building TEXT NOT NULL,
    capacity INTEGER NOT NULL
);
CREATE TABLE events (
    event_id TEXT PRIMARY KEY,
    calendar_id TEXT NOT NULL REFERENCES calendars(calendar_id),
    title TEXT NOT NULL,
    description TEXT,
    location TEXT,
    start_time TEXT NOT NULL,
    end_time TEXT NOT NULL,
    room_id TEXT REFERENCES rooms(room_id),
    color_id TEXT REFERENCES colors(color_id),
    status TEXT NOT NULL,
    visibility TEXT NOT NULL,
    organizer_email TEXT NOT NULL REFERENCES users(email),
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
);
CREATE TABLE attendees (
    event_id TEXT NOT NULL REFERENCES events(event_id),
    email TEXT NOT NULL REFERENCES users(email),
    response_status TEXT NOT NULL,
    optional INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (event_id, email)
);
CREATE TABLE reminders (
    reminder_id TEXT PRIMARY KEY,
    event_id TEXT NOT NULL REFERENCES events(event_id),
    method TEXT NOT NULL,
    minutes_before INTEGER NOT NULL
);
CREATE TABLE notifications (
    notification_id TEXT PRIMARY KEY,
    event_id TEXT NOT NULL REFERENCES events(event_id),
    message TEXT NOT NULL,
    sent_by TEXT NOT NULL REFERENCES users(email),
    sent_at TEXT NOT NULL
);
"""

#: What a brief reply keeps. `*_details` are the replies of reads about one object.
BRIEF_COLUMNS: dict[str, tuple[str, ...]] = {
    "users": ("email", "full_name", "department"),
    "user_details": ("email", "full_name", "department", "manager_email"),
    "calendars": ("calendar_id", "name", "owner_email"),
    "calendar_details": ("calendar_id", "name", "owner_email", "time_zone"),
    "calendar_list": ("calendar_id", "color_id", "hidden"),
    "colors": ("color_id", "color_name"),
    "acl_rules": ("rule_id", "calendar_id", "email", "role"),
    "rooms": ("room_id", "room_name", "building", "capacity"),
    "events": ("event_id", "calendar_id", "title", "start_time"),
    "event_details": ("event_id", "title", "start_time", "end_time", "room_id", "status"),
    "attendees": ("event_id", "email", "response_status"),
    "reminders": ("reminder_id", "event_id", "method", "minutes_before"),
    "notifications": ("notification_id", "event_id", "message"),
}


def parse_time(text: str, field: str) -> datetime:
    """A local time; ToolError INVALID_TIME unless it has the form `2026-03-05 14:30`."""
    try:
        if _TIME.match(text):
            return datetime.strptime(text, TIME_FORMAT)
    except ValueError:
        pass
    raise ToolError("INVALID_TIME", f"'{text}' is no time; write it as 2026-03-05 14:30", field)


def parse_day(text: str, field: str) -> str:
    """A calendar day; ToolError INVALID_TIME unless it has the form `2026-03-05`."""
    try:
        if _DAY.match(text):
            datetime.strptime(text, "%Y-%m-%d")
            return text
    except ValueError:
        pass
    raise ToolError("INVALID_TIME", f"'{text}' is no day; write it as 2026-03-05", field)


def room_bookings(database: WorldDatabase, room_id: str, start: str, end: str, but: str = "") -> list[Row]:
    """Confirmed events, other than `but`, that occupy a room at some moment from start to end."""
    return database.query(
        "SELECT * FROM events WHERE room_id = ? AND status = 'confirmed' AND start_time < ? "
        "AND end_time > ? AND event_id <> ? ORDER BY start_time, event_id",
        (room_id, end, start, but),
    )
