from __future__ import annotations

import json
from pathlib import Path

import pytest

from robustops.errors import ConfigError
from robustops.records import DatabaseSpec, ToolCall
from robustops.rollout.replay import (
    open_frozen,
    read_lines,
    replay_calls,
    row_changes,
    table_keys,
    table_rows,
    write_lines,
)
from robustops.worlds.domains.itsm import ItsmDomain

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "itsm_world"
FILES = {
    "single_tenant": str(DATA / "single_tenant_db.json"),
    "msp": str(DATA / "msp_db.json"),
}
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the recorded ITSM data is not here")
DOMAIN = ItsmDomain(detail="full")

#: Calls that we refuse on purpose, by (sequence, index): the real tools take a wrong type. We check types
#: at the boundary, so a number is not stored in a text column and a boolean is not ignored as a text.
DEVIATIONS = {
    (19, 4): "update_incident(description=132)",
    (38, 4): "update_incident(description=973)",
    (38, 1): "list_users(active=False), where `active` is a text",
}


def comparable(lines):
    """Calls of the tools that we have, as long as no other tool has changed their sequence's database."""
    have = DOMAIN.toolset.specs()
    spoilt = set()
    for line in lines:
        if line["tool"] not in have:
            if line["changes"]:
                spoilt.add(line["sequence"])
        elif line["sequence"] not in spoilt:
            yield line


def agrees(recorded, ours) -> bool:
    if recorded["error_type"] is None:
        same_error = ours["error_type"] is None
    elif recorded["error_type"] == "ItsmError":
        codes = ("error_code", "error_field")
        same_error = all(recorded[name] == ours[name] for name in codes)
    else:  # refused by the recorded program's runtime: only that it was refused can be compared
        same_error = ours["error_type"] is not None
    return same_error and recorded["reply"] == ours["reply"] and recorded["changes"] == ours["changes"]


@needs_data
def test_tools_agree_with_the_recordings():
    """283 of the 335 recorded calls of our tools can be compared; 280 agree, 3 deviate on purpose."""
    lines = list(comparable(read_lines(DATA / "recorded_calls.jsonl")))
    ours = list(replay_calls(lines, DOMAIN, FILES))
    wrong = {(a["sequence"], a["index"]) for a, b in zip(lines, ours, strict=True) if not agrees(a, b)}
    assert wrong == set(DEVIATIONS)
    assert (len(lines), len(lines) - len(wrong)) == (283, 280)
    refused = {(line["sequence"], line["index"]): line["error_code"] for line in ours}
    assert {refused[place] for place in DEVIATIONS} == {"INVALID_ARGUMENT"}


@needs_data
def test_a_wrong_expectation_would_be_noticed():
    line = next(
        x
        for x in read_lines(DATA / "recorded_calls.jsonl")
        if x["tool"] == "create_incident" and x["changes"]
    )
    (ours,) = replay_calls([line], DOMAIN, FILES)
    assert agrees(line, ours)
    assert not agrees({**line, "reply": {**line["reply"], "priority": "low "}}, ours)
    assert not agrees({**line, "changes": []}, ours)
    assert not agrees({**line, "error_type": "ItsmError", "error_code": "NOT_FOUND"}, ours)


def gold_tasks():
    file = DATA / "tasks.json"
    return json.loads(file.read_text()) if file.is_file() else []


def play_gold(task):
    """The final database of a gold action list, and the changes that each call made."""
    domain = ItsmDomain(detail="full")
    database = domain.open(DatabaseSpec(path=FILES["msp"]))
    for table, rows in task.get("initial_state_delta", {}).items():
        for row in rows.values():
            (values,) = row.values()
            database.insert(table, values)
    user = task["scenario"]["persona"]["identity"]["user_id"]
    context = {"acting_user_id": user, "now": task["current_time"]}
    tools = open_frozen(domain, database.snapshot(), context)
    before = table_rows(tools.database)
    for action in task["evaluation_criteria"]["actions"]:
        result = tools.call(ToolCall(action["name"], action["arguments"]))
        assert not result.is_error, f"{action}: {result.text}"
    changes = row_changes(before, table_rows(tools.database), table_keys(tools.database))
    return tools.database, {f"{c['table']} {c['key']}": c for c in changes}


@needs_data
def test_gold_task_004_moves_a_user_and_resumes_an_incident():
    database, changes = play_gold(gold_tasks()[0])
    assert set(changes) == {
        "users USER_044",
        "incident INC_013",
        "incident_sla TSLA_027",
        "incident_knowledge IKB_046",
    }
    lisa = database.find("users", first_name="Lisa", last_name="Foley")
    assert [row["location_id"] for row in lisa] == [
        database.find("location", name="Globex HQ")[0]["location_id"]
    ]
    assert changes["incident INC_013"]["before"]["status"] == "on_hold"
    assert changes["incident INC_013"]["after"]["status"] == "in_progress"
    assert changes["incident_sla TSLA_027"]["after"]["stage"] == "in_progress"
    link = changes["incident_knowledge IKB_046"]["after"]
    article = database.find("knowledge", knowledge_id=link["knowledge_id"])[0]
    assert (article["title"], link["incident_id"], link["used_as"]) == (
        "Bitlocker Recovery Key",
        "INC_013",
        "applied",
    )


