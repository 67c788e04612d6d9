"""The 24 tables of the ITSM world, with the columns that its database files have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from robustops.worlds.database import Row

_SQL_TYPES = {"text": "TEXT", "bool": "BOOLEAN", "int": "INTEGER", "float": "REAL"}
_RECORD = " service? service_offering? configuration_item? assigned_to? assignment_group?"


@dataclass(frozen=True)
class Table:
    """One table: columns by name with their type, in file order.

    key: the columns that identify a row; prefix: of generated ids (`INC` in `INC_001`), empty where rows
    have none; created, updated: the time columns, empty where the table has none.
    """

    name: str
    columns: Mapping[str, str]
    nullable: frozenset[str]
    key: tuple[str, ...]
    prefix: str
    created: str
    updated: str

    @property
    def id(self) -> str:
        """The id column of a table with a one-column key."""
        return self.key[0]

    @property
    def booleans(self) -> tuple[str, ...]:
        return tuple(name for name, kind in self.columns.items() if kind == "bool")

    def create(self) -> str:
        """The CREATE TABLE statement."""
        lines = [
            f'"{name}" {_SQL_TYPES[kind]}' + ("" if name in self.nullable else " NOT NULL")
            for name, kind in self.columns.items()
        ]
        keys = ", ".join(f'"{name}"' for name in self.key)
        return f'CREATE TABLE "{self.name}" ({", ".join(lines)}, PRIMARY KEY ({keys}));'

    def decode(self, row: Row) -> Row:
        """A stored row with its booleans as booleans."""
        return {**row, **{name: bool(row[name]) for name in self.booleans if row.get(name) is not None}}


def _table(name: str, prefix: str, columns: str, times: str = "on", key: int = 1) -> Table:
    """A table from `name`, `name?` (nullable) and `name:type` words; `times` is on, at or empty."""
    kinds: dict[str, str] = {}
    nullable = set()
    for word in columns.split():
        bare, _, kind = word.removesuffix("?").partition(":")
        kinds[bare] = kind or "text"
        if word.endswith("?"):
            nullable.add(bare)
    created, updated = (f"created_{times}", f"updated_{times}") if times else ("", "")
    if times:
        kinds = {**kinds, created: "text", updated: "text"}
        nullable |= {created, updated}
    return Table(name, kinds, frozenset(nullable), tuple(list(kinds)[:key]), prefix, created, updated)


_TABLES = (
    _table("organization", "ORG", "org_id name active:bool", "at"),
    _table("role", "ROLE", "role_id name", ""),
    _table("permission", "PERM", "perm_id resource action", ""),
    _table("role_permission", "", "role_id perm_id", "", key=2),
    _table("location", "LOC", "location_id name org_id plot_no? street? city state? country active:bool"),
    _table(
        "users",
        "USER",
        "user_id user_name first_name last_name email phone role active:bool static_token? org_id "
        "location_id?",
    ),
    _table("user_role", "", "user_id role_id org_id", "", key=3),
    _table("user_group", "GROUP", "group_id name type active:bool email? description? manager_id org_id"),
    _table("user_group_member", "MEM", "member_id group_id user_id org_id"),
    _table(
        "service",
        "SVC",
        "service_id name owned_by org_id used_for status service_classification business_criticality "
        "description?",
    ),
    _table(
        "service_offering",
        "SVCOFF",
        "service_offering_id name short_description owned_by business_service org_id used_for status "
        "service_classification business_criticality description?",
    ),
    _table(
        "configuration_item",
        "CI",
        "configuration_item_id name serial_number owner_id location_id? org_id status cost:float?",
    ),
    _table(
        "incident_template",
        "TMPL",
        "incident_template_id name active:bool? caller_id channel? short_description category? impact "
        "urgency priority configuration_item? service? service_offering? org_id",
        "at",
    ),
    _table(
        "incident",
        "INC",
        "incident_id number short_description caller_id service? service_offering? configuration_item? "
        "assigned_to? assignment_group? resolved_by? problem? change_request? caused_by_change? "
        "incident_template? parent_incident? org_id channel? contact_type? status category description? "
        "worknotes? resolution_notes? close_notes? impact urgency priority resolution_code? on_hold_reason? "
        "resolved? created_at updated_at service_display? service_offering_display? "
        "configuration_item_display? assigned_to_display? assignment_group_display? parent_incident_display? "
        "problem_display? change_request_display? incident_template_display?",
        "at",
    ),
    _table("child_incident", "CINC", "child_incident_mapping_id parent_incident child_incident", "at"),
    _table(
        "problem",
        "PRB",
        f"problem_id number problem_statement short_description? opened_by{_RECORD} original_task? org_id "
        "status category? worknotes? workaround? fix_notes? impact urgency priority",
    ),
    _table(
        "change",
        "CHG",
        f"change_id number short_description requested_by{_RECORD} org_id status category description? "
        "implementation_plan? testing_plan? close_notes? cab_required:bool? impact priority risk close_code?",
    ),
    _table(
        "change_request_mapping",
        "CRM",
        "change_request_mapping_id change_id incident_id? problem_id? org_id",
        "at",
    ),
    _table(
        "knowledge",
        "KB",
        "knowledge_id kb_number title short_description? body? state visibility owner_id? org_id",
    ),
    _table("incident_knowledge", "IKB", "incident_kb_id incident_id knowledge_id org_id used_as"),
    _table(
        "incident_affected_cis", "TASKCI", "incident_affected_cis_id configuration_item incident_id org_id"
    ),
    _table(
        "sla_definition",
        "SLA",
        "sla_def_id name metric target_mins:int pause_on_pending:bool applies_to_priority? active:bool "
        "schedule? org_id",
    ),
    _table(
        "incident_sla",
        "TSLA",
        "incident_sla_id incident_id sla_def_id org_id stage has_breached:bool start_time breach_time? "
        "completed_time?",
    ),
    _table(
        "notification", "NOTIF", "notification_id incident_id org_id email subject? message? type? status?"
    ),
)

#: Tables by name, each after those that it refers to.
TABLES: dict[str, Table] = {table.name: table for table in _TABLES}

#: The schema as one SQL script.
SCRIPT = "\n".join(table.create() for table in _TABLES)


def encode(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it is stored: every column in order, absent ones null."""
    return {name: row.get(name) for name in table.columns}
