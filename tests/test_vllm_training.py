"""The smoke recipe with the vLLM engine, as a user would run it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from robustops.monitor.telemetry import read_telemetry

ABSENT = importlib.util.find_spec("vllm") is None
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(ABSENT, reason="scripts/install_vllm_cpu.sh installs vLLM"),
]


@pytest.mark.timeout(600)
def test_grpo_samples_with_vllm_and_updates_its_weights_in_place(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "robustops.cli", "train", "experiment=smoke", "sampler=vllm"]
    # As much SFT as it takes for some groups to differ in their rewards.
    more = ["domain.train=100", "sft.tasks=200", "sft.epochs=3", "sft.max_steps=70", "sft.learning_rate=1e-3"]
    more += ["grpo.steps=3", "grpo.groups=4", "grpo.learning_rate=1e-4", "grpo.refill_rounds=2"]
    done = subprocess.run(
        [*command, *more, "progress=false", "format=json", f"hydra.run.dir={folder}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])["run"]["sampler"] == "vllm"
    steps = [record for record in read_telemetry(folder / "telemetry.jsonl") if record.stage == "grpo"]
    assert [record.step for record in steps] == [1, 2, 3]
    trained = [record.metrics for record in steps if record.metrics["train/episodes"]]
    assert trained, "no group had a signal in three steps"
    # Recomputed by the trainer on the weights of that step: a stale engine would be far off.
    assert max(metrics["train/samp_logp_absdiff_max"] for metrics in trained) < 1e-4
