"""`robustops train ... dry_run=true` as a user runs it: no network, no GPU, nothing trained, nothing left."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from robustops import cli
from robustops.commands.saved import resumed
from robustops.learning import pipeline
from robustops.learning.sizing import GIB

NO_GPU = pytest.mark.skipif(torch.cuda.device_count() > 0, reason="this machine has a GPU")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, an empty Hugging Face cache, no network and no training."""

    def refuse(*arguments: Any, **named: Any) -> None:
        raise AssertionError("a dry run stays on this machine and trains nothing")

    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "no_cache"))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(pipeline, "run_training", refuse)
    for name in cli.ENVIRONMENT:
        monkeypatch.setenv(name, os.environ.get(name, cli.ENVIRONMENT[name]))
    return work


def report_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["train", *arguments, "dry_run=true", "format=json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return report


def files(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.rglob("*") if path.is_file()}


@NO_GPU
def test_the_reference_recipe_fits_one_gpu_of_80_gb(capsys: pytest.CaptureFixture[str], alone: Path) -> None:
    report = report_of(capsys, "experiment=grpo_120")
    assert report["model"]["parameters"] == 4_022_468_096
    assert report["work"]["sft"]["optimiser_steps"] == 260
    assert report["work"]["sft"]["tokens_per_step"] == 8 * 32_768
    assert report["work"]["grpo"]["optimiser_steps"] == 120
    assert report["work"]["grpo"]["tokens_per_step"] == 128 * 32_768
    assert report["device_memory"] == {"bytes": 80 * GIB, "known": False, "fits": True}
    assert not report["runs_here"]
    assert "0 CUDA devices, 1 needed" in report["missing_here"]
    assert any("not in the Hugging Face cache" in thing for thing in report["missing_here"])
    assert files(alone) == {".hydra"}


@NO_GPU
def test_eight_gpus_fit_too_and_one_without_offloading_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    many = report_of(capsys, "experiment=grpo_4b", "hardware=deepspeed_zero2")
    assert many["device_memory"]["fits"]
    alone = report_of(capsys, "experiment=grpo_4b", "hardware=deepspeed_zero2", "hardware.devices=1")
    assert not alone["device_memory"]["fits"]


def test_text_says_whether_this_machine_could_run_it(capsys: pytest.CaptureFixture[str], alone: Path) -> None:
    assert cli.main(["train", "experiment=smoke", "dry_run=true"]) == 0
    text = capsys.readouterr().out
    assert "this machine can run it" in text and "optimiser steps" in text
    assert max(map(len, text.splitlines())) <= 80
    assert files(alone) == {".hydra"}


def test_what_training_refuses_is_reported_and_not_raised(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(capsys, "experiment=smoke", "sampler=scripted")
    assert not report["runs_here"]
    assert any("GRPO needs a sampler" in thing for thing in report["missing_here"])


def test_a_wrong_request_is_still_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "experiment=smoke", "dry_run=true", "grpo.steps=0"]) == 2
    assert cli.main(["train", "experiment=smoke", "dry_run=true", "model.checkpoint=nowhere"]) == 2
    assert "no model in nowhere" in capsys.readouterr().err


def test_the_folder_of_a_dry_run_can_be_trained_in(capsys: pytest.CaptureFixture[str], alone: Path) -> None:
    report_of(capsys, "experiment=smoke", "grpo.steps=3", "hydra.run.dir=here")
    taken = resumed(["resume=here"])
    assert "experiment=smoke" in taken and "grpo.steps=3" in taken
    assert not any(text.startswith("dry_run") for text in taken)
