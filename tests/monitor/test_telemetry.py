import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.errors import ConfigError, TrainingError
from robustops.monitor import telemetry
from robustops.monitor.telemetry import StepRecord, TelemetryWriter, read_telemetry


def record(step, stage="grpo", **metrics):
    return StepRecord(step, stage, metrics or {"reward_mean": step / 10})


def write(path, *records):
    with TelemetryWriter(path) as writer:
        for item in records:
            writer.write(item)
    return path


def places(path):
    return [(item.stage, item.step) for item in read_telemetry(path)]


# --- one record ---------------------------------------------------------------------------------
def test_the_line_by_hand():
    item = StepRecord(
        3, "grpo", {"reward_mean": 0.5, "grad_norm": math.nan, "loss": -math.inf}, {"cases": ("a", "b")}
    )
    assert item.to_line() == (
        '{"step":3,"stage":"grpo","metrics":{"reward_mean":0.5,"grad_norm":"NaN","loss":"-Infinity"},'
        '"facts":{"cases":["a","b"]}}'
    )
    back = StepRecord.from_line(item.to_line())
    assert list(back.metrics) == ["reward_mean", "grad_norm", "loss"]
    assert math.isnan(back.metrics["grad_norm"]) and back.metrics["loss"] == -math.inf
    assert back.facts == {"cases": ["a", "b"]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**9),
    st.text(),
    st.dictionaries(st.text(), st.floats() | st.integers(-(2**60), 2**60)),
    st.dictionaries(st.text(), JSON, max_size=3),
)
def test_any_record_survives_its_line(step, stage, metrics, facts):
    item = StepRecord(step, stage, metrics, facts)
    line = item.to_line()
    assert "\n" not in line
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    back = StepRecord.from_line(line)
    assert back.to_line() == line
    assert repr(back) == repr(item)


def test_a_word_among_the_facts_stays_a_word():
    item = StepRecord(1, "sft", facts={"name": "NaN", "value": math.nan})
    assert StepRecord.from_line(item.to_line()).facts == {"name": "NaN", "value": "NaN"}


def test_half_a_character_from_a_broken_decoder_is_written_too():
    item = StepRecord(1, "sft", facts={"text": "\ud83d"})
    assert StepRecord.from_line(item.to_line().encode().decode()) == item


def test_numpy_numbers_are_numbers_and_text_is_none():
    item = StepRecord(1, "sft", {"loss": np.float32(0.5), "count": np.int64(3), "flag": True})
    assert item.metrics == {"loss": 0.5, "count": 3, "flag": 1}
    assert item.to_line().endswith('"metrics":{"loss":0.5,"count":3,"flag":1},"facts":{}}')
    with pytest.raises(TypeError, match="metric 'loss'"):
        StepRecord(1, "sft", {"loss": "0.5"})


# --- writing and reading ------------------------------------------------------------------------
def test_each_line_is_on_disk_when_write_returns(tmp_path):
    path = tmp_path / "run" / "telemetry.jsonl"
    writer = TelemetryWriter(path)
    for step in (1, 2):
        writer.write(record(step))
        assert places(path) == [("grpo", s) for s in range(1, step + 1)]
    writer.close()
    writer.close()


def test_equal_runs_write_equal_bytes(tmp_path):
    items = [StepRecord(s, "grpo", {"a": s / 3, "b": math.nan}, {"k": [s]}) for s in range(1, 6)]
    first, second = write(tmp_path / "1.jsonl", *items), write(tmp_path / "2.jsonl", *items)
    assert first.read_bytes() == second.read_bytes()
    assert len(first.read_bytes().splitlines()) == 5


def test_opening_again_continues(tmp_path):
    path = write(tmp_path / "t.jsonl", record(1))
    with TelemetryWriter(path) as writer:
        assert writer.last == record(1)
        writer.write(record(2))
    assert places(path) == [("grpo", 1), ("grpo", 2)]


def test_a_step_cannot_be_written_twice(tmp_path):
    path = write(tmp_path / "t.jsonl", record(1, "sft"), record(2, "sft"), record(1), record(2))
    with TelemetryWriter(path) as writer, pytest.raises(TrainingError, match="truncate_after"):
        writer.write(record(2))
    assert places(path)[-1] == ("grpo", 2)


