"""The journal of interventions: table `interventions` of run.db, every decision with its evidence.

Entries are numbered from 1 and only ever appended. All that the state machine remembers follows from them
(`state`), so that a run which was killed goes on from its journal as it would have. Decisions that send
training back in time (`JUMPS`) say with `applied` whether that has been done.

A checkpoint knows how many entries there were when it was written. A run that goes on from it forgets later
ones, since it will make them again; but not those up to the newest jump, which is why it goes on from there.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlite_utils.db import Database

from robustops.monitor.intervention.actions import Change, Forced
from robustops.monitor.verdict import Evidence, Verdict

TABLE = "interventions"
#: Columns beside the number `id`.
COLUMNS: dict[str, type] = {
    "stage": str,
    "step": int,
    "kind": str,
    "attempt": int,
    "label": str,
    "target": int,
    "until": int,
    "changes": str,
    "reason": str,
    "planner": str,
    "verdict": str,
    "detail": str,
    "applied": int,
    "at": str,
}
#: Decisions after which training goes on from another place, or not at all.
JUMPS = ("rollback", "pause")


@dataclass(frozen=True)
class Entry:
    """One decision.

    kind: rollback (an attempt begins) | accept | revert (of the attempt) | pause | resume (by a person) |
    none (an alarm, and nothing is done about it); step: after which it was made; attempt: from 1, 0: none;
    label: diagnosed type; target: step whose checkpoint training goes back to (0: the stage's beginning,
    None: none); until: step up to which nothing else is decided; changes: keys and values that the attempt
    adds to those in force; detail: further facts in JSON values.
    """

    kind: str
    step: int
    stage: str = "grpo"
    attempt: int = 0
    label: str | None = None
    target: int | None = None
    until: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    planner: str = ""
    verdict: Mapping[str, Any] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    applied: bool = True
    number: int = 0


@dataclass(frozen=True)
class Attempt:
    """What was tried at a diagnosis, and why."""

    label: str | None
    changes: frozenset[Change]
    why: str


@dataclass(frozen=True)
class State:
    """What the entries add up to. accepted: changes that stay, settled: what was in force from which
    step on without the attempt under test, which is trial; tried: every attempt since a person last looked;
    repeated: steps that were done again; quiet: step up to which alarms are passed over.
    """

    accepted: Mapping[str, Any] = field(default_factory=dict)
    settled: Forced = ()
    trial: Entry | None = None
    paused: Entry | None = None
    tried: tuple[Attempt, ...] = ()
    repeated: int = 0
    quiet: int = 0

    @property
    def changes(self) -> dict[str, Any]:
        """All changes in force."""
        return {**self.accepted, **(self.trial.changes if self.trial is not None else {})}

    @property
    def forced(self) -> Forced:
        """All changes that were ever in force in the steps that there are, see `actions.comparable`."""
        begun = [((self.trial.target or 0) + 1, self.changes)] if self.trial is not None else []
        return (*self.settled, *begun)

    def after(self, entry: Entry) -> State:
        """With one more decision."""
        if entry.kind == "rollback":
            changes = frozenset(Change(key, value) for key, value in entry.changes.items())
            attempt = Attempt(entry.label, changes, entry.reason)
            again = self.repeated + entry.step - (entry.target or 0)
            # What is done again from here on has all that was accepted, also where it was accepted later.
            first = (entry.target or 0) + 1
            settled = tuple((min(step, first), changes) for step, changes in self.settled)
            tried = (*self.tried, attempt)
            return dataclasses.replace(self, trial=entry, settled=settled, tried=tried, repeated=again)
        if entry.kind == "accept":
            return dataclasses.replace(
                self, accepted=self.changes, settled=self.forced, trial=None, quiet=entry.until
            )
        if entry.kind == "revert":
            return dataclasses.replace(self, trial=None)
        if entry.kind == "pause":
            return dataclasses.replace(self, trial=None, paused=entry)
        if entry.kind == "resume":
            return dataclasses.replace(self, paused=None, tried=(), repeated=0, quiet=entry.until)
        return dataclasses.replace(self, quiet=entry.until)


class Journal:
    """Reads and writes the table. db: of the run's folder."""

    def __init__(self, db: Database) -> None:
        self.db = db
        table = db.table(TABLE)
        if table.exists() and "kind" not in table.columns_dict:  # of a version that never wrote to it
            table.drop()
        db.table(TABLE).create({"id": int, **COLUMNS}, pk="id", if_not_exists=True)

    def __len__(self) -> int:
        return int(self.db.table(TABLE).count)

    def entries(self) -> list[Entry]:
        """All of them, oldest first."""
        return [_entry(row) for row in self.db.table(TABLE).rows_where(order_by="id")]

    def state(self) -> State:
        """What they add up to."""
        state = State()
        for entry in self.entries():
            state = state.after(entry)
        return state

    def add(self, *entries: Entry) -> None:
        """Append decisions that were made together: all of them or none."""
        with self.db.atomic():
            for entry in entries:
                row = {"id": len(self) + 1, **_row(entry), "at": _now()}
                self.db.table(TABLE).insert(row)

    def newest_jump(self) -> Entry | None:
        """The last decision that sent training somewhere else."""
        jumps = [entry for entry in self.entries() if entry.kind in JUMPS]
        return jumps[-1] if jumps else None

    def mark_applied(self, number: int) -> None:
        """Training is where the decision wanted it."""
        with self.db.atomic():
            self.db.execute(f"UPDATE {TABLE} SET applied = 1 WHERE id = ?", [number])

    def truncate(self, count: int) -> None:
        """Forget all but the first `count` entries."""
        with self.db.atomic():
            self.db.execute(f"DELETE FROM {TABLE} WHERE id > ?", [count])

    def settle(self, count: int, step: int) -> None:
        """Forget what a run makes again that goes on from a checkpoint.

        count: entries that there were when it was written; step: the checkpoint's, 0: there is none.
        """
        jump = self.newest_jump()
        lost = jump is not None and bool(jump.target) and step == 0  # its checkpoints are gone
        self.truncate(0 if lost else max(count, jump.number if jump is not None else 0))


def verdict_of(body: Mapping[str, Any]) -> Verdict:
    """The inverse of `Verdict.to_dict`."""
    values = dict(body)
    values["evidence"] = tuple(map(_evidence, body.get("evidence", ())))
    values["missing"] = tuple(body.get("missing", ()))
    values["p_value"] = _number(body.get("p_value"))
    return Verdict(**values)


def _evidence(body: Mapping[str, Any]) -> Evidence:
    numbers: dict[str, Any] = {name: _number(body[name]) for name in ("value", "low", "high", "score")}
    return Evidence(**{**body, **numbers})


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _entry(row: Mapping[str, Any]) -> Entry:
    values = {name: row[name] for name in COLUMNS if name != "at"}
    for name in ("changes", "verdict", "detail"):
        values[name] = json.loads(values[name])
    values["applied"] = bool(values["applied"])
    return Entry(**values, number=row["id"])


def _row(entry: Entry) -> dict[str, Any]:
    body = {name: getattr(entry, name) for name in COLUMNS if name != "at"}
    for name in ("changes", "verdict", "detail"):
        body[name] = json.dumps(body[name], ensure_ascii=False, allow_nan=False)
    return body


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
