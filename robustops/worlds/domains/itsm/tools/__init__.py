"""The tools of the ITSM world, by entity. Behaviour follows the recorded calls of the real one."""

from __future__ import annotations

from robustops.worlds.domains.itsm.tools.changes import ChangeTools
from robustops.worlds.domains.itsm.tools.children import ChildIncidentTools
from robustops.worlds.domains.itsm.tools.incidents import IncidentTools
from robustops.worlds.domains.itsm.tools.items import ItemTools
from robustops.worlds.domains.itsm.tools.knowledge import KnowledgeTools
from robustops.worlds.domains.itsm.tools.people import PeopleTools
from robustops.worlds.domains.itsm.tools.problems import ProblemTools
from robustops.worlds.domains.itsm.tools.service_levels import NotificationTools, ServiceLevelTools


class ItsmTools(
    PeopleTools,
    IncidentTools,
    ChildIncidentTools,
    ProblemTools,
    ChangeTools,
    ItemTools,
    KnowledgeTools,
    ServiceLevelTools,
    NotificationTools,
):
    """All tools of the ITSM world.

    They are as permissive as the real ones: no state machine, no priority matrix, no permissions. Those
    are policy, and bind the agent.
    """

    brief_columns = {
        "incident": (
            "incident_id",
            "number",
            "caller_id",
            "configuration_item",
            "status",
            "priority",
        ),
        "child_incident": ("child_incident_mapping_id", "parent_incident", "child_incident"),
        "users": ("user_id", "first_name", "last_name", "email"),
        "user_group": ("group_id", "name", "manager_id"),
        "user_group_member": ("member_id", "group_id", "user_id"),
        "location": ("location_id", "name", "city"),
        "service": ("service_id", "name", "status"),
        "configuration_item": ("configuration_item_id", "name", "serial_number", "owner_id", "status"),
        "problem": ("problem_id", "number", "status", "original_task"),
        "change": ("change_id", "number", "status", "configuration_item"),
        "change_request_mapping": (
            "change_request_mapping_id",
            "change_id",
            "incident_id",
            "problem_id",
        ),
        "knowledge": ("knowledge_id", "kb_number", "title", "state"),
        "incident_knowledge": ("incident_kb_id", "incident_id", "knowledge_id", "used_as"),
        "incident_affected_cis": ("incident_affected_cis_id", "configuration_item", "incident_id"),
        "sla_definition": ("sla_def_id", "name", "target_mins"),
        "incident_sla": ("incident_sla_id", "incident_id", "sla_def_id", "stage"),
        "notification": ("notification_id", "incident_id", "email", "type"),
    }
    brief_list_columns = {
        "incident": ("incident_id", "status", "priority", "configuration_item", "assigned_to")
    }
