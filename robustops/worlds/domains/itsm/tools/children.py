"""Tools about parent/child links between incidents."""

from __future__ import annotations

from typing import Any

from robustops.errors import ToolError
from robustops.worlds.database import Row
from robustops.worlds.domains.itsm.tools.base import ItsmBase
from robustops.worlds.toolset import tool


class ChildIncidentTools(ItsmBase):
    """Links between a parent incident and its children."""

    @tool("write")
    def add_child_incident(self, parent_incident: str, child_incident: str) -> Row:
        """Make one incident the child of another."""
        self._check_family(parent_incident, child_incident)
        values = {"parent_incident": parent_incident, "child_incident": child_incident}
        return self._reply("child_incident", self._insert("child_incident", values))

    def _check_family(self, parent: str, child: str) -> None:
        for name, key in (("parent_incident", parent), ("child_incident", child)):
            if self._get("incident", key) is None:
                raise ToolError("VALIDATION_ERROR", f"Incident with ID '{key}' not found", name)
        problem = None
        if parent == child:
            problem = "An incident cannot be its own child"
        elif self._first("child_incident", parent_incident=parent, child_incident=child):
            problem = f"Child incident relationship already exists: '{parent}' -> '{child}'"
        elif self._first("child_incident", parent_incident=child, child_incident=parent):
            problem = (
                f"Cannot create relationship '{parent}' -> '{child}': "
                f"reverse relationship already exists ('{child}' -> '{parent}')"
            )
        if problem:
            raise ToolError("INVALID_RELATIONSHIP", problem, "child_incident")

    @tool("read")
    def list_child_incidents(self, parent_incident: str) -> Any:
        """List the child links of an incident."""
        filters = {"parent_incident": parent_incident}
        rows = self._select("child_incident", filters)
        return self._list("child_incident", rows, "child_incidents", bare=True)

    @tool("read", identity={"child_incident": "child_incident.child_incident"})
    def find_parent_incident(self, child_incident: str) -> Row:
        """Get the parent link of an incident."""
        row = self._first("child_incident", child_incident=child_incident)
        if row is None:
            message = f"No parent found for child incident '{child_incident}'"
            raise ToolError("VALIDATION_ERROR", message, "child_incident")
        return self._reply("child_incident", row)

    @tool("write")
    def remove_child_incident(
        self,
        child_incident_mapping_id: str | None = None,
        parent_incident: str | None = None,
        child_incident: str | None = None,
    ) -> Row:
        """Remove a child link, by its id or by both incidents."""
        if child_incident_mapping_id is None and (parent_incident is None or child_incident is None):
            raise ToolError(
                "MISSING_IDENTIFIERS",
                "Either child_incident_mapping_id or both parent_incident and child_incident must be "
                "provided",
            )
        filters = {
            "child_incident_mapping_id": child_incident_mapping_id,
            "parent_incident": parent_incident,
            "child_incident": child_incident,
        }
        rows = self._select("child_incident", filters)
        if not rows:
            raise ToolError("NOT_FOUND", "Child incident mapping not found")
        key = rows[0]["child_incident_mapping_id"]
        self.database.delete("child_incident", {"child_incident_mapping_id": key})
        return {"message": "Child incident mapping removed successfully"}
