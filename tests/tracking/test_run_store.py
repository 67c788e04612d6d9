import math
import sqlite3
from dataclasses import replace

import pytest

from robustops.errors import ConfigError
from robustops.monitor.intervention.journal import Entry, Journal
from robustops.records import Episode, EpisodeError, FaultEvent, RewardParts, ToolCall, ToolResult, Turn
from robustops.tracking.results import evaluation_row
from robustops.tracking.rows import decode, encode
from robustops.tracking.run_store import RunStore

FAULT = FaultEvent("unknown_commit", "lost_receipt", 1, "create_note", 2, 3)
TURNS = (
    Turn("look", ToolCall("list_notes", {"box_id": "B1"}), ToolResult('{"notes":[]}'), 10, 14),
    Turn("add", ToolCall("create_note", {"title": "é"}), ToolResult("{}", True), 20, 29, FAULT, True),
    Turn("done", None, None, 30, 33),
)
EPISODE = Episode(
    "toy_1/oracle", "fault", 2, (1,) * 33, (True,) * 33, (0.0,) * 33, TURNS, 1, "final_answer",
    (False, True), (True, True), RewardParts(1.0, 0.5, 0.8), None, 4,
)  # fmt: skip
BROKEN = replace(EPISODE, index=3, checks_final=(), stop="error", error=EpisodeError("world", "it broke"))


@pytest.fixture
def store(tmp_path):
    with RunStore(tmp_path / "run" / "run.db") as opened:
        yield opened


def counts(store):
    names = ("steps", "episodes", "turns", "tool_faults", "checks", "alerts", "interventions", "timings")
    return {name: store.db.table(name).count for name in names}


def test_values_that_are_not_finite_are_kept(store):
    metrics = {"loss": math.nan, "kl": math.inf, "low": -math.inf, "lr": 1e-3, "n": 3, "parts": [math.nan, 1]}
    store.add_step("grpo", 1, metrics, math.nan)
    (row,) = store.steps("grpo")
    assert math.isnan(row["metrics"]["loss"])
    assert math.isnan(row["metrics"]["parts"][0])
    assert math.isnan(row["seconds"])
    assert {k: row["metrics"][k] for k in ("kl", "low", "lr", "n")} == {
        "kl": math.inf, "low": -math.inf, "lr": 1e-3, "n": 3,
    }  # fmt: skip
    # As text, where SQL can see it: SQLite itself turns NaN into NULL.
    read = "SELECT json_extract(metrics, '$.loss'), typeof(seconds), seconds FROM steps"
    assert store.db.execute(read).fetchone() == ("NaN", "text", "NaN")
    store.add_episodes("grpo", 1, [replace(EPISODE, reward_parts=RewardParts(1.0, math.inf, math.nan))])
    episode = store.episodes()[0]
    assert episode["progress"] == math.inf
    assert math.isnan(episode["quality"])


def test_encode_and_decode_are_inverse():
    value = {"a": [1, {"b": -math.inf}], "c": "text", "d": None, "e": True}
    assert decode(encode(value)) == value
    assert encode((math.inf, 2)) == ["Infinity", 2]


