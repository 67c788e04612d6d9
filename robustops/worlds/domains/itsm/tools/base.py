"""What all ITSM tools share: rows in and out, references, changes, lists and the shape of replies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from robustops.errors import ToolError
from robustops.records import ToolCall, ToolResult
from robustops.worlds.database import Row, check_name
from robustops.worlds.domains.itsm.schema import TABLES, encode
from robustops.worlds.toolset import Toolset

_EMAIL = re.compile(r"^[^@\s]+@[^@\s]+\.[^@\s]+$")

#: How a refusal names a row of each table.
NOUNS = {
    "users": "User",
    "user_group": "User group",
    "service": "Service",
    "service_offering": "Service offering",
    "configuration_item": "Configuration item",
    "problem": "Problem",
    "change": "Change",
    "incident": "Incident",
    "incident_template": "Incident template",
    "knowledge": "Knowledge article",
    "location": "Location",
    "sla_definition": "SLA definition",
}

#: Reference columns -> the table that they refer to. `parent_incident` is never checked, as recorded.
REFERENCES = {
    "caller_id": "users",
    "assigned_to": "users",
    "resolved_by": "users",
    "service": "service",
    "service_offering": "service_offering",
    "configuration_item": "configuration_item",
    "assignment_group": "user_group",
    "problem": "problem",
    "change_request": "change",
    "caused_by_change": "change",
    "incident_template": "incident_template",
    "original_task": "incident",
    "requested_by": "users",
    "opened_by": "users",
    "owner_id": "users",
    "location_id": "location",
}


class ItsmBase(Toolset):
    """Row handling for the tool mixins. Rows leave it with booleans as booleans."""

    #: Columns of a brief row inside a list, for tables where that differs from `brief_columns`.
    brief_list_columns: ClassVar[dict[str, tuple[str, ...]]] = {}
    _given: frozenset[str] = frozenset()

    def call(self, call: ToolCall) -> ToolResult:
        self._given = frozenset(call.arguments)
        return super().call(call)

    # reading ------------------------------------------------------------------------------------
    def _get(self, table: str, key: str | None) -> Row | None:
        """The row with this id."""
        return self._first(table, **{TABLES[table].id: key})

    def _first(self, table: str, **equals: Any) -> Row | None:
        rows = self.database.find(table, **equals)
        return TABLES[table].decode(rows[0]) if rows else None

    def _select(
        self,
        table: str,
        filters: Mapping[str, Any],
        *,
        order: str = "table",
        contains: Sequence[str] = (),
        after: str | None = None,
        before: str | None = None,
        bounds: str = ">,<=",
    ) -> list[Row]:
        """Rows that meet all filters that are not None.

        order: table | newest (newest first) | oldest; contains: columns matched as text inside,
        regardless of case; after, before: bounds of the creation time, compared as text with the two
        operators in `bounds`.
        """
        spec = TABLES[table]
        parts: list[str] = []
        values: list[Any] = []
        for name, value in filters.items():
            if value is None:
                continue
            if name in contains:
                parts.append(f'instr(lower("{check_name(name)}"), lower(?)) > 0')
            else:
                parts.append(f'"{check_name(name)}" IS ?')
            values.append(value)
        for bound, operator in zip((after, before), bounds.split(","), strict=True):
            if bound is not None:
                parts.append(f'"{spec.created}" {operator} ?')
                values.append(bound)
        where = f" WHERE {' AND '.join(parts)}" if parts else ""
        tail = {
            "table": "rowid",
            "newest": f'"{spec.created}" DESC, rowid',
            "oldest": f'"{spec.created}", rowid',
        }
        rows = self.database.query(f'SELECT * FROM "{table}"{where} ORDER BY {tail[order]}', values)
        return [spec.decode(row) for row in rows]

    # refusals -----------------------------------------------------------------------------------
    def _need(self, table: str, key: str, field: str | None, code: str = "VALIDATION_ERROR") -> Row:
        """The row with this id, or the refusal that the table's tools give."""
        row = self._get(table, key)
        if row is None:
            raise ToolError(code, f"{NOUNS[table]} '{key}' not found", field)
        return row

    def _check_references(self, values: Mapping[str, Any], *, together: bool = False) -> None:
        """Refuse references to rows that do not exist; `together` reports all in one message."""
        missing = []
        for name, table in REFERENCES.items():
            value = values.get(name)
            if value and self._get(table, value) is None:
                message = f"{NOUNS[table]} with ID '{value}' not found"
                if not together:
                    raise ToolError("VALIDATION_ERROR", message, name)
                missing.append(message)
        if missing:
            raise ToolError("VALIDATION_ERROR", "; ".join(missing))

    def _check_email(self, email: str) -> None:
        if not _EMAIL.match(email):
            raise ToolError("INVALID_EMAIL_FORMAT", f"Invalid email format provided: '{email}'", "email")

    def _organisation(self) -> str:
        """Organisation of a new row: the acting user's, else the first admin's."""
        user = self._get("users", self.acting_user) if self.acting_user else None
        user = user or self._first("users", role="admin")
        if user is None:
            raise ToolError("VALIDATION_ERROR", "no acting user and no admin: the organisation is unknown")
        return str(user["org_id"])

    # writing ------------------------------------------------------------------------------------
    def _new_id(self, table: str) -> str:
        """Highest number in the table plus one, behind the table's prefix."""
        spec = TABLES[table]
        return f"{spec.prefix}_{self.database.next_number(table, spec.id, f'{spec.prefix}_'):03d}"

    def _next_label(self, table: str, column: str, prefix: str) -> str:
        """Next label such as PRB0000007."""
        return f"{prefix}{self.database.next_number(table, column, prefix):07d}"

    def _insert(self, table: str, values: Mapping[str, Any]) -> Row:
        """Write a new row (its id included in `values` or made here) and return it whole."""
        spec = TABLES[table]
        row = encode(spec, {spec.id: None, **values})
        row[spec.id] = row[spec.id] or self._new_id(table)
        row[spec.created] = row[spec.updated] = self.database.now()
        self.database.insert(table, row)
        return row

    def _patch(self, table: str, row: Row, changes: Mapping[str, Any], *, stamp: bool = True) -> Row:
        """Write the changed columns (and the time of the change) and return the whole row."""
        spec = TABLES[table]
        changes = dict(changes) | ({spec.updated: self.database.now()} if stamp else {})
        self.database.update(table, {spec.id: row[spec.id]}, changes)
        return spec.decode({**row, **changes})

    def _given_values(self, values: Mapping[str, Any], *, null_clears: bool) -> dict[str, Any]:
        """The arguments that the caller gave, out of all arguments of the tool (`locals()`).

        null_clears: an explicit null counts as given (problem, change); else it means "not given".
        """
        return {
            name: value
            for name, value in values.items()
            if name != "self" and (value is not None or (null_clears and name in self._given))
        }

    # replies ------------------------------------------------------------------------------------
    def _reply(self, table: str, row: Row, written: Iterable[str] = ()) -> Row:
        """One row. Brief replies add the columns that the call wrote."""
        if self.detail == "full":
            return self.show(table, row)
        also = [n for n in written if n in row and row[n] is not None]
        return {**self.show(table, row), **{name: row[name] for name in also}}

    def _list(
        self,
        table: str,
        rows: list[Row],
        plural: str,
        *,
        bare: bool = False,
        count: str = "total_count",
    ) -> Any:
        """A list reply; `bare` tools reply with a plain list in full detail.

        A row looks the same under every filter, so that a reply whose filter was ignored can be told.
        """
        keep = self.brief_list_columns.get(table) if self.detail != "full" else None
        if keep is None:
            shown = [self.show(table, row) for row in rows]
        else:
            shown = [{name: row[name] for name in keep if row[name] is not None} for row in rows]
        if bare and self.detail == "full":
            return shown
        return {plural: shown, count if self.detail == "full" else "total_count": len(shown)}
