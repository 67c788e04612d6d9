import copy
import json
from pathlib import Path

import pytest

from robustops.errors import TaskError
from robustops.records import DatabaseSpec, StateCheck, Task
from robustops.tasks.enterpriseops import from_enterpriseops, to_enterpriseops
from robustops.worlds.checks import validate_graph
from tests.toy_domain import toy_tasks

SAMPLES = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "enterpriseops_tasks"
FILES = sorted(SAMPLES.glob("*/*.json"))
needs_samples = pytest.mark.skipif(not FILES, reason="the EnterpriseOps-Gym sample files are not here")

#: What the published client accepts at the top level; it drops a task with any other key.
THEIR_KEYS = {
    "mcp_endpoint", "number_of_runs", "reset_database_between_runs", "gym_servers_config", "system_prompt",
    "user_prompt", "selected_tools", "restricted_tools", "verifiers",
}  # fmt: skip
FOREIGN = {
    "system_prompt": "Be careful.",
    "user_prompt": "Close the case.",
    "selected_tools": ["find_case", "update_case", "delete_case"],
    "restricted_tools": ["delete_case"],
    "gym_servers_config": [
        {
            "mcp_server_name": "sn-csm-server",
            "mcp_server_url": "http://localhost:8001",
            "seed_database_file": "dbs/one.sql",
            "context": {"x-user-email": "jo@example.com"},
        }
    ],
    "verifiers": [
        {
            "verifier_type": "database_state",
            "name": "case is closed ",
            "description": "-",
            "gym_name": "sn-csm-server",
            "validation_config": {
                "query": "SELECT COUNT(*) FROM customer_case",
                "expected_value": 1,
                "comparison_type": "equals",
            },
        }
    ],
}
TASK = Task(
    id="itsm-train-00001",
    domain="itsm",
    template="raise_impact",
    policy="Policy\nwith lines",
    prompt="Do “it”",
    tools=("b", "a"),
    distractors=("z",),
    database=DatabaseSpec(seed=3, size="large"),
    acting_user="USER_001",
    checks=(
        StateCheck("x", "SELECT 1", 1),
        StateCheck("y", "SELECT 'a'", "a", "contains", "calendar"),
        StateCheck("z", "SELECT NULL", None, "equals", "itsm"),
    ),
    prerequisites=(("x", "y"), ("x", "z")),
    plan={"number": "INC-1", "list": [1, {"a": None}], "flag": True},
    split="val",
    tool_config="plus5",
)


def changed(**values):
    data = copy.deepcopy(FOREIGN)
    for path, value in values.items():
        place = data
        *parents, last = path.split("__")
        for key in parents:
            place = place[int(key) if key.isdigit() else key]
        place[last] = value
    return data


@pytest.mark.parametrize("task", [TASK, *toy_tasks(2)], ids=lambda task: task.case_id)
def test_our_tasks_come_back_exactly(task):
    data = json.loads(json.dumps(to_enterpriseops(task)))
    assert data == to_enterpriseops(task)
    assert from_enterpriseops(data, task.domain) == task


def test_a_file_without_extras_is_one_of_theirs():
    data = to_enterpriseops(TASK, extras=False, server_url="http://localhost:8006")
    assert set(data) == THEIR_KEYS
    assert set(to_enterpriseops(TASK)) == THEIR_KEYS | {"robustops"}
    assert data["selected_tools"] == ["a", "b", "z"]
    assert data["gym_servers_config"] == [
        {
            "mcp_server_name": name,
            "mcp_server_url": "http://localhost:8006",
            "context": {header: "USER_001"},
        }
        for name, header in (("gym-itsm-mcp", "x-itsm-user-token"), ("gym-calendar", "x-access-token"))
    ]
    assert set(data["verifiers"][0]) == {
        "verifier_type", "name", "description", "gym_name", "validation_config",
    }  # fmt: skip
    assert [verifier["gym_name"] for verifier in data["verifiers"]] == [
        "gym-itsm-mcp", "gym-calendar", "gym-itsm-mcp",
    ]  # fmt: skip


def test_a_foreign_file_becomes_a_task():
    task = from_enterpriseops(FOREIGN, "csm", task_id="t1")
    assert (task.id, task.domain, task.policy, task.prompt) == ("t1", "csm", "Be careful.", "Close the case.")
    assert task.tools == ("find_case", "update_case")
    assert task.database == DatabaseSpec(path="dbs/one.sql")
    assert task.acting_user == "jo@example.com"
    assert task.checks == (StateCheck("case is closed", "SELECT COUNT(*) FROM customer_case", 1),)
    assert (task.split, task.tool_config, task.prerequisites, task.plan) == ("external", "oracle", (), {})
    known = changed(gym_servers_config__0__user_info={"user_id": 32, "name": "Jo"})
    assert from_enterpriseops(known, "csm").acting_user == "32"