# --- torn lines ---------------------------------------------------------------------------------
def test_a_line_torn_anywhere_is_dropped_by_reader_and_writer(tmp_path):
    path = write(tmp_path / "t.jsonl", record(1), StepRecord(2, "grpo", {"x": 0.25}, {"who": "Zoë"}))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert places(path) == [("grpo", 1)]
        with TelemetryWriter(path) as writer:
            assert path.read_bytes() == whole[:first]
            writer.write(StepRecord(2, "grpo", {"x": 0.25}, {"who": "Zoë"}))
        assert path.read_bytes() == whole


def test_a_whole_line_that_lacks_only_its_newline_is_kept(tmp_path):
    path = write(tmp_path / "t.jsonl", record(1), record(2))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert places(path) == [("grpo", 1), ("grpo", 2)]
    TelemetryWriter(path).close()
    assert path.read_bytes() == whole


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = write(tmp_path / "t.jsonl", record(1), record(2))
    lines = path.read_text().splitlines()
    for broken in (
        '{"step":',
        "[]",
        '{"stage":"grpo"}',
        '{"step":1,"facts":[]}',
        '{"step":1,"metrics":{"x":"much"}}',
    ):
        path.write_text("\n".join([lines[0], broken, lines[1]]) + "\n")
        with pytest.raises(ConfigError, match="line 2 is no step record"):
            read_telemetry(path)


def test_a_missing_file_is_named_and_an_empty_one_is_empty(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        read_telemetry(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    assert read_telemetry(tmp_path / "empty.jsonl") == []


# --- resume -------------------------------------------------------------------------------------
RUN = [record(1, "sft"), record(2, "sft"), record(3, "sft"), record(1), record(2)]


@pytest.mark.parametrize(
    ("step", "stage", "left"),
    [
        (1, "grpo", 4),
        (2, "grpo", 5),
        (0, "grpo", 3),
        (2, "sft", 2),
        (0, "sft", 0),
        (3, "sft", 3),
        (7, "eval", 5),
    ],
)
def test_truncate_by_stage(tmp_path, step, stage, left):
    """Steps count anew in each stage: what follows the named stage goes, what precedes it stays."""
    path = write(tmp_path / "t.jsonl", *RUN)
    with TelemetryWriter(path) as writer:
        assert writer.truncate_after(step, stage) == len(RUN) - left
        assert writer.last == (RUN[left - 1] if left else None)
    assert read_telemetry(path) == RUN[:left]
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


def test_truncate_without_a_stage_cuts_by_step_alone(tmp_path):
    path = write(tmp_path / "t.jsonl", *RUN)
    with TelemetryWriter(path) as writer:
        assert writer.truncate_after(1) == 3
    assert places(path) == [("sft", 1), ("grpo", 1)]


def test_a_killed_and_resumed_run_equals_one_that_was_not(tmp_path):
    items = [StepRecord(s, "grpo", {"x": s / 7, "y": math.inf}) for s in range(1, 9)]
    whole = write(tmp_path / "whole.jsonl", *items).read_bytes()
    path = write(tmp_path / "killed.jsonl", *items[:6])
    path.write_bytes(path.read_bytes()[:-9])  # died while writing step 6; the checkpoint is of step 3
    with TelemetryWriter(path) as writer:
        writer.truncate_after(3, "grpo")
        for item in items[3:]:
            writer.write(item)
    assert path.read_bytes() == whole


def test_a_crash_while_truncating_leaves_the_old_file(tmp_path, monkeypatch):
    path = write(tmp_path / "t.jsonl", *RUN)
    before = path.read_bytes()
    writer = TelemetryWriter(path)

    def crash(descriptor):
        raise OSError("power failure")

    monkeypatch.setattr(telemetry.os, "fsync", crash)
    with pytest.raises(OSError, match="power failure"):
        writer.truncate_after(1, "grpo")
    monkeypatch.undo()
    assert path.read_bytes() == before
    with TelemetryWriter(path) as again:
        again.truncate_after(1, "grpo")
    assert read_telemetry(path) == RUN[:4]


def test_no_torch_is_imported():
    code = "import sys; import robustops.monitor.telemetry; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
