"""Tools about changes and their links to incidents and problems."""

from __future__ import annotations

from robustops.errors import ToolError
from robustops.worlds.database import Row
from robustops.worlds.domains.itsm.enums import (
    ChangeCategory,
    ChangePriority,
    ChangeStatus,
    CloseCode,
    Level,
)
from robustops.worlds.domains.itsm.tools.base import ItsmBase
from robustops.worlds.toolset import tool

_TEXT_FILTERS = (
    "short_description",
    "description",
    "implementation_plan",
    "testing_plan",
    "close_notes",
)


class ChangeTools(ItsmBase):
    """Changes."""

    @tool("write")
    def create_change(
        self,
        short_description: str,
        status: ChangeStatus,
        impact: Level,
        risk: Level,
        priority: ChangePriority,
        service: str | None = None,
        service_offering: str | None = None,
        configuration_item: str | None = None,
        category: ChangeCategory | None = None,
        description: str | None = None,
        implementation_plan: str | None = None,
        testing_plan: str | None = None,
        cab_required: bool | None = None,
        assigned_to: str | None = None,
        assignment_group: str | None = None,
        close_code: CloseCode | None = None,
        close_notes: str | None = None,
    ) -> Row:
        """Open a change."""
        given = self._given_values(locals(), null_clears=False)
        given = {name: value for name, value in given.items() if value != ""}
        user = (
            self._get("users", self.acting_user) if self.acting_user else self._first("users", role="admin")
        )
        if user is None:
            who = self.acting_user or "admin"
            raise ToolError("VALIDATION_ERROR", f"User with ID '{who}' not found", "user_id")
        self._check_references(given)
        values = {
            "category": "other",
            "cab_required": False,
            **given,
            "number": self._next_label("change", "number", "CHG"),
            "requested_by": user["user_id"],
            "org_id": user["org_id"],
        }
        return self._reply("change", self._insert("change", values), given)

    @tool("write")
    def update_change(
        self,
        change_id: str,
        number: str | None = None,
        requested_by: str | None = None,
        short_description: str | None = None,
        service: str | None = None,
        service_offering: str | None = None,
        configuration_item: str | None = None,
        category: ChangeCategory | None = None,
        description: str | None = None,
        implementation_plan: str | None = None,
        testing_plan: str | None = None,
        cab_required: bool | None = None,
        assigned_to: str | None = None,
        assignment_group: str | None = None,
        close_code: CloseCode | None = None,
        close_notes: str | None = None,
        status: ChangeStatus | None = None,
        impact: Level | None = None,
        risk: Level | None = None,
        priority: ChangePriority | None = None,
    ) -> Row:
        """Change fields of a change."""
        given = self._given_values(locals(), null_clears=True)
        given = {n: v for n, v in given.items() if v != "" and n != "change_id"}
        row = self._get("change", change_id)
        if row is None:
            raise ToolError("NOT_FOUND", f"Change not found with identifier '{change_id}'", "change_id")
        self._check_references(given)
        same_number = self._first("change", number=number, org_id=row["org_id"]) if number else None
        if same_number is not None and same_number["change_id"] != change_id:
            message = f"Change with number '{number}' already exists in organization '{row['org_id']}'"
            raise ToolError("DUPLICATE_NUMBER", message, "number")
        changes = {name: value for name, value in given.items() if row[name] != value}
        if not changes:
            same = ", ".join(f"{name} (already '{value}')" for name, value in given.items())
            raise ToolError("NO_CHANGES_DETECTED", f"No changes detected for fields: {same}")
        return self._reply("change", self._patch("change", row, changes), changes)

    @tool("read", identity={"number": "change.number"})
    def find_change_by_number(self, number: str) -> Row:
        """Get one change by number."""
        row = self._first("change", number=number)
        if row is None:
            raise ToolError("NOT_FOUND", f"Change not found with identifier '{number}'", "number")
        return self._reply("change", row)

    @tool("read")
    def list_changes(
        self,
        change_id: str | None = None,
        number: str | None = None,
        service: str | None = None,
        service_offering: str | None = None,
        configuration_item: str | None = None,
        requested_by: str | None = None,
        assigned_to: str | None = None,
        assignment_group: str | None = None,
        status: ChangeStatus | None = None,
        category: ChangeCategory | None = None,
        impact: Level | None = None,
        risk: Level | None = None,
        priority: ChangePriority | None = None,
        close_code: CloseCode | None = None,
        short_description: str | None = None,
        description: str | None = None,
        implementation_plan: str | None = None,
        testing_plan: str | None = None,
        close_notes: str | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
    ) -> Row:
        """List changes that match all filters."""
        filters = self._given_values(locals(), null_clears=False)
        after, before = filters.pop("created_after", None), filters.pop("created_before", None)
        rows = self._select("change", filters, contains=_TEXT_FILTERS, after=after, before=before)
        reply: Row = self._list("change", rows, "changes")
        return reply

    @tool("read")
    def get_changes_assigned_to(
        self, assignment_group: str | None = None, assigned_to: str | None = None
    ) -> Row:
        """List changes assigned to a user or a group."""
        filters = {"assignment_group": assignment_group, "assigned_to": assigned_to}
        if assignment_group is None and assigned_to is None:
            message = "At least one of assignment_group or assigned_to must be provided"
            raise ToolError("VALIDATION_ERROR", message)
        reply: Row = self._list("change", self._select("change", filters), "changes")
        return reply

    # links --------------------------------------------------------------------------------------
    @tool("write")
    def map_change_request(
        self, change_id: str, incident_id: str | None = None, problem_id: str | None = None
    ) -> Row:
        """Link a change to an incident or a problem."""
        if not incident_id and not problem_id:
            message = "At least one of incident_id or problem_id must be provided"
            raise ToolError("VALIDATION_ERROR", message)
        targets = {"incident": incident_id, "problem": problem_id}
        for table, key in {"change": change_id, **targets}.items():
            if key:
                self._need(table, key, f"{table}_id")
        org = self._organisation()
        for table, key in targets.items():
            pair = {f"{table}_id": key, "change_id": change_id, "org_id": org}
            if key and self._first("change_request_mapping", **pair):
                message = f"Mapping for change '{change_id}' and {table} '{key}' already exists"
                raise ToolError("DUPLICATE_MAPPING", message)
        values = {
            "change_id": change_id,
            "incident_id": incident_id or None,
            "problem_id": problem_id or None,
            "org_id": org,
        }
        return self._reply("change_request_mapping", self._insert("change_request_mapping", values))

    @tool("read")
    def list_change_request_mappings(
        self,
        change_request_mapping_id: str | None = None,
        change_id: str | None = None,
        incident_id: str | None = None,
        problem_id: str | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
    ) -> Row:
        """List links of changes to incidents and problems."""
        filters = {
            "change_request_mapping_id": change_request_mapping_id,
            "change_id": change_id,
            "incident_id": incident_id,
            "problem_id": problem_id,
        }
        return self._mappings(filters, created_after, created_before)

    @tool("read")
    def find_change_request_mappings_for_incident(self, incident_id: str) -> Row:
        """List the change links of an incident."""
        self._need("incident", incident_id, "incident_id")
        return self._mappings({"incident_id": incident_id})

    @tool("read")
    def find_change_request_mappings_for_problem(self, problem_id: str) -> Row:
        """List the change links of a problem."""
        self._need("problem", problem_id, "problem_id")
        return self._mappings({"problem_id": problem_id})

    def _mappings(self, filters: Row, after: str | None = None, before: str | None = None) -> Row:
        rows = self._select(
            "change_request_mapping",
            filters,
            order="newest",
            after=after,
            before=before,
            bounds=">=,<=",
        )
        reply: Row = self._list("change_request_mapping", rows, "change_request_mappings")
        return reply
