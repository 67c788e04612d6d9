from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

import pytest

from robustops.errors import ConfigError
from robustops.faults.mechanisms import Context, eligible, faulty_reply, inject, list_key
from robustops.records import DatabaseSpec, ToolCall, ToolResult
from robustops.worlds.domain import get_domain
from tests.toy_domain import TOY, ToyTools


class Bench:
    """Native replies of a toy world, and contexts made of them."""

    def __init__(self) -> None:
        self.tools = ToyTools(TOY.open(DatabaseSpec(0, "small")))
        self.reads: list[ToolCall] = []

    def read(self, call: ToolCall) -> ToolResult:
        self.reads.append(call)
        return self.tools.call(call)

    def rows(self, table: str, columns: tuple[str, ...]) -> list[tuple[str, ...]]:
        return [tuple(row[column] for column in columns) for row in self.tools.database.find(table)]

    def context(self, name: str, arguments: dict, earlier: tuple = (), seed: int = 0) -> Context:
        call = ToolCall(name, arguments)
        before = self.tools.database.changes
        result = self.tools.call(call)
        changed = self.tools.database.changes != before
        spec = ToyTools.specs()[name]
        return Context(call, spec, result, changed, earlier, self.read, self.rows, Random(seed))

    def exchange(self, name: str, arguments: dict) -> tuple[ToolCall, ToolResult]:
        call = ToolCall(name, arguments)
        return call, self.tools.call(call)


@pytest.fixture
def bench():
    return Bench()


def test_temporary_refusal_needs_a_call_that_would_succeed(bench):
    reply = inject("temporary_refusal", bench.context("get_note", {"note_id": "N1"}))
    assert reply.is_error and reply.data["error"]["code"] == "TEMPORARILY_UNAVAILABLE"
    assert not eligible("temporary_refusal", bench.context("get_note", {"note_id": "N999"}))
    assert not eligible("temporary_refusal", bench.context("create_note", {"box_id": "B1"}))


@pytest.mark.parametrize("seed", range(20))
def test_missing_rows_drops_some_keeps_order_and_count_and_says_so(bench, seed):
    context = bench.context("list_notes", {}, seed=seed)
    native, reply = context.result.data, inject("missing_rows", context).data
    rows = reply["notes"]
    assert 0 <= len(rows) < len(native["notes"]) == 12
    assert rows == [row for row in native["notes"] if row in rows]
    assert reply == {**native, "notes": rows, "incomplete": True} and reply["total_count"] == 12


def test_missing_rows_needs_a_list_of_two(bench):
    assert not eligible("missing_rows", bench.context("list_boxes", {"limit": 1}))
    assert eligible("missing_rows", bench.context("list_boxes", {"limit": 2}))
    assert not eligible("missing_rows", bench.context("get_note", {"note_id": "N1"}))
    assert not eligible("missing_rows", bench.context("create_note", {"box_id": "B1", "title": "t"}))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("call", [("list_notes", {}), ("get_note", {"note_id": "N1"})])
def test_truncated_body_is_a_proper_prefix_and_no_json(bench, seed, call):
    context = bench.context(*call, seed=seed)
    reply, whole = inject("truncated_body", context).text, context.result.text
    assert whole.startswith(reply) and ToolResult(reply).data is None
    assert 0.3 * len(whole) - 1 <= len(reply) <= 0.7 * len(whole) + 1


def test_truncated_body_spares_writes_and_short_replies(bench):
    assert not eligible("truncated_body", bench.context("create_note", {"box_id": "B1", "title": "t"}))
    short = bench.context("list_boxes", {"name": "x"})
    assert short.result.text == '{"boxes":[],"total_count":0}'  # 28 characters: long enough
    assert eligible("truncated_body", short)
    assert not eligible("truncated_body", Context(**{**vars(short), "result": ToolResult('{"n":1}')}))


def test_other_request_is_an_earlier_reply_of_another_call(bench):
    boxes = bench.exchange("list_boxes", {})
    context = bench.context("list_notes", {"box_id": "B1"}, (boxes,))
    assert inject("other_request", context) == ToolResult(boxes[1].text)
    assert not eligible("other_request", bench.context("list_notes", {"box_id": "B1"}))
    same_call = bench.exchange("list_notes", {"box_id": "B1"})
    assert not eligible("other_request", bench.context("list_notes", {"box_id": "B1"}, (same_call,)))
    failed = bench.exchange("get_note", {"note_id": "N999"})
    assert not eligible("other_request", bench.context("list_notes", {"box_id": "B1"}, (failed,)))


def test_other_request_leaves_evidence(bench):
    """A reply that might just as well be the answer is never swapped in."""
    everything = bench.exchange("list_notes", {})
    other_box = bench.exchange("list_notes", {"box_id": "B2"})
    nothing = bench.exchange("list_notes", {"box_id": "B1", "status": "done", "limit": 0})
    stale = bench.exchange("update_note", {"note_id": "N1", "title": "old"})
    bench.exchange("update_note", {"note_id": "N1", "title": "new"})
    asked = ("list_notes", {"box_id": "B1"})
    assert not eligible("other_request", bench.context(*asked, (everything, nothing)))
    assert inject("other_request", bench.context(*asked, (everything, other_box))).text == other_box[1].text
    assert not eligible("other_request", bench.context("get_note", {"note_id": "N1"}, (stale,)))
    assert eligible("other_request", bench.context("get_note", {"note_id": "N2"}, (stale,)))


