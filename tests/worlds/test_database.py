"""The world database: atomic writes, the logical clock, exact snapshots, in memory and in a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.errors import WorldError
from robustops.worlds.database import CLOCK_START, WorldDatabase

SCHEMA = "CREATE TABLE thing (id TEXT PRIMARY KEY, size INTEGER, note TEXT);"


@pytest.fixture(params=["memory", "file"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorldDatabase]:
    made = WorldDatabase(tmp_path / "world.db" if request.param == "file" else None)
    made.script(SCHEMA)
    made.insert_many("thing", [{"id": "T1", "size": 1, "note": None}, {"id": "T2", "size": 2, "note": "ä"}])
    yield made
    made.close()


def state(database: WorldDatabase) -> tuple[Any, ...]:
    return database.dump(), database.seconds, dict(database.counters), database.now()


def test_rows_are_read_by_value_and_null(database: WorldDatabase) -> None:
    assert database.find("thing", note=None) == [{"id": "T1", "size": 1, "note": None}]
    assert database.find("thing", id="T2", size=2)[0]["note"] == "ä"
    assert [row["id"] for row in database.find("thing")] == ["T1", "T2"]
    assert database.one("SELECT id FROM thing WHERE size > 5") is None
    assert database.scalar("SELECT max(size) FROM thing") == 2
    assert database.scalar("SELECT size FROM thing WHERE size > 5") is None
    assert database.query("SELECT id FROM thing WHERE size > ?", (1,)) == [{"id": "T2"}]
    assert database.tables() == ["thing"]


def test_writes_say_how_many_rows_they_touched(database: WorldDatabase) -> None:
    assert database.update("thing", {"note": None}, {"note": "x", "size": 7}) == 1
    assert database.find("thing", id="T1") == [{"id": "T1", "size": 7, "note": "x"}]
    assert database.update("thing", {"id": "T9"}, {"note": "x"}) == 0
    assert database.delete("thing", {"id": "T1"}) == 1
    assert database.delete("thing", {"id": "T1"}) == 0
    database.insert_many("thing", [])
    assert len(database.find("thing")) == 1


@pytest.mark.parametrize("name", ["thing; DROP TABLE thing", 'a"b', "", "1x", "a b"])
def test_names_that_are_no_identifiers_are_refused(database: WorldDatabase, name: str) -> None:
    for attempt in (
        lambda: database.find(name),
        lambda: database.insert(name, {"id": 1}),
        lambda: database.insert("thing", {name: 1}),
        lambda: database.update("thing", {"id": 1}, {name: 1}),
        lambda: database.update("thing", {name: 1}, {"id": 1}),
        lambda: database.delete("thing", {name: 1}),
        lambda: database.next_number("thing", name, "T"),
    ):
        with pytest.raises(WorldError, match="not a table or column name"):
            attempt()
    assert len(database.find("thing")) == 2


def test_the_clock_moves_one_second_a_write_and_not_by_reading(database: WorldDatabase) -> None:
    assert database.now() == CLOCK_START == "2026-01-05 09:00:00"
    database.find("thing")
    assert database.seconds == 0
    for _ in range(61):
        with database.atomic(), database.atomic():
            database.update("thing", {"id": "T1"}, {"note": database.now()})
    assert database.seconds == 61
    assert database.find("thing", id="T1")[0]["note"] == "2026-01-05 09:01:01"


def test_the_clock_can_start_elsewhere_and_be_frozen() -> None:
    frozen = WorldDatabase(clock_start="2024-12-31 23:59:59", clock_step=0)
    leaping = WorldDatabase(clock_start="2024-12-31 23:59:59", clock_step=1)
    for database in (frozen, leaping):
        with database.atomic():
            pass
    assert (frozen.now(), leaping.now()) == ("2024-12-31 23:59:59", "2025-01-01 00:00:00")


def test_a_failed_block_leaves_rows_clock_counters_and_changes(database: WorldDatabase) -> None:
    database.count("calls")
    before, changes = state(database), database.changes
    with pytest.raises(KeyError), database.atomic():
        database.delete("thing", {"id": "T1"})
        database.count("calls")
        database.count("other")
        raise KeyError("boom")
    assert state(database) == before
    assert database.changes == changes
    with database.atomic():
        database.update("thing", {"id": "T1"}, {"size": 3})
    assert database.changes == changes + 1


def test_a_failed_inner_block_leaves_the_outer_one(database: WorldDatabase) -> None:
    changes = database.changes
    with database.atomic():
        database.update("thing", {"id": "T1"}, {"size": 10})
        with pytest.raises(ValueError), database.atomic():
            database.update("thing", {"id": "T1"}, {"size": 20})
            database.delete("thing", {"id": "T2"})
            raise ValueError
        assert database.find("thing", id="T1")[0]["size"] == 10
    assert [row["size"] for row in database.find("thing")] == [10, 2]
    assert (database.seconds, database.changes) == (1, changes + 1)


def test_a_failed_outer_block_takes_the_inner_one_back(database: WorldDatabase) -> None:
    before, changes = state(database), database.changes
    with pytest.raises(ValueError), database.atomic():
        with database.atomic():
            database.delete("thing", {"id": "T2"})
        with pytest.raises(KeyError), database.atomic():
            database.delete("thing", {"id": "T1"})
            raise KeyError
        raise ValueError
    assert state(database) == before and database.changes == changes


def test_changes_are_equal_around_reads_and_move_with_writes(database: WorldDatabase) -> None:
    before = database.changes
    database.dump()
    database.snapshot()
    assert database.changes == before
    with database.atomic():
        database.insert("thing", {"id": "T3", "size": None, "note": None})
    assert database.changes > before


def test_next_number_looks_only_at_its_prefix(database: WorldDatabase) -> None:
    for key in ("INC_9", "INC_10", "INCX_99", "INC_A"):
        database.insert("thing", {"id": key, "size": 0, "note": None})
    assert database.next_number("thing", "id", "INC_") == 11
    assert database.next_number("thing", "id", "PRB_") == 1


def test_counters_count_from_one(database: WorldDatabase) -> None:
    assert [database.count("a"), database.count("a"), database.count("b")] == [1, 2, 1]


def test_restore_is_exact_and_can_be_repeated(database: WorldDatabase) -> None:
    with database.atomic():
        database.count("a")
    before, snapshot = state(database), database.snapshot()
    for _ in range(2):
        with database.atomic():
            database.insert("thing", {"id": "T3", "size": 3, "note": "x" * 10_000})
            database.delete("thing", {"id": "T1"})
            database.count("a")
            database.count("b")
        assert state(database) != before
        database.restore(snapshot)
        assert state(database) == before


def test_restore_brings_back_dropped_tables_and_takes_new_ones(database: WorldDatabase) -> None:
    before, snapshot = state(database), database.snapshot()
    database.script("DROP TABLE thing; CREATE TABLE other (x); INSERT INTO other VALUES (1);")
    database.restore(snapshot)
    assert state(database) == before and database.tables() == ["thing"]


def test_a_snapshot_moves_between_databases(database: WorldDatabase, tmp_path: Path) -> None:
    with database.atomic():
        database.count("a")
    snapshot = database.snapshot()
    for other in (WorldDatabase(), WorldDatabase(tmp_path / "other.db")):
        other.restore(snapshot)
        assert state(other) == state(database)
        with other.atomic():
            other.delete("thing", {"id": "T1"})
        other.close()
    assert len(database.find("thing")) == 2


def test_a_database_without_a_schema_has_no_snapshot() -> None:
    empty = WorldDatabase()
    with pytest.raises(WorldError, match="without tables"):
        empty.snapshot()


def test_restoring_in_memory_gives_the_same_image() -> None:
    database = WorldDatabase()
    database.script(SCHEMA)
    snapshot = database.snapshot()
    database.insert("thing", {"id": "T1", "size": 1, "note": None})
    database.restore(snapshot)
    assert database.snapshot() == snapshot


def test_writes_to_a_file_are_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "world.db"
    database = WorldDatabase(path)
    database.script(SCHEMA)
    start = database.snapshot()
    with database.atomic():
        database.insert("thing", {"id": "T1", "size": 1, "note": None})
    with sqlite3.connect(path) as reader:
        assert reader.execute("SELECT id FROM thing").fetchall() == [("T1",)]
    database.restore(start)
    database.close()
    again = WorldDatabase(path)
    assert again.dump() == {"thing": []}
    again.close()


def test_moments_inside_a_transaction_are_refused(database: WorldDatabase) -> None:
    snapshot = database.snapshot()
    with database.atomic():
        for refused in (
            database.snapshot,
            lambda: database.restore(snapshot),
            lambda: database.script(SCHEMA),
        ):
            with pytest.raises(WorldError, match="inside an open transaction"):
                refused()


def test_what_a_stuck_thread_left_open_is_rolled_back_from_another(database: WorldDatabase) -> None:
    before, image, release, ready = state(database), database.snapshot(), Event(), Event()
    endings: list[BaseException] = []

    def work() -> None:
        try:
            with database.atomic():
                database.insert("thing", {"id": "T3", "size": 3, "note": None})
                ready.set()
                release.wait()
        except sqlite3.Error as error:
            endings.append(error)

    thread = Thread(target=work)
    thread.start()
    assert ready.wait(5)
    database.interrupt()  # nothing runs in SQLite: nothing happens
    saved = database.salvage()
    release.set()
    thread.join(5)
    assert len(endings) == 1 and "transaction" in str(endings[0]), "the late COMMIT commits nothing"
    assert database.commits == 0
    with closing(WorldDatabase()) as other:
        other.restore(saved)
        assert other.dump() == before[0]
        other.restore(image)
        assert other.dump() == before[0]


def test_an_interrupted_statement_fails_and_its_block_is_rolled_back(database: WorldDatabase) -> None:
    before, changes = state(database), database.changes
    timer = Timer(0.05, database.interrupt)
    timer.start()
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(sqlite3.OperationalError, match="interrupted"), database.atomic():
        database.insert("thing", {"id": "T3", "size": 3, "note": None})
        database.query(endless)
    timer.join()
    assert state(database) == before and (database.changes, database.commits) == (changes, 0)
    assert database.salvage() == database.snapshot(), "without an open block it is a snapshot"
    with database.atomic(), database.atomic():
        database.delete("thing", {"id": "T1"})
    assert database.commits == 1


def test_garbage_is_no_snapshot(database: WorldDatabase) -> None:
    snapshot = database.snapshot()
    garbage = type(snapshot)(b"not a database, only some text" * 40, 0, ())
    with pytest.raises(WorldError, match="no SQLite database"):
        database.restore(garbage)
    database.restore(snapshot)
    assert len(database.find("thing")) == 2


def test_a_path_that_cannot_be_opened_is_a_world_error(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="cannot open database"):
        WorldDatabase(tmp_path / "missing" / "world.db")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM thing",
        "INSERT INTO thing VALUES ('T9', 1, 'x')",
        "DROP TABLE thing",
        "ATTACH DATABASE ':memory:' AS more",
        "PRAGMA user_version = 3",
        "CREATE TABLE more (x)",
    ],
)
def test_read_only_refuses_everything_but_reading(database: WorldDatabase, statement: str) -> None:
    before = database.snapshot()
    with database.read_only():
        assert database.scalar("SELECT count(*) FROM thing WHERE lower(id) LIKE 't%'") == 2
        recursive = (
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 5) SELECT sum(x) FROM n"
        )
        assert database.scalar(recursive) == 15
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            database.scalar(statement)
    assert database.snapshot() == before
    assert database.delete("thing", {"id": "T1"}) == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "drop", "fail", "save", "back"]), st.integers(0, 3))))
def test_any_history_agrees_with_a_model(history: list[tuple[str, int]]) -> None:
    """Rows, clock and counters follow a dict-and-integer model through writes, failures and restores."""
    database = WorldDatabase()
    database.script(SCHEMA)
    rows: set[str] = set()
    seconds, saved = 0, (database.snapshot(), set[str](), 0)
    for action, number in history:
        key = f"T{number}"
        if action in ("add", "drop"):
            with database.atomic():
                database.delete("thing", {"id": key})
                if action == "add":
                    database.insert("thing", {"id": key, "size": number, "note": None})
            rows = rows | {key} if action == "add" else rows - {key}
            seconds += 1
        elif action == "fail":
            with pytest.raises(ValueError), database.atomic():
                database.delete("thing", {"id": key})
                raise ValueError
        elif action == "save":
            saved = (database.snapshot(), set(rows), seconds)
        else:
            database.restore(saved[0])
            rows, seconds = set(saved[1]), saved[2]
        assert {row["id"] for row in database.find("thing")} == rows
        assert database.seconds == seconds
    database.close()


def turn_back(database: WorldDatabase, times: int) -> tuple[int, int]:
    """Snapshot and restore; this process's open files and resident bytes after it."""
    for _ in range(times):
        database.restore(database.snapshot())
    process = psutil.Process()
    return process.num_fds(), process.memory_info().rss


def test_restores_leave_no_file_open_and_keep_no_memory(database: WorldDatabase, tmp_path: Path) -> None:
    with database.atomic():
        rows = [{"id": f"X{number}", "size": number, "note": "x" * 1000} for number in range(1100)]
        database.insert_many("thing", rows)
    in_file = any(tmp_path.iterdir())
    size = len(database.snapshot().image)
    assert size > 1_000_000
    files, memory = turn_back(database, 3)
    rounds = 12 if in_file else 300
    files_later, memory_later = turn_back(database, rounds)
    assert files_later == files
    assert memory_later - memory < max(rounds * size / 4, 30_000_000)
