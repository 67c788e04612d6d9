"""Tools around people: directory, attendees, notifications, access rules."""

from __future__ import annotations

from robustops.errors import ToolError
from robustops.worlds.database import Row
from robustops.worlds.domains.calendar.schema import Response, Role
from robustops.worlds.domains.calendar.tools_base import CalendarTools, Reply, text
from robustops.worlds.toolset import require, tool


class PeopleTools(CalendarTools):
    """Directory, attendees, notifications."""

    @tool("read")
    def list_users(self, full_name: str | None = None, department: str | None = None) -> Reply:
        """Search the directory of people.

        Args:
            full_name: text in the name
            department: department
        """
        rows = self._select(
            "users", contains={"full_name": full_name}, department=department, order="full_name"
        )
        return self._list("users", "users", rows)

    @tool("read", identity={"email": "users.email"})
    def get_user_by_email(self, email: str) -> Reply:
        """Show one person with department and manager.

        Args:
            email: e-mail of the person
        """
        return self.show("user_details", self._user(email))

    @tool("read")
    def list_attendees(self, event_id: str, response_status: Response | None = None) -> Reply:
        """List who is invited to an event.

        Args:
            event_id: id of the event
            response_status: only these answers
        """
        self._event(event_id)
        rows = self._select("attendees", event_id=event_id, response_status=response_status, order="rowid")
        return self._list("attendees", "attendees", rows)

    @tool("write")
    def add_attendee(self, event_id: str, email: str, optional: bool = False) -> Reply:
        """Invite a person to an event.

        Args:
            event_id: id of the event
            email: e-mail of the person
            optional: whether they may stay away
        """
        self._active_event(event_id)
        self._user(email)
        if self.database.find("attendees", event_id=event_id, email=email):
            raise ToolError("ALREADY_EXISTS", f"'{email}' is invited to '{event_id}' already", "email")
        answer: Row = {"response_status": "needsAction", "optional": int(optional)}
        row = {"event_id": event_id, "email": email, **answer}
        self.database.insert("attendees", row)
        return self.show("attendees", row)

    @tool("write")
    def update_attendee(self, event_id: str, email: str, response_status: Response) -> Reply:
        """Record a person's answer to an invitation.

        Args:
            event_id: id of the event
            email: e-mail of the person
            response_status: the answer
        """
        self._active_event(event_id)
        self._attendee(event_id, email)
        where = {"event_id": event_id, "email": email}
        self.database.update("attendees", where, {"response_status": response_status})
        return self.show("attendees", self._attendee(event_id, email))

    @tool("write")
    def remove_attendee(self, event_id: str, email: str) -> Reply:
        """Take a person off an event.

        Args:
            event_id: id of the event
            email: e-mail of the person
        """
        self._active_event(event_id)
        row = self._attendee(event_id, email)
        self.database.delete("attendees", {"event_id": event_id, "email": email})
        return {**self.show("attendees", row), "deleted": True}

    @tool("read")
    def list_notifications(self, event_id: str) -> Reply:
        """List the messages sent to an event's attendees.

        Args:
            event_id: id of the event
        """
        self._event(event_id)
        rows = self._select("notifications", event_id=event_id, order="rowid")
        return self._list("notifications", "notifications", rows)

    @tool("write")
    def notify_attendees(self, event_id: str, message: str) -> Reply:
        """Send a message to all attendees of an event, cancelled ones included.

        Args:
            event_id: id of the event
            message: text of the message
        """
        self._event(event_id)
        row = {
            "notification_id": self._new_id("notifications", "notification_id", "ntf_", 3),
            "event_id": event_id,
            "message": text(message, "message"),
            "sent_by": self._me(),
            "sent_at": self.database.now(),
        }
        self.database.insert("notifications", row)
        return self.show("notifications", row)

    def _attendee(self, event_id: str, email: str) -> Row:
        found = self.database.find("attendees", event_id=event_id, email=email)
        return require(found, "attendee", email, "email")


class AccessTools(CalendarTools):
    """Access rules of calendars."""

    @tool("read")
    def list_acl(self, calendar_id: str, role: Role | None = None) -> Reply:
        """List who has access to a calendar.

        Args:
            calendar_id: id of the calendar
            role: only this role
        """
        self._calendar(calendar_id)
        rows = self._select("acl_rules", calendar_id=calendar_id, role=role, order="rowid")
        return self._list("rules", "acl_rules", rows)

    @tool("read", identity={"rule_id": "acl_rules.rule_id"})
    def get_acl_rule(self, rule_id: str) -> Reply:
        """Show one access rule.

        Args:
            rule_id: id of the rule
        """
        return self.show("acl_rules", self._rule(rule_id))

    @tool("write")
    def create_acl_rule(self, calendar_id: str, email: str, role: Role) -> Reply:
        """Give a person access to a calendar.

        Args:
            calendar_id: id of the calendar
            email: e-mail of the person
            role: what they may do
        """
        self._calendar(calendar_id)
        self._user(email)
        if self.database.find("acl_rules", calendar_id=calendar_id, email=email):
            message = f"'{email}' has a rule on '{calendar_id}' already; update that rule"
            raise ToolError("ALREADY_EXISTS", message, "email")
        row = {"rule_id": self._new_id("acl_rules", "rule_id", "acl_", 3), "calendar_id": calendar_id}
        row |= {"email": email, "role": role}
        self.database.insert("acl_rules", row)
        return self.show("acl_rules", row)

    @tool("write")
    def update_acl_rule(self, rule_id: str, role: Role) -> Reply:
        """Change the role that an access rule gives.

        Args:
            rule_id: id of the rule
            role: the new role
        """
        rule = self._rule(rule_id)
        if role != "owner":
            self._keep_an_owner(rule)
        self.database.update("acl_rules", {"rule_id": rule_id}, {"role": role})
        return self.show("acl_rules", self._rule(rule_id))

    @tool("write")
    def delete_acl_rule(self, rule_id: str) -> Reply:
        """Take a person's access to a calendar away.

        Args:
            rule_id: id of the rule
        """
        rule = self._rule(rule_id)
        self._keep_an_owner(rule)
        self.database.delete("acl_rules", {"rule_id": rule_id})
        return {**self.show("acl_rules", rule), "deleted": True}

    def _rule(self, rule_id: str) -> Row:
        return require(self.database.find("acl_rules", rule_id=rule_id), "access rule", rule_id, "rule_id")

    def _keep_an_owner(self, rule: Row) -> None:
        owners = self.database.find("acl_rules", calendar_id=rule["calendar_id"], role="owner")
        if [owner["rule_id"] for owner in owners] == [rule["rule_id"]]:
            message = f"rule '{rule['rule_id']}' is the calendar's only owner; make someone else owner first"
            raise ToolError("LAST_OWNER", message, "rule_id")
