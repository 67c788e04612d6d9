from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.errors import WorldError
from robustops.faults.plan import SUBTYPES, FaultPlan
from robustops.faults.wrapper import FaultyWorld
from robustops.records import ToolCall, ToolResult
from robustops.worlds.environment import LocalWorld, Snapshot
from tests.faults.support import Recorder
from tests.toy_domain import TOY, toy_task

TASK = toy_task("file_note", 3, "plus5")
CALLS = {
    "boxes": ToolCall("list_boxes", {}),
    "notes": ToolCall("list_notes", {"box_id": "B1"}),
    "others": ToolCall("list_notes", {"box_id": "B2", "status": "open"}),
    "note": ToolCall("get_note", {"note_id": "N1"}),
    "box": ToolCall("get_box", {"box_id": "B1"}),
    "create": ToolCall("create_note", {"box_id": "B1", "title": "new"}),
    "update": ToolCall("update_note", {"note_id": "N1", "status": "done"}),
    "missing": ToolCall("get_note", {"note_id": "N999"}),
    "wrong": ToolCall("update_note", {"note_id": "N1", "status": "never"}),
    "unknown": ToolCall("delete_note", {"note_id": "N1"}),
}
#: A call that is eligible, after `BEFORE`, for the mechanism.
VICTIM = {
    "temporary_refusal": "create",
    "missing_rows": "notes",
    "truncated_body": "notes",
    "other_request": "notes",
    "other_object": "note",
    "lost_receipt": "create",
    "filter_dropped": "notes",
}
scripts = st.lists(st.sampled_from(sorted(CALLS)), min_size=1, max_size=8)


def local() -> LocalWorld:
    world = LocalWorld(TOY)
    world.reset(TASK)
    return world


def faulty(plan: FaultPlan | None = None, *, observe: bool = False) -> Recorder:
    wrapper = Recorder(LocalWorld(TOY), plan, observe=observe)
    wrapper.reset(TASK)
    return wrapper


def dump(world: LocalWorld | FaultyWorld) -> object:
    inner = world.world if isinstance(world, FaultyWorld) else world
    database = inner.tools.database
    return database.dump(), database.seconds, dict(database.counters)


# replies that are not struck ----------------------------------------------------------------------
@settings(max_examples=40, deadline=None)
@given(scripts, st.booleans())
def test_without_a_plan_replies_and_state_are_the_native_ones(script, observing):
    plain, wrapper = local(), faulty(observe=observing)
    for name in script:
        assert wrapper.step(CALLS[name]) == plain.step(CALLS[name])
        assert wrapper.last_event is None
    assert dump(wrapper) == dump(plain)


@settings(max_examples=80, deadline=None)
@given(scripts, st.sampled_from(SUBTYPES), st.integers(0, 3), st.integers(1, 3))
def test_a_plan_strikes_one_call_within_its_cap_and_leaves_the_rest(script, subtype, ordinal, cap):
    """Property over arbitrary call sequences, against a native world and an observing wrapper."""
    plan = FaultPlan(subtype, ordinal, cap)
    plain, watch, wrapper = local(), faulty(observe=True), faulty(plan)
    struck_key = None
    for turn, name in enumerate(script):
        call = CALLS[name]
        if wrapper.hits == 0:
            assert dump(wrapper) == dump(plain)
        before, moved = wrapper.snapshot(), wrapper.changes
        reply = wrapper.step(call)
        event = wrapper.last_event
        if wrapper.hits == 0:
            assert reply == plain.step(call) == watch.step(call)
            continue
        if struck_key is None:
            native = plain.step(call)
            watch.step(call)
            assert reply != native and not native.is_error
            seen = watch.opportunities[-1]
            assert (seen.turn, seen.call) == (turn, call)
            assert seen.plan(subtype, cap) == plan, "observing and injecting count alike"
            struck_key = call.key()
        if event is None:
            assert reply == native_reply(before, call)
        else:
            assert call.key() == struck_key and event.repetition == wrapper.hits
            if subtype == "temporary_refusal":
                assert wrapper.snapshot().database == before.database and wrapper.changes == moved
    assert wrapper.hits <= plan.repetitions
    assert {e.subtype for e in wrapper.events} <= {subtype}


