"""Tools about configuration items, services, and the items that an incident affects."""

from __future__ import annotations

from robustops.errors import ToolError
from robustops.worlds.database import Row
from robustops.worlds.domains.itsm.enums import ItemStatus
from robustops.worlds.domains.itsm.tools.base import ItsmBase
from robustops.worlds.toolset import tool


class ItemTools(ItsmBase):
    """Configuration items and services."""

    @tool("read", identity={"serial_number": "configuration_item.serial_number"})
    def find_configuration_item_by_serial_number(self, serial_number: str) -> Row:
        """Get one configuration item by serial number."""
        row = self._first("configuration_item", serial_number=serial_number)
        if row is None:
            message = f"Configuration item not found with identifier '{serial_number}'"
            raise ToolError("NOT_FOUND", message, "serial_number")
        return self._reply("configuration_item", row)

    @tool("read")
    def find_configuration_items(
        self,
        configuration_item_id: str | None = None,
        owner_id: str | None = None,
        location_id: str | None = None,
        serial_number: str | None = None,
        status: ItemStatus | None = None,
        cost: float | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
    ) -> Row:
        """List configuration items that match all filters."""
        filters = self._given_values(locals(), null_clears=False)
        after, before = filters.pop("created_after", None), filters.pop("created_before", None)
        rows = self._select("configuration_item", filters, order="newest", after=after, before=before)
        reply: Row = self._list("configuration_item", rows, "configuration_items")
        return reply

    @tool("write")
    def update_configuration_item(
        self,
        configuration_item_id: str,
        owner_id: str | None = None,
        location_id: str | None = None,
        serial_number: str | None = None,
        status: ItemStatus | None = None,
        cost: float | None = None,
        name: str | None = None,
    ) -> Row:
        """Change fields of a configuration item."""
        given = self._given_values(locals(), null_clears=False)
        del given["configuration_item_id"]
        if cost is not None and cost < 0:
            raise ToolError("VALIDATION_ERROR", "Input should be greater than or equal to 0", "cost")
        row = self._get("configuration_item", configuration_item_id)
        known = {"owner_id": "users", "location_id": "location"}
        bad = any(n in given and self._get(t, given[n]) is None for n, t in known.items())
        if row is None or bad:
            message = f"Configuration item not found with identifier '{configuration_item_id}'"
            raise ToolError("NOT_FOUND", message, "configuration_item_id")
        if serial_number is not None:
            other = self._first("configuration_item", serial_number=serial_number)
            if other is not None and other["configuration_item_id"] != configuration_item_id:
                message = f"A configuration item with serial_number '{serial_number}' already exists"
                raise ToolError("DUPLICATE_SERIAL_NUMBER", message, "serial_number")
        changes = {n: v for n, v in given.items() if row[n] != v or n == "status"}
        if not changes:
            raise ToolError("NO_CHANGES_DETECTED", "No changes detected")
        return self._reply("configuration_item", self._patch("configuration_item", row, changes), changes)

    @tool("write")
    def link_affected_ci_to_incident(self, configuration_item: str, incident_id: str) -> Row:
        """Record a configuration item as affected by an incident."""
        for table, key, field in (
            ("configuration_item", configuration_item, "configuration_item"),
            ("incident", incident_id, "incident_id"),
        ):
            self._need(table, key, field)
        pair = {"configuration_item": configuration_item, "incident_id": incident_id}
        if self._first("incident_affected_cis", **pair):
            raise ToolError(
                "VALIDATION_ERROR",
                f"Configuration item '{configuration_item}' is already linked to incident '{incident_id}'",
                "configuration_item",
            )
        row = self._insert("incident_affected_cis", {**pair, "org_id": self._organisation()})
        return self._reply("incident_affected_cis", row)

    @tool("read")
    def list_incident_affected_cis(
        self,
        incident_affected_cis_id: str | None = None,
        configuration_item: str | None = None,
        incident_id: str | None = None,
        created_before: str | None = None,
        created_after: str | None = None,
    ) -> Row:
        """List the configuration items that incidents affect."""
        filters = {
            "incident_affected_cis_id": incident_affected_cis_id,
            "configuration_item": configuration_item,
            "incident_id": incident_id,
        }
        rows = self._select(
            "incident_affected_cis",
            filters,
            order="newest",
            after=created_after,
            before=created_before,
        )
        reply: Row = self._list("incident_affected_cis", rows, "incident_affected_cis")
        return reply

    @tool("write")
    def remove_affected_ci_from_incident(
        self,
        incident_affected_cis_id: str | None = None,
        configuration_item: str | None = None,
        incident_id: str | None = None,
        created_before: str | None = None,
        created_after: str | None = None,
    ) -> Row:
        """Remove links between incidents and the configuration items they affect."""
        filters = self._given_values(locals(), null_clears=False)
        if not filters:
            raise ToolError("VALIDATION_ERROR", "At least one filter must be provided")
        after, before = filters.pop("created_after", None), filters.pop("created_before", None)
        rows = self._select("incident_affected_cis", filters, after=after, before=before)
        if not rows:
            given = ", ".join(f"{name}='{value}'" for name, value in filters.items())
            message = f"Incident affected CI mapping not found with identifier '{given}'"
            raise ToolError("NOT_FOUND", message)
        for row in rows:
            key = row["incident_affected_cis_id"]
            self.database.delete("incident_affected_cis", {"incident_affected_cis_id": key})
        return {"deleted_count": len(rows)}

    @tool("read", identity={"name": "service.name"})
    def find_service_by_name(self, name: str) -> Row:
        """Get one service by its exact name."""
        row = self._first("service", name=name.strip())
        if row is None:
            raise ToolError("NOT_FOUND", f"Service not found with identifier '{name}'")
        return self._reply("service", row)
