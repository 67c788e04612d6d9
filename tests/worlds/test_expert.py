"""The expert's building blocks: what they ask, in which order, and what they make of each faulty reply."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest

from robustops.records import ToolCall, ToolResult
from robustops.worlds.expert import (
    ATTEMPTS,
    ExpertError,
    error_code,
    matches,
    or_refused,
    read_row,
    read_rows,
    seen_in,
    seen_row,
    seen_values,
    write,
)

BUSY = ToolResult('{"error":{"code":"TEMPORARILY_UNAVAILABLE","message":"later"}}', True)
LOST = ToolResult('{"error":{"code":"NO_RECEIPT","message":"?"}}', True)
MISSING = ToolResult('{"error":{"code":"NOT_FOUND","message":"?","field":"id"}}', True)
WRONG = ToolResult('{"error":{"code":"INVALID_ARGUMENT","message":"?"}}', True)
CUT = ToolResult('{"id":"N1","titl')


def ok(body: Any) -> ToolResult:
    return ToolResult(json.dumps(body))


NOTE = {"id": "N1", "title": "Lamp", "box": "B1"}
OTHER = {"id": "N2", "title": "Sink", "box": "B2"}


def play(block: Generator[ToolCall, ToolResult, Any], replies: list[ToolResult]) -> tuple[list[str], Any]:
    """Names of the calls made, and what the block returned; all replies must be asked for."""
    names: list[str] = []
    waiting = list(replies)
    try:
        call = next(block)
        while True:
            names.append(call.name)
            call = block.send(waiting.pop(0))
    except StopIteration as stop:
        assert waiting == []
        return names, stop.value


def test_error_codes_and_matches() -> None:
    assert error_code(BUSY) == "TEMPORARILY_UNAVAILABLE"
    for plain in (ok(NOTE), CUT, ok([1]), ok({"error": "text"})):
        assert error_code(plain) is None
    assert matches(NOTE, {"id": "N1", "title": "LAMP"})
    assert not matches(NOTE, {"id": "N2"}) and not matches(NOTE, {"size": 1}) and not matches([NOTE], {})


@pytest.mark.parametrize("faulty", [BUSY, LOST, CUT, ok(OTHER), ok({"notes": [NOTE]}), ok([1, 2])])
def test_a_row_is_asked_for_again_until_it_is_the_right_one(faulty: ToolResult) -> None:
    for times in (0, 1, 3):
        block = read_row("get", {"id": "N1"}, match={"id": "N1"})
        assert play(block, [faulty] * times + [ok(NOTE)]) == (["get"] * (times + 1), NOTE)


def test_a_row_that_is_not_there() -> None:
    absent = read_row("get", {"id": "N1"}, match={"id": "N1"}, optional=True)
    assert play(absent, [BUSY, MISSING]) == (["get", "get"], None)
    for refusal in (MISSING, WRONG):
        with pytest.raises(ExpertError, match=r"no use repeating get \{"):
            play(read_row("get", {"id": "N1"}, match={"id": "N1"}), [refusal])


def test_blocks_give_up_after_eight_attempts() -> None:
    with pytest.raises(ExpertError):
        play(read_row("get", {}, match={"id": "N1"}), [BUSY] * ATTEMPTS)
    with pytest.raises(ExpertError):
        play(read_rows("list", {}, rows="notes"), [CUT] * ATTEMPTS)
    with pytest.raises(ExpertError):
        play(write("set", {}, landed=seen_row("list", {}, rows="notes", match={})), [BUSY] * ATTEMPTS)


@pytest.mark.parametrize(
    "faulty", [BUSY, CUT, ok(NOTE), ok({"notes": [NOTE], "incomplete": True}), ok({"notes": 3})]
)
def test_a_list_is_asked_for_again_until_it_is_whole(faulty: ToolResult) -> None:
    whole = ok({"notes": [NOTE, OTHER], "total_count": 2})
    assert play(read_rows("list", {}, rows="notes"), [faulty, whole]) == (["list"] * 2, [NOTE, OTHER])


def test_rows_that_do_not_match_are_left_out() -> None:
    """An ignored filter: the reply is whole, but holds rows of others too."""
    block = read_rows("list", {"box": "B1"}, rows="notes", match={"box": "B1"})
    assert play(block, [ok({"notes": [OTHER, NOTE, {**OTHER, "box": "B3"}]})]) == (["list"], [NOTE])


def test_a_list_about_another_object_is_asked_for_again() -> None:
    block = read_rows("list", {"box": "B1"}, rows="notes", match={"box": "B1"})
    foreign, right = ok({"notes": [OTHER, {**OTHER, "id": "N3"}]}), ok({"notes": [NOTE]})
    assert play(block, [foreign, right]) == (["list", "list"], [NOTE])


def test_an_empty_list_is_an_answer() -> None:
    block = read_rows("list", {"box": "B1"}, rows="notes", match={"box": "B1"})
    assert play(block, [ok({"notes": []})]) == (["list"], [])


def landed() -> Any:
    return seen_row("list", {"box": "B1"}, rows="notes", match={"title": "Lamp"})


def test_a_write_is_made_once_and_not_read_back() -> None:
    assert play(write("set", {}, landed=landed()), [ok(NOTE)]) == (["set"], NOTE)


def test_a_write_that_was_not_executed_is_repeated_at_once() -> None:
    assert play(write("set", {}, landed=landed()), [BUSY, BUSY, ok(NOTE)]) == (["set"] * 3, NOTE)


@pytest.mark.parametrize("unknown", [LOST, CUT])
def test_a_lost_receipt_is_looked_into_before_anything_is_repeated(unknown: ToolResult) -> None:
    there, gone = ok({"notes": [NOTE]}), ok({"notes": []})
    assert play(write("set", {}, landed=landed()), [unknown, there]) == (["set", "list"], NOTE)
    found = play(write("set", {}, landed=landed()), [unknown, BUSY, gone, ok(NOTE)])
    assert found == (["set", "list", "list", "set"], NOTE)


def test_a_refused_write_is_given_up() -> None:
    with pytest.raises(ExpertError, match="no use repeating set"):
        play(write("set", {}, landed=landed()), [WRONG])


def test_a_change_is_seen_by_its_values() -> None:
    look = seen_values("get", {"id": "N1"}, identity={"id": "N1"}, values={"title": "Lamp"})
    assert play(look(), [ok(OTHER), ok(NOTE)]) == (["get", "get"], NOTE)
    old = ok({**NOTE, "title": "Old"})
    assert play(look(), [old]) == (["get"], None)
    changed = {**NOTE, "title": "lamp"}
    assert play(write("set", {}, landed=look), [LOST, old, LOST, ok(changed)]) == (
        ["set", "get", "set", "get"],
        changed,
    )


def test_a_list_without_a_key_is_a_list() -> None:
    block = read_rows("list", {}, rows="notes", match={"box": "B1"})
    assert play(block, [ok([NOTE, OTHER])]) == (["list"], [NOTE])


def test_a_row_is_seen_or_seen_to_be_gone_in_the_list_it_belongs_to() -> None:
    place = {"box": "B1"}
    there = seen_in("list", place, rows="notes", match={"title": "Lamp"})
    gone = seen_in("list", place, rows="notes", match={"title": "Lamp"}, gone=True)
    with_it, without = ok({"notes": [NOTE]}), ok({"notes": []})
    assert play(there(), [with_it])[1] == NOTE and play(there(), [without])[1] is None
    assert play(gone(), [with_it])[1] is None and play(gone(), [without])[1] is not None


def test_a_refusal_that_is_foreseen_is_no_failure() -> None:
    def change() -> Generator[ToolCall, ToolResult, Any]:
        return write("update", {"id": "N1"}, landed=seen_row("list", {}, rows="notes", match={}))

    assert play(or_refused(change(), "NOT_FOUND"), [MISSING]) == (["update"], None)
    assert play(or_refused(change(), "NOT_FOUND"), [BUSY, ok(NOTE)]) == (["update", "update"], NOTE)
    with pytest.raises(ExpertError):
        play(or_refused(change(), "NOT_FOUND"), [WRONG])