def native_reply(before: Snapshot, call: ToolCall) -> ToolResult:
    """What an unwrapped world in that state replies."""
    world = local()
    world.restore(before)
    return world.step(call)


# promises of the mechanisms on the database -------------------------------------------------------
def run_until_struck(subtype: str, cap: int = 1) -> tuple[Recorder, ToolCall, object, object]:
    """Wrapper after the first injection, the call, the state before it and the faulty reply."""
    wrapper = faulty(FaultPlan(subtype, 0, cap))
    wrapper.step(CALLS["missing"])
    victim = CALLS[VICTIM[subtype]]
    if subtype == "other_request":
        wrapper.step(CALLS["boxes"])
    before = dump(wrapper)
    reply = wrapper.step(victim)
    assert wrapper.last_event is not None and wrapper.last_event.subtype == subtype
    return wrapper, victim, before, reply


@pytest.mark.parametrize("name", ["create", "update", "notes"])
def test_known_not_executed_leaves_the_image_byte_identical(name):
    wrapper = faulty(FaultPlan("temporary_refusal", 0, 2))
    image, moved = wrapper.snapshot().database, wrapper.changes
    for _ in range(2):
        reply = wrapper.step(CALLS[name])
        assert reply.data["error"]["code"] == "TEMPORARILY_UNAVAILABLE" and reply.is_error
        assert wrapper.snapshot().database == image, "not one byte, tick or counter differs"
        assert wrapper.changes == moved
    assert wrapper.step(CALLS[name]) == local().step(CALLS[name])
    assert wrapper.hits == 2


def test_unknown_commit_is_there_once_and_a_repeat_is_executed():
    wrapper, call, _, reply = run_until_struck("lost_receipt", cap=3)
    new = "SELECT COUNT(*) FROM note WHERE title = 'new'"
    database = wrapper.world.tools.database
    assert reply.data["error"]["code"] == "NO_RECEIPT" and database.scalar(new) == 1
    assert wrapper.last_event.cap == 1
    repeat = wrapper.step(call)
    assert not repeat.is_error and database.scalar(new) == 2 and wrapper.hits == 1


@pytest.mark.parametrize("subtype", [s for s in SUBTYPES if s not in ("temporary_refusal", "lost_receipt")])
def test_faulty_reads_change_nothing(subtype):
    wrapper, _, before, _ = run_until_struck(subtype)
    assert dump(wrapper) == before


@pytest.mark.parametrize("subtype", [s for s in SUBTYPES if s != "lost_receipt"])
@pytest.mark.parametrize("cap", [1, 2, 3])
def test_the_cap_counts_repeats_of_the_call_even_later(subtype, cap):
    wrapper, call, _, _ = run_until_struck(subtype, cap)
    other = CALLS["others"]
    struck = 1
    for _ in range(5):
        assert wrapper.step(other) == wrapper.world.step(other) and wrapper.last_event is None
        wrapper.step(call)
        struck += wrapper.last_event is not None
    assert struck == wrapper.hits == cap
    assert [(e.repetition, e.cap) for e in wrapper.events] == [(i, cap) for i in range(1, cap + 1)]


# determinism and moments --------------------------------------------------------------------------
@pytest.mark.parametrize("subtype", SUBTYPES)
def test_injection_is_deterministic_and_differs_by_repetition(subtype):
    first, second = run_until_struck(subtype, 3), run_until_struck(subtype, 3)
    assert first[3] == second[3]
    again = [wrapper.step(call) for wrapper, call, _, _ in (first, second)]
    assert again[0] == again[1]


@pytest.mark.parametrize("subtype", SUBTYPES)
def test_restore_in_mid_fault_is_exact(subtype):
    wrapper, call, _, _ = run_until_struck(subtype, cap=3)
    moment = pickle.loads(pickle.dumps(wrapper.snapshot()))
    rest = [call, CALLS["box"], call, CALLS["update"], call]
    expected = [(wrapper.step(c), wrapper.last_event) for c in rest]
    end = dump(wrapper)
    for continuation in (wrapper, FaultyWorld(LocalWorld(TOY))):
        continuation.restore(moment)
        assert continuation.last_event is None
        assert [(continuation.step(c), continuation.last_event) for c in rest] == expected
        assert dump(continuation) == end


