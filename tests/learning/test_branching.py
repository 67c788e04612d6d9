"""Runs that go on from a checkpoint of another run."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

from robustops.bench.run_faults.exposure import NAME as EXPOSURE
from robustops.bench.run_faults.exposure import read_exposure
from robustops.bench.run_faults.injector import training_hooks
from robustops.errors import ConfigError
from robustops.learning import branching
from robustops.learning.branching import INTERVENTIONS, allowed, find_parent
from robustops.learning.checkpoints import Checkpoints
from robustops.learning.fingerprint import flat_settings
from robustops.learning.pipeline import run_training
from robustops.monitor.telemetry import read_telemetry
from robustops.settings import HardwareSettings, RunFaultSettings, TrainSettings
from robustops.tracking.run_record import read_record
from tests.learning.run_folders import assert_same_run, rows_of, telemetry
from tests.learning.small_run import CONFIG, train_settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def parent(base_model, tmp_path_factory):
    """A run that kept all of its checkpoints (one a step), of which it made three."""
    folder = tmp_path_factory.mktemp("parent")
    run_training(train_settings(base_model, grpo={"keep_checkpoints": "all"}), folder, CONFIG)
    return folder


def branch(base_model, parent, folder, step, **overrides):
    settings = train_settings(base_model, **overrides)
    settings = dataclasses.replace(settings, branch=str(parent), branch_step=step)
    return settings, run_training(settings, folder, CONFIG)


def test_all_checkpoints_are_kept_and_change_nothing(parent, finished):
    points = Checkpoints(parent / "checkpoints" / "grpo").points()
    assert [point.batches for point in points] == [1, 2, 3]
    assert_same_run(parent, finished[0])
    assert not list((finished[0] / "checkpoints" / "grpo").glob("step-*"))
    assert not list((parent / "checkpoints" / "sft").glob("step-*"))


def test_a_branch_without_changes_is_its_parent(base_model, parent, finished, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in parent.rglob("*") if path.is_file()}
    branch(base_model, parent, tmp_path, 1)
    assert_same_run(tmp_path, finished[0])
    origin = read_record(tmp_path)["branch"]
    assert origin == {"parent": str(parent.resolve()), "step": 1, "changed": {}}
    now = {path: path.stat().st_mtime_ns for path in parent.rglob("*") if path.is_file()}
    assert now == before, "the parent is only read"


def test_a_branch_with_other_knobs_shares_the_past_and_is_told_apart(base_model, parent, tmp_path, capsys):
    knobs = {
        "grpo": {"kl": 0.05, "learning_rate": 2e-3, "advantage_clip": 1.0},
        "reward": {"bounded": True},
        "domain": {"tool_retries": 1},
        "model": {"min_turns": 2},
    }
    branch(base_model, parent, tmp_path, 2, **knobs)
    mine, theirs = telemetry(tmp_path).splitlines(), telemetry(parent).splitlines()
    assert mine[:4] == theirs[:4] and mine[4] != theirs[4] and len(mine) == 5
    record = read_telemetry(tmp_path / "telemetry.jsonl")[-1]
    assert (record.metrics["lr"], record.metrics["kl_coef"]) == (2e-3, 0.05)
    assert read_record(tmp_path)["branch"]["changed"] == {
        "grpo.kl": [0.001, 0.05],
        "grpo.learning_rate": [1e-3, 2e-3],
        "grpo.advantage_clip": [None, 1.0],
        "reward.bounded": [False, True],
        "domain.tool_retries": [0, 1],
        "model.min_turns": [0, 2],
    }
    steps = [(row["stage"], row["step"]) for row in rows_of(tmp_path)["steps"]]
    assert steps == [("sft", 1), ("sft", 2), ("grpo", 1), ("grpo", 2), ("grpo", 3)]
    assert "branched from" in capsys.readouterr().err


def test_a_branch_that_was_stopped_is_resumed_as_a_run_of_its_own(base_model, parent, tmp_path, monkeypatch):
    """Its parent may be gone by then."""
    copy = tmp_path / "parent"
    shutil.copytree(parent, copy)
    settings = train_settings(base_model, grpo={"kl": 0.05}, evaluation={"policies": []})
    settings = dataclasses.replace(settings, branch=str(copy), branch_step=1)
    run_training(settings, tmp_path / "whole", CONFIG)
    with monkeypatch.context() as patch:  # killed between the parts of what it takes over
        patch.setattr(branching, "_copy_database", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            run_training(settings, tmp_path / "cut", CONFIG)
    fewer = dataclasses.replace(settings, grpo=dataclasses.replace(settings.grpo, steps=2))
    run_training(dataclasses.replace(fewer, stages=["sft", "grpo"]), tmp_path / "cut", CONFIG)
    shutil.rmtree(copy)
    assert telemetry(tmp_path / "whole").startswith(telemetry(tmp_path / "cut"))
    again = run_training(fewer, tmp_path / "cut", CONFIG)
    assert again and read_record(tmp_path / "cut")["branch"]["step"] == 1


def test_a_branch_may_leave_out_a_run_fault_and_keeps_the_log_of_the_past(base_model, finished, tmp_path):
    """The arm of an oracle: with the fault gone before its onset, the run is the healthy one."""
    fault = RunFaultSettings("reward_spike", onset=3)
    faulty = train_settings(
        base_model, run_fault=fault, grpo={"keep_checkpoints": "all"}, evaluation={"policies": []}
    )
    run_training(faulty, tmp_path / "faulty", CONFIG, hooks=training_hooks(faulty, tmp_path / "faulty"))
    assert telemetry(tmp_path / "faulty") != telemetry(finished[0])
    branch(base_model, tmp_path / "faulty", tmp_path / "b", 2, evaluation={"policies": []})
    assert telemetry(tmp_path / "b") == telemetry(finished[0])
    assert [line["step"] for line in read_exposure(tmp_path / "b" / EXPOSURE)] == [1, 2]
    assert read_record(tmp_path / "b")["branch"]["changed"] == {
        "run_fault.name": ["reward_spike", "none"],
        "run_fault.onset": [3, 5],
    }


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"seed": 6}, "seed 5 -> 6, but stage sft is complete"),
        ({"grpo": {"epochs": 2}}, "grpo.epochs 1 -> 2, but stage grpo is half done"),
        ({"grpo": {"steps": 1}}, "grpo.steps 3 -> 1, but 2 steps are done"),
        ({"sft": {"learning_rate": 1.0}}, "sft.learning_rate"),
        ({"model": {"context_tokens": 900}}, "model.context_tokens"),
        ({"run_fault": {"name": "reward_spike"}}, "run_fault.name none -> reward_spike"),
        ({"stages": ["sft"]}, "goes on within GRPO"),
        ({"hardware": HardwareSettings("two", devices=2, strategy="ddp")}, "branch= works in one process"),
    ],
    ids=str,
)
def test_what_a_branch_cannot_change_is_refused(base_model, parent, tmp_path, overrides, message):
    settings = train_settings(base_model, **overrides)
    settings = dataclasses.replace(settings, branch=str(parent), branch_step=2)
    from robustops.learning.admission import admit
    from robustops.tasks.opening import open_catalog

    with pytest.raises(ConfigError, match=message):
        admit(settings, tmp_path / "b", open_catalog(settings.domain)[1])
    assert not (tmp_path / "b" / "run.json").exists() and not (tmp_path / "b" / "checkpoints").exists()


def test_a_branch_from_nothing_is_refused_with_what_there_is(base_model, parent, finished, tmp_path):
    def asked(folder, step, own=tmp_path / "b"):
        settings = train_settings(base_model)
        return find_parent(dataclasses.replace(settings, branch=str(folder), branch_step=step), own)

    assert asked(parent, None).point.batches == 3 and asked(parent, 1).point.batches == 1
    with pytest.raises(ConfigError, match=r"of step 7; steps with one: 1, 2, 3\. .*keep_checkpoints=all"):
        asked(parent, 7)
    with pytest.raises(ConfigError, match="steps with one: none"):
        asked(finished[0], None)
    with pytest.raises(ConfigError, match=r"no run in .*run\.json is absent"):
        asked(tmp_path / "nothing", None)
    with pytest.raises(ConfigError, match="a run folder of its own"):
        asked(parent, 1, own=finished[0])
    shutil.copytree(parent, tmp_path / "damaged")
    newest = Checkpoints(tmp_path / "damaged" / "checkpoints" / "grpo").points()[-1]
    newest.path.unlink()
    newest.path.write_bytes(b"x")
    assert asked(tmp_path / "damaged", None).point.batches == 2
    with pytest.raises(ConfigError, match="step-00000003 is damaged"):
        asked(tmp_path / "damaged", 3)


def test_knobs_are_settings_and_fixed_ones_are_not_free():
    keys = flat_settings(TrainSettings())
    for name in INTERVENTIONS:
        assert any(key == name or key.startswith(f"{name}.") for key in keys), name
    assert allowed("grpo.kl", keys) and allowed("model.min_turns", keys) and allowed("sampler.urls", keys)
    for key in ("grpo.epochs", "grpo.staleness", "model.context_tokens", "domain.seed", "seed", "sft.epochs"):
        assert not allowed(key, keys), key
    assert allowed("run_fault.name", keys)
    assert not allowed("run_fault.strength", {**keys, "second_run_fault.name": "reward_spike"})
    assert json.dumps(keys)
