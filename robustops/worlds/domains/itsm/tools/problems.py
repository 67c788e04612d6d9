"""Tools about problems."""

from __future__ import annotations

from robustops.errors import ToolError
from robustops.worlds.database import Row
from robustops.worlds.domains.itsm.enums import Level, Priority, ProblemCategory, ProblemStatus
from robustops.worlds.domains.itsm.tools.base import ItsmBase
from robustops.worlds.toolset import tool

_TEXT_FILTERS = ("problem_statement", "short_description", "worknotes", "workaround", "fix_notes")
_ENUMERATIONS = ("status", "category", "impact", "urgency", "priority")


class ProblemTools(ItsmBase):
    """Problems."""

    @tool("write")
    def create_problem(
        self,
        problem_statement: str,
        status: ProblemStatus,
        impact: Level,
        urgency: Level,
        priority: Priority,
        short_description: str | None = None,
        service: str | None = None,
        service_offering: str | None = None,
        configuration_item: str | None = None,
        assigned_to: str | None = None,
        assignment_group: str | None = None,
        original_task: str | None = None,
        category: ProblemCategory | None = None,
        worknotes: str | None = None,
        workaround: str | None = None,
        fix_notes: str | None = None,
    ) -> Row:
        """Open a problem; `original_task` is the incident that it came from."""
        given = self._given_values(locals(), null_clears=False)
        given = {name: value for name, value in given.items() if value != ""}
        self._check_references(given)
        user = self._get("users", self.acting_user) if self.acting_user else None
        if user is None:
            raise ToolError("VALIDATION_ERROR", "a problem needs an acting user who exists")
        values = {
            **given,
            "number": self._next_label("problem", "number", "PRB"),
            "opened_by": user["user_id"],
            "org_id": user["org_id"],
        }
        return self._reply("problem", self._insert("problem", values), given)

    @tool("write")
    def update_problem(
        self,
        problem_id: str | None = None,
        number: str | None = None,
        opened_by: str | None = None,
        problem_statement: str | None = None,
        short_description: str | None = None,
        service: str | None = None,
        service_offering: str | None = None,
        configuration_item: str | None = None,
        assigned_to: str | None = None,
        assignment_group: str | None = None,
        original_task: str | None = None,
        status: ProblemStatus | None = None,
        category: ProblemCategory | None = None,
        worknotes: str | None = None,
        workaround: str | None = None,
        fix_notes: str | None = None,
        impact: Level | None = None,
        urgency: Level | None = None,
        priority: Priority | None = None,
    ) -> Row:
        """Change fields of a problem, named by id or number."""
        given = self._given_values(locals(), null_clears=True)
        if problem_id is None and number is None:
            message = "Either 'problem_id' or 'number' must be provided to identify the problem"
            raise ToolError("VALIDATION_ERROR", message)
        row = self._get("problem", problem_id) if problem_id else self._first("problem", number=number)
        if row is None:
            field = "problem_id" if problem_id else "number"
            message = f"Problem with {field} '{problem_id or number}' not found"
            raise ToolError("VALIDATION_ERROR", message, field)
        given = {n: v for n, v in given.items() if v != "" and n not in ("problem_id", "number")}
        self._check_references(given)
        changes = {n: v for n, v in given.items() if row[n] != v or (n in _ENUMERATIONS and v)}
        if not changes:
            raise ToolError("NO_CHANGES_DETECTED", f"No changes detected for fields: {', '.join(given)}")
        return self._reply("problem", self._patch("problem", row, changes), changes)

    @tool("read", identity={"number": "problem.number"})
    def find_problem_by_number(self, number: str) -> Row:
        """Get one problem by number."""
        row = self._first("problem", number=number)
        if row is None:
            raise ToolError("VALIDATION_ERROR", f"Problem with number '{number}' not found", "number")
        return self._reply("problem", row)

    @tool("read")
    def list_problems(
        self,
        problem_id: str | None = None,
        number: str | None = None,
        service: str | None = None,
        service_offering: str | None = None,
        configuration_item: str | None = None,
        opened_by: str | None = None,
        status: ProblemStatus | None = None,
        category: ProblemCategory | None = None,
        problem_statement: str | None = None,
        short_description: str | None = None,
        impact: Level | None = None,
        urgency: Level | None = None,
        priority: Priority | None = None,
        assigned_to: str | None = None,
        assignment_group: str | None = None,
        worknotes: str | None = None,
        workaround: str | None = None,
        fix_notes: str | None = None,
        original_task: str | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
    ) -> Row:
        """List problems that match all filters."""
        filters = self._given_values(locals(), null_clears=False)
        after, before = filters.pop("created_after", None), filters.pop("created_before", None)
        rows = self._select("problem", filters, contains=_TEXT_FILTERS, after=after, before=before)
        reply: Row = self._list("problem", rows, "problems")
        return reply

    @tool("read")
    def get_problems_assigned_to(
        self, assignment_group: str | None = None, assigned_to: str | None = None
    ) -> Row:
        """List problems assigned to a user or a group."""
        filters = {"assignment_group": assignment_group, "assigned_to": assigned_to}
        if assignment_group is None and assigned_to is None:
            message = "At least one of assignment_group or assigned_to must be provided"
            raise ToolError("VALIDATION_ERROR", message)
        reply: Row = self._list("problem", self._select("problem", filters), "problems")
        return reply
