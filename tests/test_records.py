"""Records go to JSON and back unchanged."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.records import (
    DatabaseSpec,
    Episode,
    EpisodeError,
    FaultEvent,
    Group,
    Record,
    RewardParts,
    StateCheck,
    Task,
    ToolCall,
    ToolResult,
    Turn,
    canonical_json,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, width=32)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=8), JSON, max_size=3)
TEXT = st.text(max_size=12)
CALLS = st.builds(ToolCall, TEXT, OBJECTS)
RESULTS = st.builds(ToolResult, TEXT, st.booleans())
FAULTS = st.builds(FaultEvent, TEXT, TEXT, st.integers(0, 9), TEXT, st.integers(1, 3), st.integers(1, 3))
TURNS = st.builds(
    Turn,
    TEXT,
    st.none() | CALLS,
    st.none() | RESULTS,
    st.integers(0, 99),
    st.integers(0, 99),
    st.none() | FAULTS,
    st.booleans(),
)
UNIT = st.floats(0, 1, width=32)
BOOLS = st.lists(st.booleans(), max_size=3).map(tuple)
EPISODES = st.builds(
    Episode,
    case_id=TEXT,
    condition=st.sampled_from(["clean", "fault"]),
    index=st.integers(0, 3),
    token_ids=st.lists(st.integers(0, 9999), max_size=4).map(tuple),
    loss_mask=BOOLS,
    old_log_probs=st.lists(st.floats(-50, 0, width=32), max_size=4).map(tuple),
    turns=st.lists(TURNS, max_size=3).map(tuple),
    inherited_turns=st.integers(0, 2),
    stop=st.sampled_from(["final_answer", "max_turns", "error"]),
    checks_start=BOOLS,
    checks_final=BOOLS,
    reward_parts=st.none() | st.builds(RewardParts, UNIT, UNIT, UNIT),
    error=st.none() | st.builds(EpisodeError, TEXT, TEXT),
)
TASKS = st.builds(
    Task,
    id=TEXT,
    domain=TEXT,
    template=TEXT,
    policy=TEXT,
    prompt=TEXT,
    tools=st.lists(TEXT, max_size=3).map(tuple),
    distractors=st.lists(TEXT, max_size=3).map(tuple),
    database=st.builds(DatabaseSpec, st.integers(0, 2**62), TEXT, st.none() | TEXT),
    acting_user=st.none() | TEXT,
    checks=st.lists(st.builds(StateCheck, TEXT, TEXT, JSON, TEXT, TEXT), max_size=2).map(tuple),
    prerequisites=st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
    plan=OBJECTS,
)


@settings(max_examples=80, deadline=None)
@given(
    st.one_of(TASKS, EPISODES, TURNS, st.builds(Group, TEXT, TEXT, st.lists(EPISODES, max_size=2).map(tuple)))
)
def test_records_survive_json(record: Record) -> None:
    text = json.dumps(record.to_dict())
    again = type(record).from_dict(json.loads(text))
    assert again == record
    assert again.to_dict() == record.to_dict()


def task(**changes: Any) -> Task:
    base = Task(
        id="itsm-train-00001",
        domain="itsm",
        template="t",
        policy="",
        prompt="do it",
        tools=("c", "a"),
        distractors=("b", "d"),
        database=DatabaseSpec(seed=3),
        acting_user=None,
        checks=(StateCheck("x", "SELECT 1", [1, {"a": None}]),),
        prerequisites=(("x", "y"),),
    )
    return dataclasses.replace(base, **changes)


def test_missing_keys_take_the_defaults_and_further_keys_are_left_out() -> None:
    data = {**task().to_dict(), "a_later_key": 1}
    for key in ("plan", "split", "tool_config"):
        del data[key]
    assert Task.from_dict(data) == task()
    with pytest.raises(TypeError, match="prompt"):
        Task.from_dict({key: value for key, value in data.items() if key != "prompt"})


def test_records_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        task().id = "other"  # type: ignore[misc]


def test_tool_configurations() -> None:
    oracle, plus5 = task(), task(tool_config="plus5")
    assert oracle.allowed_tools == ("a", "c")
    assert plus5.allowed_tools == ("a", "b", "c", "d")
    assert (oracle.case_id, plus5.case_id) == ("itsm-train-00001/oracle", "itsm-train-00001/plus5")


def test_equal_calls_have_equal_keys() -> None:
    one = ToolCall("get", {"b": 1, "a": {"y": [1, 2], "x": "ä"}})
    other = ToolCall("get", {"a": {"x": "ä", "y": [1, 2]}, "b": 1})
    assert one.key() == other.key() == 'get {"a":{"x":"ä","y":[1,2]},"b":1}'
    assert ToolCall("get", {"a": [2, 1]}).key() != ToolCall("get", {"a": [1, 2]}).key()
    assert ToolCall("get").key() != ToolCall("set").key()


@given(JSON)
def test_canonical_json_is_json(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


@pytest.mark.parametrize(
    ("text", "data"), [('{"a":1}', {"a": 1}), ("[1]", [1]), ('{"a":', None), ("", None), ("null", None)]
)
def test_result_data(text: str, data: Any) -> None:
    assert ToolResult(text).data == data


def episode(**changes: Any) -> Episode:
    fault = FaultEvent("incomplete_read", "missing_rows", 0, "list")
    turns = (Turn("a", ToolCall("list"), ToolResult("{}"), 0, 3, fault), Turn("b", None, None, 3, 5))
    base = Episode(
        "t/oracle", "fault", 0, (1, 2), (True, True), (0.0, -1.0), turns, 1, "final_answer", (), (True,)
    )
    return dataclasses.replace(base, **changes)


def test_episode_views() -> None:
    assert [turn.text for turn in episode().own_turns] == ["b"]
    assert [fault.subtype for fault in episode().faults] == ["missing_rows"]
    assert episode().success
    assert not episode(checks_final=(True, False)).success
    assert not episode(checks_final=()).success
    assert not episode(error=EpisodeError("tool", "broke")).success