def test_ids_without_a_name_follow_from_the_content():
    first, again = (from_enterpriseops(FOREIGN, "csm").id for _ in range(2))
    assert first == again
    assert first != from_enterpriseops(changed(user_prompt="Open the case."), "csm").id
    assert from_enterpriseops({**FOREIGN, "task_id": "row_9"}, "csm").id == "row_9"


def test_rows_of_the_published_data_set_hold_json_as_text():
    row = {**FOREIGN, "task_id": "row_9"}
    text = {key: json.dumps(FOREIGN[key]) for key in ("gym_servers_config", "verifiers")}
    assert from_enterpriseops({**row, **text}, "csm") == from_enterpriseops(row, "csm")


def test_verifiers_that_share_a_name_are_all_kept():
    twice = changed()
    twice["verifiers"] = [copy.deepcopy(FOREIGN["verifiers"][0]) for _ in range(2)]
    twice["verifiers"][1]["validation_config"]["expected_value"] = 2
    task = from_enterpriseops(twice, "csm")
    assert [(check.name, check.expected) for check in task.checks] == [
        ("case is closed #1", 1), ("case is closed #2", 2),
    ]  # fmt: skip
    validate_graph([check.name for check in task.checks], task.prerequisites)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verifiers__0__verifier_type": "response_check"}, "type 'response_check', which is not supported"),
        ({"verifiers__0__verifier_type": "tool_execution"}, "type 'tool_execution', which is not supported"),
        ({"verifiers__0__gym_name": "gym-calendar"}, "asks server 'gym-calendar'"),
        (
            {"verifiers__0__validation_config__comparison_type": "like"},
            "comparison 'like'; allowed: contains",
        ),
        (
            {"verifiers__0__validation_config": {"query": "SELECT 1"}},
            "lacks validation_config.expected_value",
        ),
        ({"verifiers": []}, "'verifiers' must be a list"),
        ({"verifiers": "[oops"}, "'verifiers' is text, but not JSON"),
        (
            {"gym_servers_config": [{"mcp_server_name": "a"}, {"mcp_server_name": "sn-csm-server"}]},
            "one server is supported, given 2: a, sn-csm-server",
        ),
        ({"user_prompt": ""}, "'user_prompt' is missing"),
        ({"selected_tools": []}, "selected_tools is empty"),
    ],
)
def test_what_is_not_supported_is_named(change, message):
    with pytest.raises(TaskError, match=message) as caught:
        from_enterpriseops(changed(**change), "csm", task_id="t7")
    assert "t7" in str(caught.value)


def test_our_file_is_refused_by_another_domain_and_when_checks_are_out_of_step():
    data = to_enterpriseops(TASK)
    with pytest.raises(TaskError, match="is of domain 'itsm', not 'csm'"):
        from_enterpriseops(data, "csm")
    short = copy.deepcopy(data)
    del short["robustops"]["plan"]
    with pytest.raises(TaskError, match="task itsm-train-00001: key 'robustops' lacks plan"):
        from_enterpriseops(short, "itsm")
    data["verifiers"].pop()
    with pytest.raises(TaskError, match="2 verifiers but 3 check_worlds"):
        from_enterpriseops(data, "itsm")


def test_what_a_person_edits_in_our_file_counts():
    data = to_enterpriseops(TASK)
    data["user_prompt"] = "Do that"
    data["verifiers"][0]["validation_config"]["expected_value"] = 5
    task = from_enterpriseops(data, "itsm")
    assert (task.prompt, task.checks[0].expected) == ("Do that", 5)


@needs_samples
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem[5:26])
def test_the_real_files_are_read(path):
    data = json.loads(path.read_text())
    task = from_enterpriseops(data, path.parent.name, task_id=path.stem)
    assert task.id == path.stem
    assert task.prompt == data["user_prompt"]
    assert task.policy == data["system_prompt"]
    assert task.tools == tuple(data["selected_tools"])
    assert [(check.query, check.expected) for check in task.checks] == [
        (v["validation_config"]["query"], v["validation_config"]["expected_value"]) for v in data["verifiers"]
    ]
    validate_graph([check.name for check in task.checks], ())
    again = to_enterpriseops(task, extras=False)
    for key in ("system_prompt", "user_prompt", "verifiers", "selected_tools", "gym_servers_config"):
        assert bool(again[key])
    assert (
        again["gym_servers_config"][0]["mcp_server_name"] == data["gym_servers_config"][0]["mcp_server_name"]
    )
    assert from_enterpriseops(json.loads(json.dumps(to_enterpriseops(task))), task.domain) == task


@needs_samples
def test_the_real_files_lose_no_check():
    tasks = [from_enterpriseops(json.loads(p.read_text()), p.parent.name, task_id=p.stem) for p in FILES]
    assert sum(len(task.checks) for task in tasks if task.domain == "csm") == 100
    assert sum(len(task.checks) for task in tasks if task.domain == "itsm") == 2
    (itsm,) = [task for task in tasks if task.domain == "itsm"]
    assert itsm.acting_user == "USER_001"
