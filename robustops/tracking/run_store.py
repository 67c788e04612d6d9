"""The run's database `run.db`: what happened, step by step and episode by episode (SQLite, sqlite-utils).

Tables: steps, episodes, turns, tool_faults, checks, alerts, interventions, timings. NaN and infinity are
facts about a run: SQLite has no NaN, so they are stored as the texts NaN, Infinity and -Infinity, and
come back as floats. A run that is resumed first removes what came after its checkpoint (`truncate`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlite_utils.db import Database, ForeignKey

from robustops.errors import ConfigError
from robustops.records import Episode
from robustops.tracking.results import EvaluationRow, evaluation_row
from robustops.tracking.rows import (
    CHILDREN,
    INDICES,
    PLACED,
    TABLES,
    CheckNames,
    Row,
    check_rows,
    decode,
    encode,
    episode_row,
    fault_rows,
    now,
    to_json,
    turn_rows,
)


class RunStore:
    """Writer and reader of one `run.db`. A second process may read while this one writes (WAL).

    path: the file; it and its tables are made where absent. Usable as a context manager.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            connection = sqlite3.connect(self.path, timeout=30, check_same_thread=False)
            self.db = Database(connection)
            self.db.enable_wal()
            self.db.execute("PRAGMA foreign_keys = ON")
            self.db.execute("PRAGMA synchronous = NORMAL")
            self._create()
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"{self.path} is no run database: {error}; move it away") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.db.close()

    # writing ------------------------------------------------------------------------------------
    def add_step(self, stage: str, step: int, metrics: Mapping[str, Any], seconds: float) -> None:
        """One optimiser step with its metrics (numbers, text, lists); seconds: wall time it took.

        Raises:
            ConfigError: the step is already there; `truncate` comes first when a run is resumed.
        """
        row = {"stage": stage, "step": step, "seconds": encode(seconds), "metrics": to_json(metrics)}
        try:
            self._insert("steps", [{**row, "at": now()}])
        except sqlite3.IntegrityError as error:
            raise ConfigError(
                f"{self.path}: step {step} of stage '{stage}' is already stored; call truncate first"
            ) from error

    def add_episodes(
        self,
        stage: str,
        step: int,
        episodes: Iterable[Episode],
        *,
        policy: str | None = None,
        condition: str | None = None,
        check_names: CheckNames | None = None,
    ) -> list[int]:
        """Episodes with their turns, faults and checks, all or none; returns the episodes' ids.

        policy: who acted, default the stage's name; condition: default each episode's own; check_names:
        case id -> names of its state checks, default their positions.
        """
        with self.db.atomic():
            first = (self.db.execute("SELECT MAX(id) FROM episodes").fetchone()[0] or 0) + 1
            rows: dict[str, list[Row]] = {name: [] for name in ("episodes", *CHILDREN)}
            for number, episode in enumerate(episodes, first):
                row = evaluation_row(policy or stage, condition or episode.condition, episode)
                rows["episodes"].append(episode_row(number, stage, step, episode, row))
                rows["turns"] += turn_rows(number, episode)
                rows["tool_faults"] += fault_rows(number, episode)
                rows["checks"] += check_rows(number, episode, check_names)
            for name, values in rows.items():
                self._insert(name, values)
        return [row["id"] for row in rows["episodes"]]

    def add_alert(
        self, stage: str, step: int, *, kind: str, severity: float, message: str, detail: Any = None
    ) -> None:
        """One alert of the run monitor."""
        row = {"stage": stage, "step": step, "kind": kind, "severity": encode(severity)}
        self._insert("alerts", [{**row, "message": message, "detail": to_json(detail), "at": now()}])

    def add_timing(self, stage: str, name: str, seconds: float, *, step: int = 0) -> None:
        """Wall time of a phase, in seconds."""
        row = {"stage": stage, "step": step, "name": name, "seconds": encode(seconds), "at": now()}
        self._insert("timings", [row])

    def truncate(self, stage: str, step: int) -> dict[str, int]:
        """Remove what a stage stored after `step` (-1: all of it); returns how many rows a table lost.

        Turns, tool faults and checks go with their episodes.
        """
        lost = {}
        with self.db.atomic():
            for table in PLACED:
                where = f'DELETE FROM "{table}" WHERE stage = ? AND step > ?'
                lost[table] = self.db.execute(where, [stage, step]).rowcount
        return lost

    # reading ------------------------------------------------------------------------------------
    def steps(self, stage: str | None = None) -> list[Row]:
        """Steps in order, each with `stage`, `step`, `seconds`, `at` and `metrics` (a dict)."""
        where = {} if stage is None else {"stage": stage}
        rows = self._rows("steps", where, "id")
        return [{**row, "metrics": decode(json.loads(row["metrics"]))} for row in rows]

    def series(self, stage: str, metric: str) -> list[tuple[int, Any]]:
        """(step, value) of one metric, where it was stored."""
        steps = self.steps(stage)
        return [(row["step"], row["metrics"][metric]) for row in steps if metric in row["metrics"]]

    def episodes(self, **equals: Any) -> list[Row]:
        """Episodes whose columns equal the given values, in order of storage."""
        return self._rows("episodes", equals, "id")

    def episode(self, episode_id: int) -> Row:
        """One episode with its `turns`, `tool_faults` and `checks`; ConfigError where there is none."""
        found = self._rows("episodes", {"id": episode_id}, "id")
        if not found:
            raise ConfigError(f"{self.path} has no episode {episode_id}")
        episode = found[0]
        for name in CHILDREN:
            episode[name] = self._rows(name, {"episode_id": episode_id}, "id")
        for turn in episode["turns"]:
            turn["arguments"] = None if turn["arguments"] is None else json.loads(turn["arguments"])
        return episode

    def evaluation_rows(self, stage: str = "evaluation") -> list[EvaluationRow]:
        """The stage's episodes in the form that `results` works on."""
        names = EvaluationRow.__dataclass_fields__
        rows = self._rows("episodes", {"stage": stage}, "id")
        flags = ("success", "hit")
        return [EvaluationRow.from_dict({n: bool(r[n]) if n in flags else r[n] for n in names}) for r in rows]

    def alerts(self, **equals: Any) -> list[Row]:
        rows = self._rows("alerts", equals, "id")
        return [{**row, "detail": decode(json.loads(row["detail"]))} for row in rows]

    def interventions(self, **equals: Any) -> list[Row]:
        """Decisions of `monitor.intervention`, as its journal has them."""
        rows = self._rows("interventions", equals, "id")
        parts = ("changes", "verdict", "detail")
        return [{**row, **{name: json.loads(row[name]) for name in parts}} for row in rows]

    def timings(self) -> dict[str, float]:
        """Seconds by `stage/name`, summed over steps."""
        total: dict[str, float] = {}
        for row in self._rows("timings", {}, "id"):
            key = f"{row['stage']}/{row['name']}"
            total[key] = total.get(key, 0.0) + row["seconds"]
        return total

    # ---------------------------------------------------------------------------------------------
    def _create(self) -> None:
        with self.db.atomic():
            for name, columns in TABLES.items():
                keys = [ForeignKey(name, "episode_id", "episodes", "id", on_delete="CASCADE")]
                self.db.table(name).create(
                    {"id": int, **columns},
                    pk="id",
                    foreign_keys=keys if name in CHILDREN else [],
                    if_not_exists=True,
                )
            self.db.table("steps").create_index(["stage", "step"], unique=True, if_not_exists=True)
            for name, indices in INDICES.items():
                for index in indices:
                    self.db.table(name).create_index(index, if_not_exists=True)

    def _insert(self, table: str, rows: list[Row]) -> None:
        if rows:
            self.db.table(table).insert_all(rows, batch_size=500)

    def _rows(self, table: str, equals: Mapping[str, Any], order: str) -> list[Row]:
        unknown = sorted(set(equals) - {"id", *TABLES[table]})
        if unknown:
            raise ConfigError(f"table {table} has no column {unknown[0]}; it has {', '.join(TABLES[table])}")
        where = " AND ".join(f'"{name}" IS ?' for name in equals) or None
        rows = self.db.table(table).rows_where(where, list(equals.values()), order_by=order)
        numeric = [name for name, kind in TABLES[table].items() if kind is float]
        return [{**row, **{name: decode(row[name]) for name in numeric}} for row in rows]