@needs_data
def test_gold_task_015_moves_a_change_and_records_the_affected_item():
    database, changes = play_gold(gold_tasks()[1])
    change = changes.pop("change CHG_008")
    assert (change["before"]["status"], change["after"]["status"]) == ("new", "assess")
    item = database.find("configuration_item", serial_number="NET-CS-8899")[0]["configuration_item_id"]
    assert changes.pop("incident INC_051")["after"]["configuration_item"] == item
    links = [entry["after"] for entry in changes.values() if entry["op"] == "insert"]
    assert len(links) == len(changes) == 2
    assert {"configuration_item": item, "incident_id": "INC_051"}.items() <= links[0].items()
    assert {"knowledge_id": "KB_018", "incident_id": "INC_051", "used_as": "applied"}.items() <= links[
        1
    ].items()


@needs_data
def test_gold_task_017_moves_change_and_problem_and_applies_the_article():
    database, changes = play_gold(gold_tasks()[2])
    for key, was, now in (
        ("change CHG_020", "assess", "authorize"),
        ("problem PRB_012", "assess", "root_cause"),
    ):
        entry = changes.pop(key)
        assert (entry["before"]["status"], entry["after"]["status"]) == (was, now)
    ((_, link),) = changes.items()
    problem = database.find("problem", number="PRB0000012")[0]
    assert link["table"] == "incident_knowledge" and link["op"] == "insert"
    assert link["after"]["incident_id"] == problem["original_task"]
    assert (link["after"]["knowledge_id"], link["after"]["used_as"]) == ("KB_026", "applied")


def call(tool, sequence=None, index=None, **arguments):
    line = {"tool": tool, "arguments": arguments, "context": {"acting_user_id": None}}
    extra = {"sequence": sequence, "index": index}
    return line | {name: value for name, value in extra.items() if value is not None}


def some_incident():
    return DOMAIN.open(DatabaseSpec()).find("incident")[0]


def test_a_sequence_shares_a_database_and_the_next_one_starts_fresh():
    key = some_incident()["incident_id"]
    change = {"incident_id": key, "on_hold_reason": "Awaiting Change"}
    lines = [
        call("update_incident", 1, 1, **change),
        call("find_incident_by_id", 1, 0, incident_id=key),
        call("find_incident_by_id", 2, 0, incident_id=key),
        call("update_incident", 2, 1, **change),
    ]
    out = list(replay_calls(lines, DOMAIN))
    assert [line["index"] for line in out] == [0, 1, 0, 1], "in order of index"
    assert [len(line["changes"]) for line in out] == [0, 1, 0, 1]
    assert out[1]["changes"] == out[3]["changes"]
    assert out[2]["reply"]["on_hold_reason"] != "Awaiting Change"


def test_calls_without_a_sequence_stand_alone():
    key = some_incident()["incident_id"]
    line = call("update_incident", incident_id=key, worknotes="Called back")
    first, second = replay_calls([line, line], DOMAIN)
    assert first == second and first["error"] is None


def test_the_clock_is_frozen_at_now():
    row = some_incident()
    lines = [
        call("create_incident", 1, place, caller_id=row["caller_id"], short_description=f"Case {place}")
        for place in range(3)
    ]
    for line in lines:
        line["context"]["now"] = "2031-02-03T04:05:06"
    out = list(replay_calls(lines, DOMAIN))
    assert {line["reply"]["created_at"] for line in out} == {"2031-02-03 04:05:06"}
    assert len({line["reply"]["incident_id"] for line in out}) == 3


def test_refusals_carry_code_and_field_and_no_changes():
    (line,) = replay_calls([call("find_incident_by_id", incident_id="INC_0")], DOMAIN)
    assert (line["error_code"], line["error_field"]) == ("VALIDATION_ERROR", "incident_id")
    assert line["reply"] is None and line["changes"] == [] and "INC_0" in line["error"]
    (line,) = replay_calls([call("no_such_tool")], DOMAIN)
    assert line["error_code"] == "UNKNOWN_TOOL"


def test_row_changes_by_hand():
    keys = {"t": ("a", "b")}
    before = {"t": [{"a": 1, "b": 1, "c": "x"}, {"a": 1, "b": 2, "c": "y"}]}
    after = {"t": [{"a": 1, "b": 1, "c": "z"}, {"a": 2, "b": 2, "c": "y"}]}
    assert row_changes(before, after, keys) == [
        {"table": "t", "key": "1:1", "op": "update", "before": {"c": "x"}, "after": {"c": "z"}},
        {"table": "t", "key": "1:2", "op": "delete", "before": {"a": 1, "b": 2, "c": "y"}, "after": {}},
        {"table": "t", "key": "2:2", "op": "insert", "before": {}, "after": {"a": 2, "b": 2, "c": "y"}},
    ]


def test_lines_go_to_a_file_and_back(tmp_path):
    lines = [call("get_user", 1, 0, user_id="USER_é"), call("list_users")]
    assert write_lines(tmp_path / "out.jsonl", lines) == 2
    assert read_lines(tmp_path / "out.jsonl") == lines


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "line 1: not JSON"), ("\n[]", "line 2: a call is an object"), ('{"tool": 3}', "line 1: a call")],
)
def test_bad_lines_are_named(tmp_path, text, message):
    file = tmp_path / "calls.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_lines(file)


def test_missing_file_unknown_database_and_bad_moment_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        read_lines(tmp_path / "absent")
    with pytest.raises(ConfigError, match="no database file for db 'None'; there are: msp, single_tenant"):
        list(replay_calls([call("list_users")], DOMAIN, FILES))
    line = call("list_users")
    line["context"]["now"] = "yesterday"
    with pytest.raises(ConfigError, match="yesterday"):
        list(replay_calls([line], DOMAIN))
