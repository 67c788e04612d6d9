from __future__ import annotations

import math
import sqlite3

import pytest
from sqlite_utils.db import Database

from robustops.monitor.intervention.actions import Change
from robustops.monitor.intervention.journal import TABLE, Attempt, Entry, Journal, State, verdict_of
from robustops.monitor.verdict import Evidence, Verdict
from tests.monitor.intervention.cases import anomalous, journal

RATE = {"grpo.learning_rate": 1e-7}


def rollback(step, target, changes, **facts):
    return Entry("rollback", step, target=target, changes=changes, attempt=1, label="kl_explosion", **facts)


def test_entries_come_back_and_are_numbered():
    book = journal()
    first = rollback(8, 4, RATE, verdict=anomalous().to_dict(), detail={"onset": 6}, applied=False)
    book.add(first, Entry("accept", 12, until=18))
    one, two = book.entries()
    assert (one.number, two.number, len(book)) == (1, 2, 2)
    assert (one.changes, one.detail, one.applied, one.target) == (RATE, {"onset": 6}, False, 4)
    assert two.applied and two.target is None and two.until == 18
    book.mark_applied(1)
    assert book.entries()[0].applied and book.newest_jump().number == 1


def test_a_verdict_survives_the_journal():
    whole = Verdict(
        "anomalous", 5, "optimisation", "kl_explosion", {"kl_explosion": 0.9}, 0.7,
        evidence=(Evidence("kl", "kl_ref_k3", 5, 2.0, -math.inf, 1.0, math.inf, "high"),),
        missing=("entropy",),
    )  # fmt: skip
    book = journal()
    book.add(Entry("none", 5, verdict=whole.to_dict()))
    back = verdict_of(book.entries()[0].verdict)
    assert math.isnan(back.p_value)
    assert back.to_dict() == whole.to_dict() and back.evidence == whole.evidence


def test_the_state_is_what_the_entries_add_up_to():
    state = State()
    state = state.after(rollback(8, 4, RATE, until=12))
    assert state.trial is not None and state.changes == RATE and state.repeated == 4
    assert state.tried == (Attempt("kl_explosion", frozenset({Change("grpo.learning_rate", 1e-7)}), ""),)
    reverted = state.after(Entry("revert", 12))
    assert reverted.trial is None and reverted.changes == {} and len(reverted.tried) == 1
    second = reverted.after(rollback(12, 4, {"grpo.kl": 0.0}))
    assert second.changes == {"grpo.kl": 0.0} and second.repeated == 12 and len(second.tried) == 2
    kept = second.after(Entry("accept", 12, until=18))
    assert (kept.accepted, kept.trial, kept.quiet) == ({"grpo.kl": 0.0}, None, 18)
    further = kept.after(rollback(30, 26, RATE))
    assert further.changes == {"grpo.kl": 0.0, **RATE}
    paused = further.after(Entry("pause", 33))
    assert paused.paused is not None and paused.changes == {"grpo.kl": 0.0}
    resumed = paused.after(Entry("resume", 33, until=39))
    assert (resumed.paused, resumed.tried, resumed.repeated, resumed.quiet) == (None, (), 0, 39)


@pytest.mark.parametrize(
    ("kinds", "count", "step", "left"),
    [
        (["rollback", "accept"], 1, 10, 1),  # the trial is judged again
        (["rollback", "accept"], 2, 14, 2),  # the checkpoint came after that
        (["rollback", "accept"], 0, 4, 1),  # the checkpoint gone back to knows nothing of it
        (["none", "rollback", "revert", "rollback"], 0, 4, 4),
        (["none", "rollback", "revert", "rollback", "accept", "none"], 0, 4, 4),
        (["none"], 0, 0, 0),
        (["rollback", "accept"], 0, 0, 0),  # all checkpoints are gone: the stage begins anew
        (["pause"], 0, 6, 1),
    ],
)
def test_a_start_forgets_what_it_will_decide_again(kinds, count, step, left):
    book = journal()
    for kind in kinds:
        book.add(Entry(kind, 8, target=4 if kind == "rollback" else None))
    book.settle(count, step)
    assert len(book) == left
    book.settle(count, step)
    assert len(book) == left, "settling twice changes nothing"


def test_going_back_to_the_beginning_needs_no_checkpoint():
    book = journal()
    book.add(Entry("rollback", 3, target=0, changes=RATE))
    book.settle(0, 0)
    assert book.state().changes == RATE


def test_a_table_of_an_earlier_version_is_replaced():
    db = Database(sqlite3.connect(":memory:"))
    db.table(TABLE).create({"id": int, "stage": str, "step": int, "action": str}, pk="id")
    book = Journal(db)
    book.add(Entry("none", 1))
    assert len(Journal(db)) == 1
