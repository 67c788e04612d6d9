import pytest

from robustops.errors import ConfigError
from robustops.monitor.importers import load
from robustops.monitor.telemetry import StepRecord, TelemetryWriter


def write(path, records):
    with TelemetryWriter(path) as writer:
        for record in records:
            writer.write(record)


def grpo(step, **metrics):
    return StepRecord(step, "grpo", {"reward_mean": 0.5, **metrics}, {"lacks": ["value_head"]})


def test_a_run_folder_is_judged_by_its_grpo_stage(tmp_path):
    sft = [StepRecord(step, "sft", {"train/loss": 1.0, "entropy": 2.0}) for step in (1, 2)]
    write(tmp_path / "telemetry.jsonl", [*sft, grpo(1, vf_ev=float("nan")), grpo(2, entropy=float("nan"))])
    for source in (tmp_path, tmp_path / "telemetry.jsonl"):
        found = load(source)
        assert (found.format, found.panel.steps.tolist()) == ("ours", [1, 2])
        assert list(found.panel.columns) == ["reward_mean"]  # the others were never observed
        assert found.notes == ("of the stages sft, grpo grpo is judged",)


def test_a_run_of_sft_alone_is_read_and_its_further_numbers_named(tmp_path):
    write(tmp_path / "telemetry.jsonl", [StepRecord(1, "sft", {"train/loss": 1.0, "entropy": 2.0})])
    found = load(tmp_path)
    assert found.panel["entropy"].tolist() == [2.0] and found.unmapped == {"train/loss": "not in the schema"}


def test_a_torn_last_line_is_dropped_and_a_file_without_a_step_refused(tmp_path):
    path = tmp_path / "telemetry.jsonl"
    path.write_text(grpo(1).to_line() + "\n" + grpo(2).to_line()[:20])
    assert load(path).panel.steps.tolist() == [1]
    path.write_text("")
    with pytest.raises(ConfigError, match="has no step yet"):
        load(tmp_path)


def test_a_step_that_comes_again_replaces_the_earlier_one(tmp_path):
    path = tmp_path / "telemetry.jsonl"
    path.write_text("".join(grpo(s, entropy=e).to_line() + "\n" for s, e in ((1, 1.0), (2, 2.0), (2, 3.0))))
    found = load(path)
    assert found.panel["entropy"].tolist() == [1.0, 3.0] and "step 2 comes again" in found.notes[0]
