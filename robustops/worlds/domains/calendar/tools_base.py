"""What all calendar tools share: look-ups, ids, list replies."""

from __future__ import annotations

from typing import Any

from robustops.errors import ToolError
from robustops.seeding import child_seed
from robustops.worlds.database import Row
from robustops.worlds.domains.calendar.schema import BRIEF_COLUMNS
from robustops.worlds.toolset import Toolset, require

Reply = dict[str, Any]


class CalendarTools(Toolset):
    """Base of the groups of tools."""

    brief_columns = BRIEF_COLUMNS

    def _me(self) -> str:
        """E-mail of the acting user; the first user where none is set."""
        return str(self.acting_user or self.database.scalar("SELECT email FROM users ORDER BY rowid LIMIT 1"))

    def _calendar(self, calendar_id: str) -> Row:
        return require(
            self.database.find("calendars", calendar_id=calendar_id), "calendar", calendar_id, "calendar_id"
        )

    def _event(self, event_id: str) -> Row:
        return require(self.database.find("events", event_id=event_id), "event", event_id, "event_id")

    def _active_event(self, event_id: str) -> Row:
        """An event that may be changed."""
        event = self._event(event_id)
        if event["status"] == "cancelled":
            raise ToolError(
                "INVALID_TRANSITION", f"event '{event_id}' is cancelled and cannot be changed", "event_id"
            )
        return event

    def _user(self, email: str) -> Row:
        return require(self.database.find("users", email=email), "user", email, "email")

    def _room(self, room_id: str) -> Row:
        return require(self.database.find("rooms", room_id=room_id), "room", room_id, "room_id")

    def _color(self, color_id: str) -> Row:
        return require(self.database.find("colors", color_id=color_id), "color", color_id, "color_id")

    def _list(self, key: str, table: str, rows: list[Row]) -> Reply:
        return {key: [self.show(table, row) for row in rows], "total_count": len(rows)}

    def _select(self, table: str, *, contains: Row | None = None, order: str, **equals: Any) -> list[Row]:
        """Rows by equality and by contained text (any case); conditions on None are left out."""
        conditions, parameters = ["1 = 1"], []
        for name, value in equals.items():
            if value is not None:
                conditions.append(f'"{name}" = ? COLLATE NOCASE')
                parameters.append(value)
        for name, value in (contains or {}).items():
            if value is not None:
                conditions.append(f'instr(lower("{name}"), lower(?)) > 0')
                parameters.append(value)
        sql = f'SELECT * FROM "{table}" WHERE {" AND ".join(conditions)} ORDER BY {order}'
        return self.database.query(sql, parameters)

    def _new_id(self, table: str, column: str, prefix: str, digits: int) -> str:
        """An unused short id. It depends on this world's rows and counter only, so replays agree."""
        first = self.database.scalar(f'SELECT MIN("{column}") FROM "{table}"')
        tries = 0
        while True:
            seed = child_seed(self.database.count(table), prefix, str(first))
            low = 10 ** (digits + tries // 20 - 1)
            candidate = f"{prefix}{low + seed % (9 * low)}"
            if not self.database.find(table, **{column: candidate}):
                return candidate
            tries += 1


def given(**changes: Any) -> Row:
    """The arguments that were given; NOTHING_TO_CHANGE where none was."""
    kept = {name: value for name, value in changes.items() if value is not None}
    if not kept:
        raise ToolError("NOTHING_TO_CHANGE", f"give at least one of: {', '.join(changes)}")
    return kept


def text(value: str, field: str) -> str:
    """A text that is not blank."""
    if not value.strip():
        raise ToolError("INVALID_ARGUMENT", f"'{field}' must not be blank", field)
    return value
