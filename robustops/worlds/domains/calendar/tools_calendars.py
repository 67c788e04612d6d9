"""Tools for calendars and for the acting user's list of calendars."""

from __future__ import annotations

from robustops.errors import ToolError
from robustops.worlds.domains.calendar.tools_base import CalendarTools, Reply, given, text
from robustops.worlds.toolset import require, tool


class CalendarsTools(CalendarTools):
    """Calendars, calendar list, colours."""

    @tool("read")
    def list_calendars(self, name: str | None = None, owner_email: str | None = None) -> Reply:
        """List calendars.

        Args:
            name: text in the calendar's name
            owner_email: e-mail of the owner
        """
        rows = self._select("calendars", contains={"name": name}, owner_email=owner_email, order="rowid")
        return self._list("calendars", "calendars", rows)

    @tool("read", identity={"calendar_id": "calendars.calendar_id"})
    def get_calendar(self, calendar_id: str) -> Reply:
        """Show one calendar with its time zone.

        Args:
            calendar_id: id of the calendar
        """
        return self.show("calendar_details", self._calendar(calendar_id))

    @tool("write")
    def create_calendar(
        self, name: str, description: str | None = None, time_zone: str | None = None
    ) -> Reply:
        """Create a calendar owned by the acting user.

        Args:
            name: name of the new calendar
            description: what it is for
            time_zone: such as Europe/Berlin; the owner's where left out
        """
        me, now = self._me(), self.database.now()
        calendar_id = self._new_id("calendars", "calendar_id", "cal_", 2)
        row = {
            "calendar_id": calendar_id,
            "name": text(name, "name"),
            "description": description,
            "owner_email": me,
            "time_zone": time_zone or self._user(me)["time_zone"],
            "is_primary": 0,
            "created_at": now,
            "updated_at": now,
        }
        self.database.insert("calendars", row)
        rule = {"rule_id": self._new_id("acl_rules", "rule_id", "acl_", 3), "calendar_id": calendar_id}
        self.database.insert("acl_rules", {**rule, "email": me, "role": "owner"})
        entry = {"email": me, "calendar_id": calendar_id, "color_id": None, "hidden": 0}
        self.database.insert("calendar_list", entry)
        return self.show("calendars", row)

    @tool("write")
    def update_calendar(
        self,
        calendar_id: str,
        name: str | None = None,
        description: str | None = None,
        time_zone: str | None = None,
    ) -> Reply:
        """Change a calendar's name, description or time zone.

        Args:
            calendar_id: id of the calendar
            name: new name
            description: new description
            time_zone: such as Europe/Berlin
        """
        self._calendar(calendar_id)
        changes = given(name=name, description=description, time_zone=time_zone)
        if name is not None:
            text(name, "name")
        changes["updated_at"] = self.database.now()
        self.database.update("calendars", {"calendar_id": calendar_id}, changes)
        return self.show("calendars", self._calendar(calendar_id))

    @tool("write")
    def delete_calendar(self, calendar_id: str) -> Reply:
        """Delete a calendar that has no confirmed events, with its access rules.

        Args:
            calendar_id: id of the calendar
        """
        calendar = self._calendar(calendar_id)
        if calendar["is_primary"]:
            raise ToolError("FORBIDDEN", "a primary calendar cannot be deleted", "calendar_id")
        events = self.database.find("events", calendar_id=calendar_id)
        left = sum(event["status"] == "confirmed" for event in events)
        if left:
            message = f"calendar '{calendar_id}' still has {left} events; move or cancel them first"
            raise ToolError("CALENDAR_NOT_EMPTY", message, "calendar_id")
        for event in events:
            for table in ("attendees", "reminders", "notifications", "events"):
                self.database.delete(table, {"event_id": event["event_id"]})
        for table in ("acl_rules", "calendar_list", "calendars"):
            self.database.delete(table, {"calendar_id": calendar_id})
        return {**self.show("calendars", calendar), "deleted": True}

    # the acting user's list -----------------------------------------------------------------------
    @tool("read")
    def get_calendar_list(self) -> Reply:
        """List the acting user's calendar list with colours."""
        rows = self._select("calendar_list", email=self._me(), order="rowid")
        return self._list("calendar_list", "calendar_list", rows)

    @tool("write")
    def add_calendar_to_list(self, calendar_id: str, color_id: str | None = None) -> Reply:
        """Add a calendar to the acting user's list.

        Args:
            calendar_id: id of the calendar
            color_id: id of its colour
        """
        self._calendar(calendar_id)
        if color_id is not None:
            self._color(color_id)
        if self.database.find("calendar_list", email=self._me(), calendar_id=calendar_id):
            raise ToolError(
                "ALREADY_EXISTS", f"calendar '{calendar_id}' is on the list already", "calendar_id"
            )
        row = {"email": self._me(), "calendar_id": calendar_id, "color_id": color_id, "hidden": 0}
        self.database.insert("calendar_list", row)
        return self.show("calendar_list", row)

    @tool("write")
    def update_calendar_in_list(
        self, calendar_id: str, color_id: str | None = None, hidden: bool | None = None
    ) -> Reply:
        """Set a calendar's colour or hide it in the acting user's list.

        Args:
            calendar_id: id of the calendar
            color_id: id of the colour, see get_colors
            hidden: whether it is hidden
        """
        self._entry(calendar_id)
        changes = given(color_id=color_id, hidden=None if hidden is None else int(hidden))
        if color_id is not None:
            self._color(color_id)
        where = {"email": self._me(), "calendar_id": calendar_id}
        self.database.update("calendar_list", where, changes)
        return self.show("calendar_list", self._entry(calendar_id))

    @tool("write")
    def remove_calendar_from_list(self, calendar_id: str) -> Reply:
        """Take a calendar off the acting user's list.

        Args:
            calendar_id: id of the calendar
        """
        entry = self._entry(calendar_id)
        self.database.delete("calendar_list", {"email": self._me(), "calendar_id": calendar_id})
        return {**self.show("calendar_list", entry), "deleted": True}

    @tool("read")
    def get_colors(self, color_name: str | None = None) -> Reply:
        """List the colours.

        Args:
            color_name: text in the colour's name
        """
        rows = self._select("colors", contains={"color_name": color_name}, order="rowid")
        return self._list("colors", "colors", rows)

    def _entry(self, calendar_id: str) -> Reply:
        found = self.database.find("calendar_list", email=self._me(), calendar_id=calendar_id)
        return require(found, "calendar list entry", calendar_id, "calendar_id")
