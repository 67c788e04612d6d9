"""`robustops doctor` answers for every profile, model and sampler of conf/."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from robustops import cli
from robustops.commands.doctor import can_run, examine
from robustops.commands.machine import choices


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return examine()


@pytest.mark.parametrize("group", ["hardware", "model", "sampler"])
def test_every_choice_has_a_verdict(report: dict[str, Any], group: str) -> None:
    answered = {name for name in report["can_run"] if name.startswith(f"{group}=")}
    assert answered == {f"{group}={name}" for name in choices(group)}


def test_the_hardware_of_this_machine_decides(report: dict[str, Any]) -> None:
    verdicts, gpus = report["can_run"], torch.cuda.device_count()
    assert verdicts["hardware=cpu"] is None
    assert (verdicts["hardware=gpu_1"] is None) == (gpus >= 1)
    assert (verdicts["hardware=multinode"] is None) == (gpus >= 8)
    if gpus < 8:
        assert f"{gpus} CUDA devices, 8 needed" in verdicts["hardware=deepspeed_zero2"]


def test_the_quickstart_needs_memory_disk_and_the_embedded_model(report: dict[str, Any]) -> None:
    def verdict(**changes: Any) -> str | None:
        enough = {"memory_free_gib": 8.0, "disk_free_gib": 8.0, "tiny_model": True}
        return can_run({**report, **enough, **changes})["experiment=quickstart"]

    assert verdict() is None
    short = verdict(memory_free_gib=1.0, disk_free_gib=0.5, tiny_model=False)
    assert short is not None
    assert "memory 1.0 GiB free" in short and "disk 0.5 GiB free" in short and "no tiny model" in short


def test_tables_name_what_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in cli.ENVIRONMENT:
        monkeypatch.setenv(name, os.environ.get(name, cli.ENVIRONMENT[name]))
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "hardware=deepspeed_zero3_offload" in text and "NVIDIA driver" in text
    assert max(map(len, text.splitlines())) <= 80
    assert cli.main(["doctor", "format=json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"can_run", "cuda", "devices", "packages", "memory_gib", "cpu_cores"} <= set(found)