def test_restore_before_the_fault_keeps_the_plan_that_was_given():
    watch = faulty(observe=True)
    watch.step(CALLS["boxes"])
    moment = watch.snapshot()
    wrapper = FaultyWorld(LocalWorld(TOY), FaultPlan("missing_rows", 1))
    wrapper.restore(moment)
    wrapper.step(CALLS["notes"])
    assert wrapper.last_event is not None and wrapper.last_event.turn == 1


def test_reset_forgets_a_plan_that_came_with_a_snapshot():
    struck, call, _, _ = run_until_struck("missing_rows", cap=3)
    wrapper = faulty()
    wrapper.restore(struck.snapshot())
    wrapper.reset(TASK)
    assert wrapper.plan is None and wrapper.hits == 0
    assert wrapper.step(call) == local().step(call)


def test_snapshots_of_a_bare_world_are_accepted():
    wrapper = faulty(FaultPlan("missing_rows"))
    wrapper.restore(local().snapshot())
    wrapper.step(CALLS["notes"])
    assert wrapper.hits == 1


# observing ----------------------------------------------------------------------------------------
def test_observing_counts_by_mechanism_and_keeps_the_moment_before_the_call():
    wrapper = faulty(observe=True)
    states = []
    for name in ("boxes", "missing", "notes", "create", "note"):
        states.append(dump(wrapper))
        wrapper.step(CALLS[name])
    seen = {o.turn: o for o in wrapper.opportunities}
    assert set(seen) == {0, 2, 3, 4}, "a refused call is no opportunity"
    assert seen[0].subtypes == ("temporary_refusal", "missing_rows", "truncated_body")
    assert seen[3].subtypes == ("temporary_refusal", "lost_receipt") and seen[3].tool == "create_note"
    assert dict(zip(seen[3].subtypes, seen[3].ordinals, strict=True)) == {
        "temporary_refusal": 2,
        "lost_receipt": 0,
    }
    assert "other_object" in seen[4].subtypes and "filter_dropped" in seen[2].subtypes
    for turn, opportunity in seen.items():
        wrapper.restore(opportunity.snapshot)
        assert dump(wrapper) == states[turn]
    assert seen[0].snapshot.database is seen[2].snapshot.database, "reads share one image"


def test_only_the_named_mechanisms_are_observed():
    wrapper = FaultyWorld(LocalWorld(TOY), observe=True, subtypes=("lost_receipt",))
    wrapper.reset(TASK)
    for name in ("boxes", "create"):
        wrapper.step(CALLS[name])
    assert [o.subtypes for o in wrapper.opportunities] == [("lost_receipt",)]


def test_mechanisms_cannot_write_through_the_wrapper():
    with pytest.raises(WorldError, match="may only read"):
        faulty()._read(CALLS["create"])


class RemoteWorld:
    """A world that shows no more than the contract, as one behind a network does."""

    def __init__(self) -> None:
        self._world = LocalWorld(TOY)
        for name in ("reset", "step", "restore", "evaluate", "specs", "close"):
            setattr(self, name, getattr(self._world, name))

    def snapshot(self) -> Snapshot:
        return self._world.snapshot()


def test_worlds_that_show_only_the_contract_can_fail_too():
    wrapper = FaultyWorld(RemoteWorld(), observe=True)
    wrapper.reset(TASK)
    for name in ("notes", "note", "create", "wrong"):
        wrapper.step(CALLS[name])
    by_turn = {o.turn: o.subtypes for o in wrapper.opportunities}
    assert "other_object" in by_turn[1], "siblings are taken from replies"
    assert by_turn[2] == ("temporary_refusal", "lost_receipt") and 3 not in by_turn
    refusing = FaultyWorld(RemoteWorld(), FaultPlan("temporary_refusal"))
    refusing.reset(TASK)
    image, moved = refusing.snapshot().database, refusing.changes
    assert refusing.step(CALLS["create"]).is_error
    assert refusing.snapshot().database == image and refusing.changes == moved
