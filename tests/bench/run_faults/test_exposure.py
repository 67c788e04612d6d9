from __future__ import annotations

import pytest

from robustops.bench.run_faults.exposure import NAME, ExposureLog, read_exposure
from robustops.bench.run_faults.spec import RunFaultSpec
from robustops.errors import ConfigError

SPEC = RunFaultSpec("reward_spike", "episode_spike", 0.5, onset=2, unit="episode")


def log_of(folder, values=(("a", 1, 2), ("b", 3, 4))) -> ExposureLog:
    log = ExposureLog(folder / NAME, SPEC)
    log.begin(0)
    log.end_step(1)
    for name, before, after in values:
        log.seen(2, (2, name), struck=True)
        log.changed(2, (2, name), before, after)
    log.seen(2, (2, "c"), struck=False)
    log.seen(2, (2, "c"), struck=False)  # a second message of the same unit
    log.end_step(2)
    return log


def test_a_line_a_step_by_hand(tmp_path):
    log_of(tmp_path)
    one, two = read_exposure(tmp_path / NAME)
    assert (one["step"], one["level"], one["eligible"], one["touched"]) == (1, 0.0, 0, 0)
    assert (two["step"], two["level"], two["eligible"], two["touched"]) == (2, 0.5, 3, 2)
    assert (two["fault"], two["mechanism"], two["unit"]) == ("reward_spike", "episode_spike", "episode")
    assert two["before"] != two["after"] and one["before"] == one["after"] == "0" * 16


def test_digests_depend_on_the_values_but_not_on_their_order(tmp_path):
    lines = []
    for name, values in (
        ("same", (("b", 3, 4), ("a", 1, 2))),
        ("given", (("a", 1, 2), ("b", 3, 4))),
        ("other", (("a", 1, 2), ("b", 3, 5))),
        ("swapped", (("a", 3, 4), ("b", 1, 2))),
    ):
        log_of(tmp_path / name, values)
        lines.append(read_exposure(tmp_path / name / NAME)[1])
    assert lines[0] == lines[1]
    assert lines[1]["before"] == lines[2]["before"] and lines[1]["after"] != lines[2]["after"]
    assert lines[1]["before"] != lines[3]["before"]


def test_a_resume_drops_what_is_done_again_and_a_torn_line(tmp_path):
    whole = log_of(tmp_path)
    text = (tmp_path / NAME).read_text()
    (tmp_path / NAME).write_text(text + '{"step":3,"fau')
    whole.seen(3, (3, "a"), struck=True)
    state = whole.state_dict()
    again = ExposureLog(tmp_path / NAME, SPEC)
    again.load_state_dict(state)
    again.begin(1)
    assert (tmp_path / NAME).read_text() == text.splitlines(keepends=True)[0]
    assert list(again.open) == [3], "what was sampled ahead goes with the checkpoint"
    again.end_step(2)
    again.end_step(3)
    assert [line["touched"] for line in read_exposure(tmp_path / NAME)] == [0, 0, 1]


def test_another_file_is_refused(tmp_path):
    assert read_exposure(tmp_path / NAME) == []
    (tmp_path / NAME).write_text("not json\n")
    with pytest.raises(ConfigError, match="line 1 is no exposure"):
        read_exposure(tmp_path / NAME)
