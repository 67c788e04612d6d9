"""Typed tools: schemas from hints and docstrings, and every refusal in its structured form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from jsonschema import Draft202012Validator

from robustops.errors import ToolError
from robustops.records import ToolCall, ToolResult
from robustops.worlds.database import Row, WorldDatabase
from robustops.worlds.toolset import Toolset, refusal, reply_text, require, tool


class DoorTools(Toolset):
    brief_columns = {"door": ("door_id", "state")}

    @tool("read", identity={"door_id": "door.door_id"})
    def get_door(self, door_id: str) -> Row:
        """Return one door,
        whatever its state.

        Args:
            door_id: Id of the door.
        """
        return self.show(
            "door", require(self.database.find("door", door_id=door_id), "door", door_id, "door_id")
        )

    @tool("read")
    def count_doors(self) -> int:
        """How many there are."""
        return len(self.database.find("door"))

    @tool("write")
    def set_door(
        self,
        door_id: str,
        state: Literal["open", "shut"],
        width: int | None = None,
        tags: list[str] | None = None,
        loud: bool = False,
        factor: float = 1.5,
    ) -> dict[str, Any]:
        """Move a door.

        Args:
            door_id: Id of the door.
            state: New state.
            width: Gap in cm.
            tags: Words for the log.
        """
        self.database.update("door", {"door_id": door_id}, {"state": state, "width": width})
        if width == 13:
            raise ToolError("FORBIDDEN", "no", "width", ["14", "12"])
        return {"door_id": door_id, "state": state, "width": width, "tags": tags, "loud": loud, "f": factor}

    @tool("write")
    def break_door(self, door_id: str) -> None:
        """Fail in a way nobody foresaw."""
        self.database.delete("door", {"door_id": door_id})
        raise ZeroDivisionError

    def helper(self) -> None:
        """Not a tool."""


class MoreDoorTools(DoorTools):
    @tool("read")
    def knock(self) -> str:
        """Knock."""
        return "who?"


@pytest.fixture()
def tools() -> Iterator[DoorTools]:
    database = WorldDatabase()
    database.script(
        "CREATE TABLE door (door_id TEXT, state TEXT, width INTEGER);"
        "INSERT INTO door VALUES ('D1', 'shut', NULL);"
    )
    yield DoorTools(database)
    database.close()


def error_of(result: ToolResult) -> dict[str, Any]:
    assert result.is_error
    error: dict[str, Any] = json.loads(result.text)["error"]
    return error


# schemas ----------------------------------------------------------------------------------------
def test_specs_are_the_marked_methods_in_alphabetical_order() -> None:
    assert list(DoorTools.specs()) == ["break_door", "count_doors", "get_door", "set_door"]
    assert set(MoreDoorTools.specs()) - set(DoorTools.specs()) == {"knock"}
    kinds = {name: spec.kind for name, spec in DoorTools.specs().items()}
    assert kinds == {"break_door": "write", "count_doors": "read", "get_door": "read", "set_door": "write"}


def test_descriptions_come_from_the_docstring() -> None:
    spec = DoorTools.specs()["get_door"]
    assert spec.description == "Return one door, whatever its state."
    assert spec.identity == {"door_id": "door.door_id"}
    assert spec.input_schema == {
        "type": "object",
        "properties": {"door_id": {"type": "string", "description": "Id of the door."}},
        "required": ["door_id"],
    }
    assert DoorTools.specs()["count_doors"].input_schema == {
        "type": "object",
        "properties": {},
        "required": [],
    }


def test_schemas_are_plain_and_offer_no_null() -> None:
    spec = DoorTools.specs()["set_door"]
    schema = spec.input_schema
    assert schema["required"] == ["door_id", "state"] == list(spec.required)
    assert spec.arguments == ("door_id", "state", "width", "tags", "loud", "factor")
    assert schema["properties"]["state"] == {
        "type": "string",
        "enum": ["open", "shut"],
        "description": "New state.",
    }
    assert schema["properties"]["width"] == {"type": "integer", "description": "Gap in cm."}
    assert schema["properties"]["tags"] == {
        "type": "array",
        "items": {"type": "string"},
        "description": "Words for the log.",
    }
    assert schema["properties"]["loud"] == {"type": "boolean", "default": False}
    assert schema["properties"]["factor"] == {"type": "number", "default": 1.5}
    text = json.dumps(schema)
    assert "null" not in text and "anyOf" not in text and "title" not in text
    Draft202012Validator.check_schema(schema)


# calls ------------------------------------------------------------------------------------------
def test_replies_are_compact_json_in_their_own_order(tools: DoorTools) -> None:
    result = tools.call(ToolCall("set_door", {"state": "open", "door_id": "D1", "tags": ["ä"]}))
    assert result == ToolResult(
        '{"door_id":"D1","state":"open","width":null,"tags":["ä"],"loud":false,"f":1.5}', False
    )
    assert tools.call(ToolCall("count_doors")).text == "1"
    assert reply_text({"b": 1, "a": [None, "ß"]}) == '{"b":1,"a":[null,"ß"]}'


def test_brief_replies_keep_listed_columns_and_drop_nulls(tools: DoorTools) -> None:
    row = {"door_id": "D1", "state": "shut", "width": None}
    assert tools.call(ToolCall("get_door", {"door_id": "D1"})).data == row
    brief = DoorTools(tools.database, detail="brief")
    assert brief.call(ToolCall("get_door", {"door_id": "D1"})).data == {"door_id": "D1", "state": "shut"}
    assert brief.show("elsewhere", {"a": 1, "b": None}) == {"a": 1}


@pytest.mark.parametrize(
    ("name", "arguments", "code", "field", "allowed"),
    [
        ("nope", {}, "UNKNOWN_TOOL", "name", ["break_door", "count_doors", "get_door", "set_door"]),
        ("helper", {}, "UNKNOWN_TOOL", "name", ["break_door", "count_doors", "get_door", "set_door"]),
        ("get_door", {}, "MISSING_ARGUMENT", "door_id", None),
        ("set_door", {"door_id": "D1"}, "MISSING_ARGUMENT", "state", None),
        ("get_door", {"door_id": "D1", "x": 1}, "UNKNOWN_ARGUMENT", "x", ["door_id"]),
        ("count_doors", {"x": 1}, "UNKNOWN_ARGUMENT", "x", []),
        ("set_door", {"door_id": "D1", "state": "ajar"}, "INVALID_ENUM_VALUE", "state", ["open", "shut"]),
        ("set_door", {"door_id": "D1", "state": None}, "INVALID_ENUM_VALUE", "state", ["open", "shut"]),
        ("set_door", {"door_id": "D1", "state": "open", "width": "wide"}, "INVALID_ARGUMENT", "width", None),
        ("set_door", {"door_id": "D1", "state": "open", "tags": [1]}, "INVALID_ARGUMENT", "tags", None),
        ("set_door", {"door_id": 5, "state": "open"}, "INVALID_ARGUMENT", "door_id", None),
        ("get_door", {"door_id": "D9"}, "NOT_FOUND", "door_id", None),
        ("set_door", {"door_id": "D1", "state": "open", "width": 13}, "FORBIDDEN", "width", ["12", "14"]),
    ],
)
def test_refusals(
    tools: DoorTools, name: str, arguments: dict[str, Any], code: str, field: str, allowed: list[str] | None
) -> None:
    before = tools.database.snapshot()
    error = error_of(tools.call(ToolCall(name, arguments)))
    assert (error["code"], error["field"], error.get("allowed")) == (code, field, allowed)
    assert error["message"]
    assert tools.database.snapshot() == before


def test_an_unforeseen_failure_is_raised_and_rolled_back(tools: DoorTools) -> None:
    before, changes = tools.database.snapshot(), tools.database.changes
    with pytest.raises(ZeroDivisionError):
        tools.call(ToolCall("break_door", {"door_id": "D1"}))
    assert tools.database.snapshot() == before and tools.database.changes == changes


def test_only_writes_move_the_clock(tools: DoorTools) -> None:
    tools.call(ToolCall("get_door", {"door_id": "D1"}))
    tools.call(ToolCall("set_door", {"door_id": "D1", "state": "ajar"}))
    assert tools.database.seconds == 0
    tools.call(ToolCall("set_door", {"door_id": "D1", "state": "open"}))
    assert tools.database.seconds == 1


def test_a_refusal_names_only_what_it_knows() -> None:
    assert refusal(ToolError("BUSY", "later")).text == '{"error":{"code":"BUSY","message":"later"}}'
    full = refusal(ToolError("BUSY", "later", "when", ["b", "a"])).data
    assert full == {"error": {"code": "BUSY", "message": "later", "field": "when", "allowed": ["a", "b"]}}


def test_require_takes_rows_lists_and_nothing() -> None:
    assert require({"a": 1}, "x", "1", "a") == {"a": 1}
    assert require([{"a": 1}, {"a": 2}], "x", "1", "a") == {"a": 1}
    for nothing in (None, []):
        with pytest.raises(ToolError, match="x '1' not found") as caught:
            require(nothing, "x", "1", "a")
        assert (caught.value.code, caught.value.field) == ("NOT_FOUND", "a")
