"""Tools for rooms, free/busy times and reminders."""

from __future__ import annotations

from robustops.errors import ToolError
from robustops.worlds.database import Row
from robustops.worlds.domains.calendar.schema import Method, parse_time
from robustops.worlds.domains.calendar.tools_base import CalendarTools, Reply
from robustops.worlds.toolset import require, tool

#: Four weeks, the longest that the peer's calendar allows.
_MOST_MINUTES = 40320


class PlacesTools(CalendarTools):
    """Rooms, free/busy, reminders."""

    @tool("read")
    def list_rooms(
        self, building: str | None = None, room_name: str | None = None, min_capacity: int | None = None
    ) -> Reply:
        """List meeting rooms.

        Args:
            building: building
            room_name: text in the room's name
            min_capacity: seats needed
        """
        rows = self._select("rooms", contains={"room_name": room_name}, building=building, order="rowid")
        rows = [row for row in rows if min_capacity is None or row["capacity"] >= min_capacity]
        return self._list("rooms", "rooms", rows)

    @tool("read", identity={"room_id": "rooms.room_id"})
    def get_room(self, room_id: str) -> Reply:
        """Show one room.

        Args:
            room_id: id of the room
        """
        return self.show("rooms", self._room(room_id))

    @tool("read")
    def query_freebusy(
        self,
        start_time: str,
        end_time: str,
        room_id: str | None = None,
        email: str | None = None,
        calendar_id: str | None = None,
    ) -> Reply:
        """List busy times of a room, a person or a calendar.

        Args:
            start_time: from, such as 2026-03-05 14:30
            end_time: until
            room_id: id of the room
            email: e-mail of the person
            calendar_id: id of the calendar
        """
        if parse_time(end_time, "end_time") <= parse_time(start_time, "start_time"):
            message = f"the end {end_time} is not after the start {start_time}"
            raise ToolError("INVALID_TIME_RANGE", message, "end_time")
        if room_id is None and email is None and calendar_id is None:
            raise ToolError("MISSING_ARGUMENT", "give a room_id, an email or a calendar_id", "room_id")
        conditions, parameters = ["status = 'confirmed' AND start_time < ? AND end_time > ?"], []
        asked: Row = {}
        if room_id is not None:
            asked["room_id"] = self._room(room_id)["room_id"]
            conditions.append("room_id = ?")
            parameters.append(room_id)
        if calendar_id is not None:
            asked["calendar_id"] = self._calendar(calendar_id)["calendar_id"]
            conditions.append("calendar_id = ?")
            parameters.append(calendar_id)
        if email is not None:
            asked["email"] = self._user(email)["email"]
            conditions.append("event_id IN (SELECT event_id FROM attendees WHERE email = ?)")
            parameters.append(email)
        sql = f"SELECT start_time, end_time FROM events WHERE {' AND '.join(conditions)} ORDER BY start_time"
        rows = self.database.query(sql, (end_time, start_time, *parameters))
        return {**asked, "busy": rows, "total_count": len(rows)}

    @tool("read")
    def list_reminders(self, event_id: str) -> Reply:
        """List the reminders of an event.

        Args:
            event_id: id of the event
        """
        self._event(event_id)
        return self._list(
            "reminders", "reminders", self._select("reminders", event_id=event_id, order="rowid")
        )

    @tool("write")
    def add_reminder(self, event_id: str, method: Method, minutes_before: int) -> Reply:
        """Add a reminder to an event.

        Args:
            event_id: id of the event
            method: popup or email
            minutes_before: minutes before the start
        """
        self._active_event(event_id)
        if not 0 <= minutes_before <= _MOST_MINUTES:
            message = f"minutes_before is {minutes_before}; it must be from 0 to {_MOST_MINUTES}"
            raise ToolError("INVALID_ARGUMENT", message, "minutes_before")
        values = {"event_id": event_id, "method": method, "minutes_before": minutes_before}
        if self.database.find("reminders", **values):
            raise ToolError("ALREADY_EXISTS", f"event '{event_id}' has that reminder already", "event_id")
        row = {"reminder_id": self._new_id("reminders", "reminder_id", "rem_", 3), **values}
        self.database.insert("reminders", row)
        return self.show("reminders", row)

    @tool("write")
    def delete_reminder(self, reminder_id: str) -> Reply:
        """Delete a reminder.

        Args:
            reminder_id: id of the reminder
        """
        found = self.database.find("reminders", reminder_id=reminder_id)
        row = require(found, "reminder", reminder_id, "reminder_id")
        self.database.delete("reminders", {"reminder_id": reminder_id})
        return {**self.show("reminders", row), "deleted": True}