def test_steps_come_back_in_order_and_once_only(store):
    for step in (1, 2, 3):
        store.add_step("sft", step, {"loss": 1 / step}, 0.5)
    store.add_step("grpo", 1, {"reward": 2}, 0.25)
    assert [(row["stage"], row["step"]) for row in store.steps()] == [
        ("sft", 1), ("sft", 2), ("sft", 3), ("grpo", 1),
    ]  # fmt: skip
    assert store.series("sft", "loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert store.series("grpo", "loss") == []
    with pytest.raises(ConfigError, match="step 2 of stage 'sft' is already stored; call truncate"):
        store.add_step("sft", 2, {"loss": 0.0}, 0.5)
    assert len(store.steps()) == 4


def test_an_episode_comes_back_with_turns_faults_and_checks(store):
    names = {"toy_1/oracle": ("there", "no_duplicate")}
    first, second = store.add_episodes("grpo", 7, [EPISODE, BROKEN], check_names=names)
    got = store.episode(first)
    expected = {
        "stage": "grpo", "step": 7, "policy": "grpo", "condition": "fault", "case_id": "toy_1/oracle",
        "attempt": 2, "success": 1, "progress": 0.5, "quality": 0.8, "hit": 1, "tool_calls": 1,
        "completion_tokens": 12, "stop": "final_answer", "inherited_turns": 1, "weight_version": 4,
        "error": None, "error_boundary": None,
    }  # fmt: skip
    assert {name: got[name] for name in expected} == expected
    assert [turn["tool"] for turn in got["turns"]] == ["list_notes", "create_note", None]
    assert [turn["inherited"] for turn in got["turns"]] == [1, 0, 0]
    assert got["turns"][1]["arguments"] == {"title": "é"}
    assert (got["turns"][1]["is_error"], got["turns"][1]["changed"], got["turns"][1]["tokens"]) == (1, 1, 9)
    assert (got["turns"][2]["arguments"], got["turns"][2]["result"]) == (None, None)
    (fault,) = got["tool_faults"]
    assert (fault["turn"], fault["subtype"], fault["repetition"], fault["cap"], fault["inherited"]) == (
        1, "lost_receipt", 2, 3, 0,
    )  # fmt: skip
    assert [(c["name"], c["at_start"], c["at_end"]) for c in got["checks"]] == [
        ("there", 0, 1), ("no_duplicate", 1, 1),
    ]  # fmt: skip
    broken = store.episode(second)
    assert (broken["error"], broken["error_boundary"], broken["success"]) == ("it broke", "world", 0)
    assert [check["at_end"] for check in broken["checks"]] == [None, None]
    with pytest.raises(ConfigError, match="has no episode 99"):
        store.episode(99)


def test_evaluation_rows_are_those_of_the_episodes(store):
    store.add_episodes("grpo", 1, [EPISODE])
    store.add_episodes("evaluation", 0, [EPISODE, BROKEN], policy="base", condition="heldout")
    assert store.evaluation_rows() == [
        evaluation_row("base", "heldout", EPISODE), evaluation_row("base", "heldout", BROKEN),
    ]  # fmt: skip
    assert [row["policy"] for row in store.episodes(condition="fault", stage="grpo")] == ["grpo"]
    assert len(store.episodes(error_boundary=None)) == 2
    with pytest.raises(ConfigError, match="table episodes has no column colour"):
        store.episodes(colour="red")


def test_truncate_removes_what_came_after_a_step_with_all_that_hangs_on_it(store):
    for step in (1, 2, 3):
        store.add_step("grpo", step, {"loss": step}, 1.0)
        store.add_episodes("grpo", step, [EPISODE])
        store.add_alert("grpo", step, kind="OD", severity=0.5, message="drift", detail={"z": math.nan})
        Journal(store.db).add(Entry("none", step))
        store.add_timing("grpo", "rollout", 2.0, step=step)
    store.add_episodes("evaluation", 5, [EPISODE])
    assert store.truncate("grpo", 1) == {
        "steps": 2, "episodes": 2, "alerts": 2, "timings": 2,
    }  # fmt: skip
    assert counts(store) == {
        "steps": 1, "episodes": 2, "turns": 6, "tool_faults": 2, "checks": 4,
        "alerts": 1, "interventions": 3, "timings": 1,
    }  # fmt: skip
    store.add_step("grpo", 2, {"loss": 9}, 1.0)
    assert store.series("grpo", "loss") == [(1, 1), (2, 9)]
    store.truncate("grpo", -1)
    assert {row["stage"] for row in store.episodes()} == {"evaluation"}
    assert store.steps() == []


def test_a_failed_bulk_insert_leaves_nothing(store):
    uneven = replace(EPISODE, checks_final=(True,))
    with pytest.raises(ValueError, match="zip"):
        store.add_episodes("grpo", 1, [EPISODE, uneven])
    store.db.execute("CREATE TRIGGER no_checks BEFORE INSERT ON checks BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(sqlite3.IntegrityError):
        store.add_episodes("grpo", 1, [EPISODE])
    assert set(counts(store).values()) == {0}
    assert not store.db.conn.in_transaction


def test_foreign_keys_are_enforced(store):
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        store.db.table("turns").insert({"episode_id": 12345, "position": 0})
    for table in ("turns", "tool_faults", "checks"):
        (key,) = store.db.table(table).foreign_keys
        assert (key.column, key.other_table, key.other_column) == ("episode_id", "episodes", "id")


def test_reopening_keeps_everything_and_a_reader_sees_committed_rows(tmp_path):
    path = tmp_path / "run.db"
    with RunStore(path) as store:
        store.add_step("sft", 1, {"loss": 1.0}, 1.0)
        reader = RunStore(path)
        with store.db.atomic():
            store.add_step("sft", 2, {"loss": 2.0}, 1.0)
            assert len(reader.steps()) == 1
        assert len(reader.steps()) == 2
        reader.close()
        assert store.db.journal_mode == "wal"
    with RunStore(path) as store:
        assert store.series("sft", "loss") == [(1, 1.0), (2, 2.0)]
        assert store.db.execute("PRAGMA foreign_keys").fetchone()[0] == 1
        assert ["case_id"] in [index.columns for index in store.db.table("episodes").indexes]


def test_alerts_interventions_and_timings_come_back(store):
    store.add_alert("grpo", 3, kind="OD", severity=math.inf, message="KL is away", detail={"kl": math.inf})
    Journal(store.db).add(Entry("rollback", 3, reason="KL", changes={"grpo.kl": 0.01}))
    (alert,) = store.alerts(kind="OD")
    assert (alert["severity"], alert["detail"], alert["step"]) == (math.inf, {"kl": math.inf}, 3)
    assert store.alerts(kind="PG") == []
    assert store.interventions()[0]["changes"] == {"grpo.kl": 0.01}
    for step, seconds in enumerate((1.5, 2.5)):
        store.add_timing("grpo", "rollout", seconds, step=step)
    store.add_timing("sft", "fit", 8.0)
    assert store.timings() == {"grpo/rollout": 4.0, "sft/fit": 8.0}


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "run.db"
    path.write_text("hello, this is no database " * 50)
    with pytest.raises(ConfigError, match=r"run\.db is no run database"):
        RunStore(path)


def test_many_episodes_go_in_one_transaction(store):
    ids = store.add_episodes("grpo", 1, [replace(EPISODE, index=i) for i in range(700)])
    assert ids == list(range(1, 701))
    assert [row["attempt"] for row in store.episodes()] == list(range(700))
    assert counts(store)["turns"] == 2100
    assert store.add_episodes("grpo", 2, []) == []
    assert store.add_episodes("grpo", 2, [EPISODE]) == [701]
