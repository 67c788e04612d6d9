"""Runs that were stopped in every way go on as if they had not been."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from robustops import cli
from robustops.errors import ConfigError
from robustops.learning import pipeline, stages
from robustops.learning.pipeline import run_training
from robustops.learning.run import Run
from robustops.learning.telemetry_callback import TelemetryCallback
from robustops.monitor.telemetry import read_telemetry
from robustops.tracking.run_store import RunStore
from tests.learning.run_folders import assert_same_run, rows_of, telemetry
from tests.learning.small_run import CONFIG, LIMITS, train_settings

ROOT = Path(__file__).resolve().parents[2]


def stop_at(monkeypatch, stage: str, step: int, error: BaseException):
    """Raise at the end of a step: after its line has been written, but before its checkpoint."""
    original = TelemetryCallback.on_train_batch_end

    def ends(self, trainer, module, outputs, batch, batch_idx):
        due = module.stage == stage and trainer.global_step == step
        original(self, trainer, module, outputs, batch, batch_idx)
        if due:
            raise error

    monkeypatch.setattr(TelemetryCallback, "on_train_batch_end", ends)


@pytest.mark.parametrize(
    ("stage", "step", "error", "every"),
    [
        ("grpo", 2, RuntimeError("power cut"), 1),
        ("grpo", 3, KeyboardInterrupt(), 2),
        ("sft", 2, KeyboardInterrupt(), 1),
    ],
    ids=["exception in grpo", "Ctrl-C in the last grpo step", "Ctrl-C in sft"],
)
def test_a_stopped_and_resumed_run_is_the_run_that_was_not_stopped(
    finished, base_model, tmp_path, monkeypatch, stage, step, error, every
):
    settings = train_settings(base_model, grpo={"checkpoint_every": every})
    with monkeypatch.context() as patch:
        stop_at(patch, stage, step, error)
        with pytest.raises(type(error)):
            run_training(settings, tmp_path, CONFIG)
    records = read_telemetry(tmp_path / "telemetry.jsonl")
    assert (records[-1].stage, records[-1].step) == (stage, step), "a line beyond the last checkpoint"
    assert list((tmp_path / "checkpoints" / stage).glob("step-*"))
    assert not (tmp_path / "summary.json").exists()
    run_training(settings, tmp_path, CONFIG)
    assert_same_run(tmp_path, finished[0])


def test_a_run_stopped_between_its_last_step_and_its_policy_goes_on(
    finished, base_model, tmp_path, monkeypatch
):
    """All steps are done and in the checkpoint: resuming trains nothing and stores the same policy."""
    with monkeypatch.context() as patch:
        patch.setattr(Run, "save", lambda self, stage, policy: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            run_training(train_settings(base_model, stages=["sft"]), tmp_path, CONFIG)
    settings = train_settings(base_model, stages=["sft"], evaluation={"policies": []})
    run_training(settings, tmp_path, CONFIG)
    name = Path("checkpoints", "sft", "policy", "model.safetensors")
    assert (tmp_path / name).read_bytes() == (finished[0] / name).read_bytes()
    assert telemetry(finished[0]).startswith(telemetry(tmp_path)) and telemetry(tmp_path).count(b"\n") == 2


def test_a_run_stopped_before_its_first_checkpoint_starts_the_stage_anew(
    finished, base_model, tmp_path, monkeypatch
):
    settings = train_settings(base_model, stages=["sft"], evaluation={"policies": []})
    with monkeypatch.context() as patch:
        stop_at(patch, "sft", 1, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            run_training(settings, tmp_path, CONFIG)
    assert telemetry(tmp_path).count(b"\n") == 1
    assert not (tmp_path / "checkpoints" / "sft").exists()
    run_training(settings, tmp_path, CONFIG)
    assert telemetry(finished[0]).startswith(telemetry(tmp_path)) and telemetry(tmp_path).count(b"\n") == 2
    assert Counter(row["stage"] for row in rows_of(tmp_path)["episodes"]) == {"demonstrations": 3}


def test_an_evaluation_that_was_stopped_keeps_whole_policies_only(
    finished, base_model, tmp_path, monkeypatch
):
    folder, summary = finished
    shutil.copytree(folder, tmp_path / "copy")
    with RunStore(tmp_path / "copy" / "run.db") as store:
        store.truncate("evaluation", 0)  # only base is left
    original, asked = pipeline.evaluate_policy, []

    def second_fails(collector, plan, done):
        asked.append(len(asked))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return original(collector, plan, done)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "evaluate_policy", second_fails)
        with pytest.raises(KeyboardInterrupt):
            run_training(train_settings(base_model), tmp_path / "copy", CONFIG)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "evaluate_policy", lambda *args: asked.append("again") or original(*args))
        again = run_training(train_settings(base_model), tmp_path / "copy", CONFIG)
    assert asked == [0, 1, "again"], "sft once, grpo twice, base never"
    assert again["evaluations"] == summary["evaluations"]
    assert_same_run(tmp_path / "copy", folder)


def test_resume_at_the_end_of_a_stage_trains_the_steps_that_were_added(
    finished, base_model, tmp_path, monkeypatch
):
    """T 39: the checkpoint is that of the last step; more steps are then asked for, and not skipped."""
    settings = train_settings(base_model, grpo={"steps": 2})
    with monkeypatch.context() as patch:
        original = Run.save
        patch.setattr(
            Run,
            "save",
            lambda self, stage, policy: original(self, stage, policy) if stage == "sft" else interrupt(),
        )
        with pytest.raises(KeyboardInterrupt):
            run_training(settings, tmp_path, CONFIG)
    assert read_telemetry(tmp_path / "telemetry.jsonl")[-1].step == 2
    run_training(train_settings(base_model), tmp_path, CONFIG)
    assert_same_run(tmp_path, finished[0])


def interrupt():
    raise KeyboardInterrupt


def test_a_run_with_other_settings_is_refused_and_the_folder_stays_as_it_is(
    finished, base_model, tmp_path, capfd
):
    """T 42: no first samples skipped, no other seed, model or loss in a folder that has results."""
    folder = tmp_path / "copy"
    shutil.copytree(finished[0], folder)
    other_model = tmp_path / "model"
    shutil.copytree(base_model, other_model)
    with (other_model / "model.safetensors").open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\x01\x02\x03")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for settings, told in (
        (train_settings(base_model, seed=6), "seed 5 -> 6, but stage sft is complete"),
        (train_settings(base_model, domain={"train": 2}), "domain.train 3 -> 2"),
        (train_settings(base_model, grpo={"kl": 0.5}), "grpo.kl 0.001 -> 0.5, but stage grpo is complete"),
        (train_settings(other_model), "model.checkpoint (weights)"),
    ):
        with pytest.raises(ConfigError, match=re.escape(told)):
            run_training(settings, folder, CONFIG)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    # The same model under another path, and the same settings, go on without a word.
    shutil.rmtree(other_model)
    shutil.copytree(base_model, other_model)
    capfd.readouterr()
    run_training(train_settings(other_model), folder, CONFIG)
    assert "changed since" not in capfd.readouterr().err


def test_an_evaluation_with_other_settings_begins_anew(finished, base_model, tmp_path, capfd):
    """As many episodes as before, but of other conditions: the kept ones would be mistaken for them."""
    shutil.copytree(finished[0], tmp_path / "copy")
    changed = {"policies": ["base"], "conditions": ["clean", "fault"], "cases": 2}
    settings = train_settings(base_model, evaluation=changed)
    first = run_training(settings, tmp_path / "copy", CONFIG)
    (line,) = [text for text in capfd.readouterr().err.splitlines() if "changed since" in text]
    assert "evaluation.cases null -> 2" in line and "evaluations begin anew" in line
    assert first["evaluations"].keys() == {"base"}
    assert {c: body["n"] for c, body in first["evaluations"]["base"].items()} == {"clean": 2, "fault": 2}
    assert [path.name for path in (tmp_path / "copy" / "manifests").iterdir()] == ["fault.json"]
    settings = train_settings(base_model, evaluation={**changed, "conditions": ["fault", "clean"]})
    again = run_training(settings, tmp_path / "copy", CONFIG)
    assert again["evaluations"]["base"]["fault"] == first["evaluations"]["base"]["fault"]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}


def wait_for(path: Path, text: str, process: subprocess.Popen, seconds: float = 120.0) -> None:
    """Until the file holds the text; fails if the process ends before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if path.exists() and text in path.read_text():
            return
        assert process.poll() is None, f"the process ended with {process.returncode} before '{text}'"
        time.sleep(0.005)
    raise AssertionError(f"'{text}' did not appear in {path} within {seconds} s")


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_the_command_goes_on_with(base_model, tmp_path, monkeypatch, capsys):
    overrides = [
        *("domain=itsm", "domain.train=3", "domain.val=0", "domain.test=2", "domain.tool_configs=[oracle]"),
        *("fault=trained", "sft=smoke", "sft.tasks=3", "grpo=smoke", "grpo.steps=30", "grpo.group_size=2"),
        *(f"model.checkpoint={base_model}", f"model.context_tokens={LIMITS.context_tokens}"),
        *(f"model.answer_tokens={LIMITS.answer_tokens}", f"model.max_turns={LIMITS.max_turns}"),
        *("hardware.threads=1", "logger=csv"),
        *("evaluation.conditions=[clean]", "evaluation.cases=1", "hydra.run.dir=run"),
    ]
    command = [sys.executable, "-c", "import sys; from robustops.cli import main; sys.exit(main())", "train"]
    process = subprocess.Popen(
        [*command, *overrides], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_for(tmp_path / "run" / "telemetry.jsonl", '"step":2,"stage":"grpo"', process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "robustops: interrupted; resume with: robustops train resume=run"
    assert "Traceback" not in errors
    before = telemetry(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    done = before.count(b'"stage":"grpo"')
    assert cli.main(["train", "resume=run", f"grpo.steps={done + 1}", "progress=false"]) == 0
    after = read_telemetry(tmp_path / "run" / "telemetry.jsonl")
    assert [r.step for r in after if r.stage == "grpo"] == list(range(1, done + 2))
    assert telemetry(tmp_path / "run").startswith(before[: before.rindex(b"\n", 0, -1)])
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["evaluations"]["grpo"]
    capsys.readouterr()
    assert cli.main(["train", "resume=run", "grpo.groups=9"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert re.search(r"grpo\.groups \d+ -> 9, but stage grpo is complete", error)
    assert cli.main(["train", "resume=run", "format=json"]) == 0, "what was refused is not taken over"
    config = json.loads(capsys.readouterr().out)["run"]["config"]
    assert (config["grpo"]["steps"], config["grpo"]["groups"]) == (done + 1, 1)
    with RunStore(tmp_path / "run" / "run.db") as store:
        assert Counter((row["stage"], row["step"]) for row in store.steps()).most_common(1)[0][1] == 1


def test_lightnings_exit_after_ctrl_c_is_an_interrupt_and_other_exits_are_not():
    class Fits:
        def __init__(self, error):
            self.error = error

        def fit(self, *arguments, **options):
            try:
                if self.error is KeyboardInterrupt:
                    raise KeyboardInterrupt
            finally:
                sys.exit(3)

    with pytest.raises(KeyboardInterrupt):
        stages._run(Fits(KeyboardInterrupt), None, None, None)
    with pytest.raises(SystemExit):
        stages._run(Fits(None), None, None, None)
