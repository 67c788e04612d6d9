"""Tools of the itsm domain: signatures, behaviour that the recordings do not cover, brief replies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from robustops.records import DatabaseSpec, ToolCall
from robustops.worlds.check_world import check_world
from robustops.worlds.domains.itsm import ItsmDomain
from robustops.worlds.domains.itsm.schema import TABLES

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "itsm_world"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the recorded ITSM data is not here")
SPECS = ItsmDomain.toolset.specs()
#: The lists of the recordings that have no frame.
BARE = {
    "list_incidents": "incidents",
    "get_incidents_assigned_to": "incidents",
    "list_child_incidents": "child_incidents",
    "find_incident_knowledge_links": "incident_knowledges",
}


def open_tools(detail="full", acting=True, **spec):
    domain = ItsmDomain(detail=detail)
    database = domain.open(DatabaseSpec(**spec))
    agent = database.find("users", role="agent")[0]["user_id"] if acting else None
    return domain.toolset(database, acting_user=agent, detail=detail)


def run(tools, name, /, **arguments):
    result = tools.call(ToolCall(name, arguments))
    assert not result.is_error, result.text
    return result.data


def refused(tools, name, /, **arguments):
    result = tools.call(ToolCall(name, arguments))
    assert result.is_error, result.text
    error = result.data["error"]
    return error["code"], error.get("field")


@needs_data
def test_signatures_are_those_of_the_recorded_tools():
    signatures = json.loads((DATA / "tool_signatures.json").read_text())
    assert len(SPECS) >= 40 and set(SPECS) <= set(signatures)
    types = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "List[str]": "array"}
    for name, spec in SPECS.items():
        signature = signatures[name]
        assert list(spec.arguments) == list(signature["args"]), name
        assert list(spec.required) == signature["required"], name
        assert spec.kind == ("write" if "WRITE" in signature["kind"][0] else "read"), name
        for argument, hint in signature["args"].items():
            bare = hint.removeprefix("Optional[").removesuffix("]") if "Optional" in hint else hint
            bare = bare if bare in types else bare + "]"
            assert spec.input_schema["properties"][argument]["type"] == types[bare], (name, argument)


def test_check_world_finds_nothing_to_complain_of():
    check_world(ItsmDomain(), seeds=(5,), size="tiny")


@needs_data
def test_check_world_on_the_real_database():
    check_world(ItsmDomain(path=str(DATA / "single_tenant_db.json")), seeds=(0,))


def test_identities_name_columns_that_the_reply_echoes():
    tools = open_tools("brief")
    seen = 0
    for name, spec in SPECS.items():
        if not spec.identity:
            continue
        table = next(iter(spec.identity.values())).split(".")[0]
        row = tools.database.find(table)[0]
        arguments = {n: row[target.split(".")[1]] for n, target in spec.identity.items()}
        reply = run(tools, name, **arguments)
        for argument, target in spec.identity.items():
            assert reply[target.split(".")[1]] == arguments[argument], name
        seen += 1
    assert seen >= 12


def test_brief_lists_have_a_frame_and_a_stable_row_form():
    tools = open_tools("brief")
    row = tools.database.query(
        "SELECT * FROM incident WHERE assigned_to NOT NULL AND configuration_item NOT NULL LIMIT 1"
    )[0]
    everything = run(tools, "list_incidents")
    some = run(tools, "list_incidents", assigned_to=row["assigned_to"], status=row["status"])
    assert everything["total_count"] == len(everything["incidents"]) == 40
    assert 1 <= some["total_count"] < 40
    assert all(entry in everything["incidents"] for entry in some["incidents"])
    assert {e["incident_id"] for e in some["incidents"]} == {
        r["incident_id"]
        for r in tools.database.find("incident", assigned_to=row["assigned_to"], status=row["status"])
    }


def test_bare_lists_of_the_recordings_are_bare_in_full_detail_only():
    full, brief = open_tools("full"), open_tools("brief")
    incident = full.database.find("incident")[0]
    arguments = {
        "get_incidents_assigned_to": {"assignment_group": incident["assignment_group"]},
        "list_child_incidents": {
            "parent_incident": full.database.find("child_incident")[0]["parent_incident"]
        },
    }
    for name, plural in BARE.items():
        whole = run(full, name, **arguments.get(name, {}))
        framed = run(brief, name, **arguments.get(name, {}))
        assert isinstance(whole, list) and whole
        assert list(framed) == [plural, "total_count"] and framed["total_count"] == len(whole)


def test_full_rows_have_all_columns_and_booleans():
    tools = open_tools("full")
    user = tools.database.find("users")[0]
    reply = run(tools, "get_user", user_id=user["user_id"])
    assert list(reply) == list(TABLES["users"].columns) and reply["active"] is True


def test_brief_rows_are_short():
    tools = open_tools("brief")
    for table, columns in ItsmDomain.toolset.brief_columns.items():
        assert 2 <= len(columns) <= 6 and columns[0] == TABLES[table].id
        for row in tools.database.find(table):
            assert len(json.dumps(tools.show(table, row))) < 190, table


def test_brief_write_replies_show_what_was_written():
    tools = open_tools("brief")
    row = tools.database.find("incident")[0]
    reply = run(tools, "update_incident", incident_id=row["incident_id"], close_notes="Bye", channel="web")
    assert (reply["close_notes"], reply["channel"]) == ("Bye", "web")
    assert "description" not in reply and "created_at" not in reply


# behaviour --------------------------------------------------------------------------------------
def test_tools_enforce_no_state_machine_and_no_priority_matrix():
    tools = open_tools()
    caller = tools.database.find("users")[0]["user_id"]
    made = run(
        tools, "create_incident", caller_id=caller, short_description="x", impact="high", urgency="high"
    )
    assert (made["status"], made["category"], made["priority"]) == ("new", "inquiry-help", "planning")
    assert made["number"] == f"INC-{int(made['incident_id'][4:]):06d}"
    for status in ("closed", "new", "resolved", "on_hold"):
        assert (
            run(tools, "update_incident", incident_id=made["incident_id"], status=status)["status"] == status
        )
    assert not tools.database.find("incident_sla", incident_id=made["incident_id"])


def test_a_new_id_is_the_highest_plus_one_and_a_deleted_highest_is_used_again():
    tools = open_tools()
    first, second = (tools.database.find("incident")[i]["incident_id"] for i in (0, 1))
    pair = {"parent_incident": first, "child_incident": second}
    tools.database.delete("child_incident", pair)
    made = run(tools, "add_child_incident", **pair)["child_incident_mapping_id"]
    run(tools, "remove_child_incident", **pair)
    assert run(tools, "add_child_incident", **pair)["child_incident_mapping_id"] == made


def test_null_clears_on_problem_and_change_but_not_on_incident():
    tools = open_tools()
    problem = tools.database.find("problem")[0]["problem_id"]
    assert run(tools, "update_problem", problem_id=problem, assigned_to=None)["assigned_to"] is None
    change = tools.database.find("change")[0]["change_id"]
    reply = run(tools, "update_change", change_id=change, configuration_item=None, assigned_to="")
    assert reply["configuration_item"] is None and reply["assigned_to"] is not None
    incident = tools.database.find("incident")[0]["incident_id"]
    arguments = {"incident_id": incident, "assignment_group": None}
    assert refused(tools, "update_incident", **arguments) == ("NO_CHANGES_DETECTED", None)
    assert (
        run(tools, "update_incident", incident_id=incident, assignment_group="")["assignment_group"] is None
    )


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("create_incident", {"short_description": "x"}, ("MISSING_ARGUMENT", "caller_id")),
        ("find_incident_by_id", {"incident_id": "INC_1", "x": 1}, ("UNKNOWN_ARGUMENT", "x")),
        ("list_incidents", {"status": "Open"}, ("INVALID_ENUM_VALUE", "status")),
        ("find_incident_slas", {"stage": " pausing "}, ("INVALID_ENUM_VALUE", "stage")),
        ("find_incident_knowledge_links", {"used_as": "applied,used"}, ("INVALID_ENUM_VALUE", "used_as")),
        (
            "get_count_of_incident_priority_wise",
            {"priority_list": ["x"]},
            ("INVALID_ENUM_VALUE", "priority_list"),
        ),
        ("get_incidents_assigned_to", {}, ("VALIDATION_ERROR", None)),
        ("map_change_request", {"change_id": "CHG_1"}, ("VALIDATION_ERROR", None)),
        ("remove_affected_ci_from_incident", {}, ("VALIDATION_ERROR", None)),
        ("get_user_using_email", {"email": "nobody"}, ("INVALID_EMAIL_FORMAT", "email")),
        ("find_service_by_name", {"name": "mail"}, ("NOT_FOUND", None)),
    ],
)
def test_refusals(name, arguments, error):
    tools = open_tools()
    before = tools.database.changes
    assert refused(tools, name, **arguments) == error
    assert tools.database.changes == before


def test_without_an_acting_user_the_first_admin_counts_for_changes_and_not_for_problems():
    tools = open_tools(acting=False)
    admin = tools.database.find("users", role="admin")[0]
    rated = {"status": "new", "impact": "low", "priority": "low"}
    change = run(tools, "create_change", short_description="x", risk="low", **rated)
    assert (change["requested_by"], change["org_id"]) == (admin["user_id"], admin["org_id"])
    assert (
        refused(tools, "create_problem", problem_statement="x", urgency="low", **rated)[0]
        == "VALIDATION_ERROR"
    )


def test_bounds_of_the_creation_time():
    tools = open_tools()
    times = sorted(row["created_at"] for row in tools.database.find("incident"))
    assert len(run(tools, "list_incidents", created_after=times[9])) == 30, "exclusive"
    assert len(run(tools, "list_incidents", created_before=times[9])) == 10, "inclusive"


def test_users_are_listed_oldest_first_without_their_token():
    reply = run(open_tools(), "list_users")
    times = [row["created_on"] for row in reply["users"]]
    assert times == sorted(times) and all("static_token" not in row for row in reply["users"])
