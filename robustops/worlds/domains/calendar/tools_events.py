"""Tools for events."""

from __future__ import annotations

from datetime import datetime, timedelta

from robustops.errors import ToolError
from robustops.worlds.database import Row
from robustops.worlds.domains.calendar.schema import (
    TIME_FORMAT,
    Visibility,
    parse_day,
    parse_time,
    room_bookings,
)
from robustops.worlds.domains.calendar.tools_base import CalendarTools, Reply, given, text
from robustops.worlds.toolset import tool

_DEFAULT_LENGTH = timedelta(minutes=60)


class EventsTools(CalendarTools):
    """Events: find, create, change, move, cancel."""

    @tool("read")
    def list_events(
        self,
        calendar_id: str | None = None,
        title: str | None = None,
        day: str | None = None,
        email: str | None = None,
        show_cancelled: bool = False,
    ) -> Reply:
        """List events by start; cancelled ones only on request.

        Args:
            calendar_id: id of the calendar
            title: text in the title
            day: day such as 2026-03-05
            email: e-mail of an attendee
            show_cancelled: also list cancelled events
        """
        rows = self._select(
            "events",
            contains={"title": title},
            calendar_id=calendar_id,
            status=None if show_cancelled else "confirmed",
            order="start_time, event_id",
        )
        if day is not None:
            parse_day(day, "day")
            rows = [row for row in rows if row["start_time"].startswith(day)]
        if email is not None:
            invited = {row["event_id"] for row in self.database.find("attendees", email=email)}
            rows = [row for row in rows if row["event_id"] in invited]
        return self._list("events", "events", rows)

    @tool("read", identity={"event_id": "events.event_id"})
    def get_event(self, event_id: str) -> Reply:
        """Show one event with its end, room and status.

        Args:
            event_id: id of the event
        """
        return self.show("event_details", self._event(event_id))

    @tool("write")
    def create_event(
        self,
        calendar_id: str,
        title: str,
        start_time: str,
        end_time: str | None = None,
        room_id: str | None = None,
        description: str | None = None,
        location: str | None = None,
        visibility: Visibility = "default",
    ) -> Reply:
        """Create an event.

        Args:
            calendar_id: id of the calendar
            title: title of the event
            start_time: such as 2026-03-05 14:30
            end_time: one hour after the start where left out
            room_id: room to book
            description: longer text
            location: place outside the rooms
            visibility: who sees the details
        """
        self._calendar(calendar_id)
        start = parse_time(start_time, "start_time")
        end = parse_time(end_time, "end_time") if end_time is not None else start + _DEFAULT_LENGTH
        now = self.database.now()
        row = {
            "event_id": self._new_id("events", "event_id", "evt_", 4),
            "calendar_id": calendar_id,
            "title": text(title, "title"),
            "description": description,
            "location": location,
            **self._when_and_where(start, end, room_id),
            "color_id": None,
            "status": "confirmed",
            "visibility": visibility,
            "organizer_email": self._me(),
            "created_at": now,
            "updated_at": now,
        }
        self.database.insert("events", row)
        return self.show("events", row)

    @tool("write")
    def update_event(
        self,
        event_id: str,
        start_time: str | None = None,
        title: str | None = None,
        room_id: str | None = None,
        end_time: str | None = None,
        description: str | None = None,
        location: str | None = None,
        color_id: str | None = None,
        visibility: Visibility | None = None,
    ) -> Reply:
        """Change an event. A new start alone keeps its length.

        Args:
            event_id: id of the event
            start_time: new start such as 2026-03-05 14:30
            title: new title
            room_id: room to book; empty text releases the room
            end_time: new end
            description: new description
            location: place outside the rooms
            color_id: id of the colour, see get_colors
            visibility: who sees the details
        """
        event = self._active_event(event_id)
        fields = {"title": title, "description": description, "location": location, "color_id": color_id}
        moment = {"start_time": start_time, "end_time": end_time, "room_id": room_id}
        changes = given(**fields, visibility=visibility, **moment)
        if title is not None:
            text(title, "title")
        if color_id is not None:
            self._color(color_id)
        if any(value is not None for value in moment.values()):
            changes |= self._changed_moment(event, start_time, end_time, room_id)
        changes["updated_at"] = self.database.now()
        self.database.update("events", {"event_id": event_id}, changes)
        return self.show("events", self._event(event_id))

    @tool("write")
    def move_event(self, event_id: str, calendar_id: str) -> Reply:
        """Move an event to another calendar.

        Args:
            event_id: id of the event
            calendar_id: id of the calendar it goes to
        """
        event = self._active_event(event_id)
        self._calendar(calendar_id)
        if event["calendar_id"] == calendar_id:
            raise ToolError(
                "ALREADY_EXISTS", f"event '{event_id}' is on that calendar already", "calendar_id"
            )
        changes = {"calendar_id": calendar_id, "updated_at": self.database.now()}
        self.database.update("events", {"event_id": event_id}, changes)
        return self.show("events", self._event(event_id))

    @tool("write")
    def cancel_event(self, event_id: str) -> Reply:
        """Cancel an event; it stays on record and releases its room.

        Args:
            event_id: id of the event
        """
        self._active_event(event_id)
        changes = {"status": "cancelled", "updated_at": self.database.now()}
        self.database.update("events", {"event_id": event_id}, changes)
        return self.show("event_details", self._event(event_id))

    @tool("write")
    def delete_event(self, event_id: str) -> Reply:
        """Erase an event with its attendees and reminders.

        Args:
            event_id: id of the event
        """
        event = self._event(event_id)
        for table in ("attendees", "reminders", "notifications", "events"):
            self.database.delete(table, {"event_id": event_id})
        return {**self.show("events", event), "deleted": True}

    def _changed_moment(self, event: Row, start: str | None, end: str | None, room: str | None) -> Row:
        """Start, end and room of an event after a change of some of them."""
        old_start = parse_time(event["start_time"], "start_time")
        old_end = parse_time(event["end_time"], "end_time")
        new_start = parse_time(start, "start_time") if start is not None else old_start
        new_end = parse_time(end, "end_time") if end is not None else old_end
        if end is None and start is not None:
            new_end = new_start + (old_end - old_start)
        room_id = event["room_id"] if room is None else room or None
        return self._when_and_where(new_start, new_end, room_id, event["event_id"])

    def _when_and_where(self, start: datetime, end: datetime, room_id: str | None, but: str = "") -> Row:
        """The three columns, after refusing an end before the start and a room that is taken."""
        if end <= start:
            message = f"the end {end:{TIME_FORMAT}} is not after the start {start:{TIME_FORMAT}}"
            raise ToolError("INVALID_TIME_RANGE", message, "end_time")
        times = {"start_time": start.strftime(TIME_FORMAT), "end_time": end.strftime(TIME_FORMAT)}
        if room_id is not None:
            self._room(room_id)
            taken = room_bookings(self.database, room_id, times["start_time"], times["end_time"], but)
            if taken:
                message = f"room '{room_id}' is taken from {taken[0]['start_time']} to {taken[0]['end_time']}"
                raise ToolError("ROOM_BUSY", message, "room_id")
        return {**times, "room_id": room_id}
