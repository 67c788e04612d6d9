"""What a machine lacks for a choice: every profile of conf/ on machines that we make up, and on this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from robustops.commands.machine import (
    choices,
    facts,
    lacks_hardware,
    lacks_model,
    lacks_sampler,
)
from robustops.settings import HardwareSettings, ModelSettings, SamplerSettings
from tests.tiny_model import tiny_model

GPU = {"name": "some GPU", "memory_gib": 79.6, "bf16": True}


def machine(gpus: int = 0, cores: int = 2, **changes: Any) -> dict[str, Any]:
    packages = {"vllm": "0.32.0", "deepspeed": "0.19.8", "openai": "3"}
    return {
        "cpu_cores": cores,
        "memory_free_gib": 20.0,
        "packages": packages,
        "devices": [dict(GPU) for _ in range(gpus)],
        "cuda": {"torch": "13.0", "driver": "580.1"},
        **changes,
    }


def runnable(found: dict[str, Any]) -> set[str]:
    """Profiles of conf/ that lack nothing."""
    return {
        name
        for name, content in choices("hardware").items()
        if not lacks_hardware(HardwareSettings(**content), found)
    }


@pytest.mark.parametrize(
    ("found", "profiles"),
    [
        (machine(), {"cpu", "cpu_deepspeed"}),
        (machine(cores=1), {"cpu"}),
        (machine(packages={"deepspeed": None}), {"cpu"}),
        (machine(1), {"cpu", "cpu_deepspeed", "gpu_1", "gpu_1_offload"}),
        (machine(2, packages={"deepspeed": None}), {"cpu", "gpu_1", "gpu_2"}),
        (machine(8), set(choices("hardware"))),
        (machine(7), set(choices("hardware")) - {"deepspeed_zero2", "deepspeed_zero3_offload", "multinode"}),
        (machine(8, devices=[{**GPU, "bf16": False}] * 8), {"cpu", "cpu_deepspeed"}),
    ],
)
def test_profiles_that_a_machine_can_run(found: dict[str, Any], profiles: set[str]) -> None:
    assert runnable(found) == profiles


def test_what_is_missing_is_named() -> None:
    def lacks(name: str, found: dict[str, Any]) -> str:
        return "; ".join(lacks_hardware(HardwareSettings(**choices("hardware")[name]), found))

    assert lacks("gpu_2", machine(1)) == "1 CUDA devices, 2 needed"
    assert lacks("multinode", machine()) == "0 CUDA devices, 8 needed on each of 2 machines"
    assert "without CUDA" in lacks("gpu_1", machine(cuda={"torch": None, "driver": "580.1"}))
    absent = machine(packages={"deepspeed": None})
    assert lacks("deepspeed_zero2", absent).endswith("pip install 'robustops[deepspeed]'")
    assert "0 CUDA devices" in lacks("deepspeed_zero2", absent)
    assert "bfloat16" in lacks("gpu_1", machine(devices=[{**GPU, "bf16": False}]))


def test_a_model_needs_weights_and_memory_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "no_cache"))
    tiny = ModelSettings(name="tiny")
    assert lacks_model(tiny, machine()) == []
    hub = ModelSettings(name="far", source="hub", hub_id="nobody/far")
    assert lacks_model(hub, machine()) == [
        "not in the Hugging Face cache: hf download nobody/far, or set model.checkpoint"
    ]
    tiny_model().save_pretrained(tmp_path)
    here = ModelSettings(name="far", source="hub", hub_id="nobody/far", checkpoint=str(tmp_path))
    assert lacks_model(here, machine()) == []
    weights = (tmp_path / "model.safetensors").stat().st_size / 2**30
    (short,) = lacks_model(here, machine(memory_free_gib=weights / 2))
    assert short.startswith("weights of")
    assert lacks_model(here, machine(1, memory_free_gib=weights / 2)) == []
    (tmp_path / "model.safetensors").unlink()
    assert lacks_model(here, machine()) == [f"no weights in {tmp_path}"]
    gguf = ModelSettings(name="not_shipped", source="gguf_package")
    assert "robustops[gguf]" in lacks_model(gguf, machine())[0]


def test_a_sampler_needs_its_package_its_address_and_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lacks_sampler(SamplerSettings(name="hf"), machine()) == []
    assert lacks_sampler(SamplerSettings(name="vllm"), machine()) == []
    assert (
        "robustops[vllm]" in lacks_sampler(SamplerSettings(name="vllm"), machine(packages={"vllm": None}))[0]
    )
    assert "sampler.urls" in lacks_sampler(SamplerSettings(name="vllm_server"), machine())[0]
    assert lacks_sampler(SamplerSettings(name="vllm_server", urls=["http://a"]), machine()) == []
    monkeypatch.delenv("SOME_KEY", raising=False)
    asked = SamplerSettings(name="openai", base_url="http://a", model="b", api_key_env="SOME_KEY")
    assert lacks_sampler(asked, machine()) == ["its key, $SOME_KEY, is not set"]
    monkeypatch.setenv("SOME_KEY", "x")
    assert lacks_sampler(asked, machine()) == []
    assert (
        "sampler.base_url"
        in lacks_sampler(SamplerSettings(name="openai", api_key_env="SOME_KEY"), machine())[0]
    )


def test_facts_are_those_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 580.65.06\necho 580.65.06\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = facts()
    assert found["cuda"] == {"torch": torch.version.cuda, "driver": "580.65.06"}
    assert len(found["devices"]) == torch.cuda.device_count()
    assert found["memory_gib"] == pytest.approx(psutil.virtual_memory().total / 2**30, abs=0.1)
    assert found["packages"]["torch"] == torch.__version__
    program.write_text("#!/bin/sh\nexit 9\n")
    assert facts()["cuda"]["driver"] is None
