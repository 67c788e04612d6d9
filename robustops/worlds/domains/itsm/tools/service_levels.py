"""Tools about service-level agreements and notifications."""

from __future__ import annotations

from robustops.errors import ToolError
from robustops.worlds.database import Row
from robustops.worlds.domains.itsm.enums import NotificationStatus, NotificationType, SlaStage, members
from robustops.worlds.domains.itsm.tools.base import ItsmBase
from robustops.worlds.toolset import tool


def _stage(stage: str | None) -> str | None:
    """A stage, trimmed and in lower case; anything else is refused."""
    if stage is None:
        return None
    stage = stage.strip().lower()
    if stage not in members(SlaStage):
        message = f"Invalid value '{stage}' for 'stage'"
        raise ToolError("INVALID_ENUM_VALUE", message, "stage", members(SlaStage))
    return stage


class ServiceLevelTools(ItsmBase):
    """SLA definitions and the clocks that run on incidents."""

    @tool("read", identity={"name": "sla_definition.name"})
    def find_sla_definition_by_name(self, name: str) -> Row:
        """Get one SLA definition by its exact name."""
        row = self._first("sla_definition", name=name)
        if row is None:
            raise ToolError("NOT_FOUND", f"SLA definition not found with identifier '{name}'", "name")
        return self._reply("sla_definition", row)

    @tool("write")
    def link_new_incident_sla(
        self,
        incident_id: str,
        sla_def_id: str,
        start_time: str | None = None,
        stage: str | None = None,
        has_breached: bool | None = None,
        breach_time: str | None = None,
        completed_time: str | None = None,
    ) -> Row:
        """Start an SLA clock on an incident."""
        stage = _stage(stage)
        self._need("incident", incident_id, "incident_id")
        self._need("sla_definition", sla_def_id, "sla_def_id")
        org = self._organisation()
        pair = {"incident_id": incident_id, "sla_def_id": sla_def_id}
        if self._first("incident_sla", **pair, org_id=org):
            message = f"SLA '{sla_def_id}' is already linked to incident '{incident_id}'"
            raise ToolError("VALIDATION_ERROR", message, "sla_def_id")
        values = {
            **pair,
            "org_id": org,
            "stage": stage or "in_progress",
            "has_breached": bool(has_breached),
            "start_time": start_time or self.database.now(),
            "breach_time": breach_time,
            "completed_time": completed_time,
        }
        return self._reply("incident_sla", self._insert("incident_sla", values))

    @tool("write")
    def update_incident_sla_details(
        self,
        incident_sla_id: str,
        incident_id: str | None = None,
        sla_def_id: str | None = None,
        stage: str | None = None,
        has_breached: bool | None = None,
        start_time: str | None = None,
        breach_time: str | None = None,
        completed_time: str | None = None,
    ) -> Row:
        """Change an SLA clock; stage: in_progress, paused, completed, cancelled, breached."""
        stage = _stage(stage)
        given = self._given_values(locals(), null_clears=False)
        del given["incident_sla_id"]
        row = self._get("incident_sla", incident_sla_id)
        if row is None:
            message = f"Incident SLA '{incident_sla_id}' not found"
            raise ToolError("VALIDATION_ERROR", message, "incident_sla_id")
        for table, name in (("incident", "incident_id"), ("sla_definition", "sla_def_id")):
            if name in given:
                self._need(table, given[name], name)
        changes = {n: v for n, v in given.items() if row[n] != v or n == "stage"}
        if not changes:
            message = "No changes detected for the provided incident SLA fields"
            raise ToolError("VALIDATION_ERROR", message)
        return self._reply("incident_sla", self._patch("incident_sla", row, changes), changes)

    @tool("read")
    def find_incident_slas(
        self,
        incident_sla_id: str | None = None,
        incident_id: str | None = None,
        sla_def_id: str | None = None,
        stage: str | None = None,
        has_breached: bool | None = None,
        created_before: str | None = None,
        created_after: str | None = None,
    ) -> Row:
        """List the SLA clocks of incidents."""
        filters = {
            "incident_sla_id": incident_sla_id,
            "incident_id": incident_id,
            "sla_def_id": sla_def_id,
            "stage": _stage(stage),
            "has_breached": has_breached,
        }
        rows = self._select(
            "incident_sla",
            filters,
            order="newest",
            after=created_after,
            before=created_before,
            bounds=">=,<=",
        )
        reply: Row = self._list("incident_sla", rows, "incident_slas")
        return reply


class NotificationTools(ItsmBase):
    """Messages about incidents."""

    @tool("write")
    def send_notification(
        self,
        incident_id: str,
        email: str,
        type: NotificationType | None = None,
        status: NotificationStatus | None = None,
        subject: str | None = None,
        message: str | None = None,
    ) -> Row:
        """Notify a user about an incident."""
        self._check_email(email)
        if self._get("incident", incident_id) is None:
            text = f"Incident with ID '{incident_id}' not found"
            raise ToolError("INCIDENT_NOT_FOUND", text, "incident_id")
        user = self._first("users", email=email)
        if user is None:
            text = f"User with email '{email}' not found or does not belong to your organization"
            raise ToolError("USER_EMAIL_NOT_FOUND", text, "email")
        if user["user_id"] == self.acting_user:
            raise ToolError("CANNOT_SEND_TO_SELF", "Cannot send notification to yourself", "email")
        values = {
            "incident_id": incident_id,
            "org_id": self._organisation(),
            "email": email,
            "subject": subject,
            "message": message,
            "type": type or "other",
            "status": status or "queued",
        }
        given = [name for name in ("subject", "message") if values[name] is not None]
        return self._reply("notification", self._insert("notification", values), given)

    @tool("read")
    def find_notifications(
        self,
        notification_id: str | None = None,
        incident_id: str | None = None,
        email: str | None = None,
        type: NotificationType | None = None,
        status: NotificationStatus | None = None,
        created_before: str | None = None,
        created_after: str | None = None,
    ) -> Row:
        """List notifications that match all filters."""
        if incident_id is not None and self._get("incident", incident_id) is None:
            text = f"Incident with ID '{incident_id}' not found"
            raise ToolError("INCIDENT_NOT_FOUND", text, "incident_id")
        if email is not None:
            self._check_email(email)
        filters = {
            "notification_id": notification_id,
            "incident_id": incident_id,
            "email": email,
            "type": type,
            "status": status,
        }
        rows = self._select("notification", filters, after=created_after, before=created_before)
        reply: Row = self._list("notification", rows, "notifications", count="count")
        return reply

    @tool("read")
    def find_notifications_for_email(self, email: str) -> Row:
        """List the notifications to an address."""
        self._check_email(email)
        return self._sent({"email": email})

    @tool("read")
    def find_notifications_sent_for_incident(self, incident_id: str) -> Row:
        """List the notifications about an incident."""
        return self._sent({"incident_id": incident_id})

    def _sent(self, filters: dict[str, str]) -> Row:
        rows = self._select("notification", filters)
        if not rows:
            name, value = next(iter(filters.items()))
            message = f"Notifications not found with identifier '{name}={value}'"
            raise ToolError("RESOURCE_NOT_FOUND", message)
        reply: Row = self._list("notification", rows, "notifications", count="count")
        return reply
