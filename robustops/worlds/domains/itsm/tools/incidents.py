"""Tools about incidents and their parent/child links."""

from __future__ import annotations

from typing import Any

from robustops.errors import ToolError
from robustops.worlds.database import Row
from robustops.worlds.domains.itsm.enums import (
    Channel,
    HoldReason,
    IncidentCategory,
    IncidentStatus,
    Level,
    Priority,
    ResolutionCode,
    members,
)
from robustops.worlds.domains.itsm.schema import TABLES
from robustops.worlds.domains.itsm.tools.base import ItsmBase
from robustops.worlds.toolset import tool

_TEXT_FILTERS = (
    "short_description",
    "description",
    "worknotes",
    "resolution_notes",
    "close_notes",
)


class IncidentTools(ItsmBase):
    """Incidents."""

    @tool("write")
    def create_incident(
        self,
        caller_id: str,
        short_description: str,
        service: str | None = None,
        service_offering: str | None = None,
        configuration_item: str | None = None,
        channel: Channel | None = None,
        status: IncidentStatus | None = None,
        category: IncidentCategory | None = None,
        description: str | None = None,
        impact: Level | None = None,
        urgency: Level | None = None,
        priority: Priority | None = None,
        assigned_to: str | None = None,
        assignment_group: str | None = None,
        worknotes: str | None = None,
        resolution_notes: str | None = None,
        close_notes: str | None = None,
        resolution_code: ResolutionCode | None = None,
        parent_incident: str | None = None,
        problem: str | None = None,
        change_request: str | None = None,
        caused_by_change: str | None = None,
        resolved_by: str | None = None,
        on_hold_reason: HoldReason | None = None,
        incident_template: str | None = None,
        resolved: str | None = None,
    ) -> Row:
        """Open an incident for a caller."""
        given = self._given_values(locals(), null_clears=False)
        for name in ("caller_id", "short_description"):
            if not given[name]:
                raise ToolError("MISSING_FIELD", f"{name} is required", name)
        given = {name: value for name, value in given.items() if value != ""}
        self._check_references(given, together=True)
        caller = self._need("users", caller_id, "caller_id")
        key = self._new_id("incident")
        values = {
            "status": "new",
            "category": "inquiry-help",
            "impact": "low",
            "urgency": "low",
            "priority": "planning",
            **given,
            "incident_id": key,
            "number": f"INC-{int(key.removeprefix('INC_')):06d}",
            "org_id": caller["org_id"],
        }
        return self._reply("incident", self._insert("incident", values), given)

    @tool("write")
    def update_incident(
        self,
        incident_id: str,
        number: str | None = None,
        service: str | None = None,
        service_offering: str | None = None,
        configuration_item: str | None = None,
        caller_id: str | None = None,
        channel: Channel | None = None,
        status: IncidentStatus | None = None,
        category: IncidentCategory | None = None,
        short_description: str | None = None,
        description: str | None = None,
        impact: Level | None = None,
        urgency: Level | None = None,
        priority: Priority | None = None,
        assigned_to: str | None = None,
        assignment_group: str | None = None,
        worknotes: str | None = None,
        resolution_notes: str | None = None,
        close_notes: str | None = None,
        resolution_code: ResolutionCode | None = None,
        parent_incident: str | None = None,
        problem: str | None = None,
        change_request: str | None = None,
        caused_by_change: str | None = None,
        resolved_by: str | None = None,
        on_hold_reason: HoldReason | None = None,
        incident_template: str | None = None,
        resolved: str | None = None,
    ) -> Row:
        """Change fields of an incident; an empty text clears an optional field."""
        given = self._given_values(locals(), null_clears=False)
        del given["incident_id"]
        row = self._get("incident", incident_id)
        if row is None:
            raise ToolError("VALIDATION_ERROR", f"Incident with ID '{incident_id}' not found", "incident_id")
        for name, value in given.items():
            if value == "" and name not in TABLES["incident"].nullable:
                raise ToolError("MISSING_FIELD", f"{name} is required", name)
        self._check_references(given, together=True)
        wanted = {name: None if value == "" else value for name, value in given.items()}
        changes = {name: value for name, value in wanted.items() if row[name] != value}
        if not changes:
            raise ToolError("NO_CHANGES_DETECTED", f"No changes detected for fields: {', '.join(given)}")
        return self._reply("incident", self._patch("incident", row, changes), given)

    @tool("read", identity={"incident_id": "incident.incident_id"})
    def find_incident_by_id(self, incident_id: str) -> Row:
        """Get one incident by id."""
        row = self._get("incident", incident_id)
        if row is None:
            raise ToolError("VALIDATION_ERROR", f"Incident with ID '{incident_id}' not found", "incident_id")
        return self._reply("incident", row)

    @tool("read", identity={"number": "incident.number"})
    def find_incident_by_number(self, number: str) -> Row:
        """Get one incident by number."""
        row = self._first("incident", number=number)
        if row is None:
            raise ToolError("VALIDATION_ERROR", f"Incident with number '{number}' not found", "number")
        return self._reply("incident", row)

    @tool("read")
    def list_incidents(
        self,
        incident_id: str | None = None,
        number: str | None = None,
        service: str | None = None,
        service_offering: str | None = None,
        configuration_item: str | None = None,
        called_id: str | None = None,
        channel: Channel | None = None,
        status: IncidentStatus | None = None,
        category: IncidentCategory | None = None,
        short_description: str | None = None,
        description: str | None = None,
        impact: Level | None = None,
        urgency: Level | None = None,
        priority: Priority | None = None,
        assigned_to: str | None = None,
        assignment_group: str | None = None,
        worknotes: str | None = None,
        resolution_notes: str | None = None,
        close_notes: str | None = None,
        resolution_code: ResolutionCode | None = None,
        parent_incident: str | None = None,
        problem: str | None = None,
        change_request: str | None = None,
        caused_by_change: str | None = None,
        resolved_by: str | None = None,
        on_hold_reason: HoldReason | None = None,
        incident_template: str | None = None,
        resolved: str | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
    ) -> Any:
        """List incidents that match all filters; `called_id` is the caller."""
        filters = self._given_values(locals(), null_clears=False)
        after, before = filters.pop("created_after", None), filters.pop("created_before", None)
        if "called_id" in filters:
            filters["caller_id"] = filters.pop("called_id")
        rows = self._select("incident", filters, contains=_TEXT_FILTERS, after=after, before=before)
        return self._list("incident", rows, "incidents", bare=True)

    @tool("read")
    def get_incidents_assigned_to(
        self, assignment_group: str | None = None, assigned_to: str | None = None
    ) -> Any:
        """List incidents assigned to a user or a group."""
        filters = {"assignment_group": assignment_group, "assigned_to": assigned_to}
        if assignment_group is None and assigned_to is None:
            message = "At least one of assignment_group or assigned_to must be provided"
            raise ToolError("VALIDATION_ERROR", message)
        rows = self._select("incident", filters)
        return self._list("incident", rows, "incidents", bare=True)

    @tool("read")
    def count_incident_for_assignment_group(
        self,
        assignment_group_id: str,
        status: IncidentStatus | None = None,
        priority: Priority | None = None,
        channel: Channel | None = None,
    ) -> Row:
        """Count the incidents of a group."""
        if self._get("user_group", assignment_group_id) is None:
            raise ToolError(
                "NOT_FOUND", f"Assignment Group not found with identifier '{assignment_group_id}'"
            )
        filters = {"assignment_group": assignment_group_id, "status": status}
        rows = self._select("incident", {**filters, "priority": priority, "channel": channel})
        return {assignment_group_id: len(rows)}

    @tool("read")
    def get_count_of_incident_priority_wise(self, priority_list: list[str] | None = None) -> Row:
        """Count incidents by priority."""
        allowed = members(Priority)
        for value in priority_list or []:
            if value not in allowed:
                raise ToolError(
                    "INVALID_ENUM_VALUE",
                    f"Invalid value '{value}' for 'priority_list'",
                    "priority_list",
                    allowed,
                )
        counts: Row = {}
        for row in self._select("incident", {}):
            if not priority_list or row["priority"] in priority_list:
                counts[row["priority"]] = counts.get(row["priority"], 0) + 1
        return counts
