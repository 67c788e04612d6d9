"""Runs that were stopped in every way go on as if they had not been."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from robustops import cli
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
        due = self.stage == stage and trainer.global_step == step
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
    assert (tmp_path / "checkpoints" / stage / "last.ckpt").is_file()
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
    assert not (tmp_path / "checkpoints" / "sft" / "last.ckpt").exists()
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
def test_a_killed_process_leaves_a_run_that_goes_on_exactly(finished, base_model, tmp_path):
    command = [sys.executable, "-m", "tests.learning.small_run", str(base_model), str(tmp_path / "run")]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(tmp_path / "run" / "telemetry.jsonl", '"step":2,"stage":"grpo"', process)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    finally:
        process.kill()
    assert not (tmp_path / "run" / "summary.json").exists()
    run_training(train_settings(base_model), tmp_path / "run", CONFIG)
    assert_same_run(tmp_path / "run", finished[0])


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