def test_other_request_never_hides_the_reply_of_a_write(bench):
    boxes = bench.exchange("list_boxes", {})
    assert not eligible(
        "other_request", bench.context("create_note", {"box_id": "B1", "title": "t"}, (boxes,))
    )


@pytest.mark.parametrize("note_id", ["N1", "N7", "N12"])
def test_other_object_is_the_native_reply_about_a_sibling(bench, note_id):
    reply = inject("other_object", bench.context("get_note", {"note_id": note_id})).data
    assert reply["id"] != note_id
    assert reply == bench.tools.call(ToolCall("get_note", {"note_id": reply["id"]})).data


def test_other_object_needs_an_identity_and_a_sibling(bench):
    assert not eligible("other_object", bench.context("list_notes", {"box_id": "B1"}))
    bench.tools.database.delete("box", {"id": "B2"})
    bench.tools.database.delete("box", {"id": "B3"})
    assert eligible("other_object", bench.context("get_box", {"box_id": "B1"}))
    bench.tools.database.delete("box", {"id": "B4"})
    assert not eligible("other_object", bench.context("get_box", {"box_id": "B1"}))


def test_other_object_varies_together_what_identifies_a_row():
    domain = get_domain("itsm")
    tools = domain.toolset(domain.open(DatabaseSpec(0, "tiny")))
    people = tools.database.query("SELECT first_name, last_name FROM users ORDER BY rowid")
    asked = people[3]
    call, spec = ToolCall("get_user_using_name", asked), domain.toolset.specs()["get_user_using_name"]

    def rows(table: str, columns: Sequence[str]) -> list[tuple[str, ...]]:
        assert (table, tuple(columns)) == ("users", ("first_name", "last_name"))
        return [tuple(person[column] for column in columns) for person in people]

    context = Context(call, spec, tools.call(call), False, (), tools.call, rows, Random(0))
    seen = inject("other_object", context).data
    found = {name: seen[name] for name in asked}
    assert found in people and found != asked


def test_lost_receipt_needs_a_write_that_succeeded_and_changed_something(bench):
    made = bench.context("create_note", {"box_id": "B1", "title": "t"})
    reply = inject("lost_receipt", made)
    assert reply.is_error and reply.data["error"]["code"] == "NO_RECEIPT"
    assert not eligible("lost_receipt", bench.context("create_note", {"box_id": "B99", "title": "t"}))
    assert not eligible("lost_receipt", bench.context("get_note", {"note_id": "N1"}))
    assert not eligible("lost_receipt", Context(**{**vars(made), "changed": False}))


def test_filter_dropped_is_the_reply_without_filters(bench):
    asked = {"box_id": "B1", "status": "open", "limit": 30}
    context = bench.context("list_notes", asked)
    reply = inject("filter_dropped", context)
    assert reply == bench.tools.call(ToolCall("list_notes", {"limit": 30})), "paging is no filter"
    assert len(reply.data["notes"]) == 12 > len(context.result.data["notes"])


def test_filter_dropped_needs_a_filter_that_matters(bench):
    assert not eligible("filter_dropped", bench.context("list_notes", {}))
    assert not eligible("filter_dropped", bench.context("list_notes", {"limit": 5}))
    assert not eligible("filter_dropped", bench.context("get_note", {"note_id": "N1"}))
    for note in bench.tools.database.find("note"):
        bench.tools.database.update("note", {"id": note["id"]}, {"status": "open"})
    assert not eligible("filter_dropped", bench.context("list_notes", {"status": "open"}))


def test_filter_dropped_still_holds_the_right_rows(bench):
    """With a page too small for them the filter cannot be made up for, so it is not dropped."""
    last = bench.context("list_notes", {"box_id": "B1", "limit": 3})
    assert not eligible("filter_dropped", last)


def test_mechanisms_only_read(bench):
    before = bench.tools.database.dump()
    for name, arguments in [("list_notes", {"box_id": "B1"}), ("get_note", {"note_id": "N1"})]:
        for subtype in ("filter_dropped", "other_object", "missing_rows"):
            faulty_reply(subtype, bench.context(name, arguments))
    assert bench.reads and {call.name for call in bench.reads} <= {"list_notes", "get_note"}
    assert bench.tools.database.dump() == before


def test_errors_are_spelt_out(bench):
    context = bench.context("get_note", {"note_id": "N1"})
    with pytest.raises(ConfigError, match="unknown fault subtype 'nope'; choose one of: filter_dropped"):
        faulty_reply("nope", context)
    with pytest.raises(ValueError, match="not eligible for lost_receipt"):
        inject("lost_receipt", context)


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"total": 1, "rows": [{"a": 1}]}, "rows"),
        ({"ids": [1, 2], "rows": [{"a": 1}]}, "rows"),
        ({"rows": []}, "rows"),
        ({"a": 1}, None),
        ([{"a": 1}], None),
    ],
)
def test_list_key(data, key):
    assert list_key(json.loads(json.dumps(data))) == key
