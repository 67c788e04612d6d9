"""What a hardware profile asks for: processes, strategy, precision."""

from __future__ import annotations

import importlib.util
import os

import torch

from robustops.errors import ConfigError, unknown_name
from robustops.settings import HardwareSettings

#: Strategy -> (ZeRO stage, with parameters and optimiser state in CPU memory).
ZERO = {
    "deepspeed_stage_2": (2, False),
    "deepspeed_stage_2_offload": (2, True),
    "deepspeed_stage_3": (3, False),
    "deepspeed_stage_3_offload": (3, True),
}
ACCELERATORS = ("cpu", "gpu")
STRATEGIES = ("auto", "ddp", *ZERO)
PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")


def group_size(hardware: HardwareSettings) -> int:
    """Connected processes that training takes; 0: one process, without a connection.

    DeepSpeed wants a connection even for one device.
    """
    processes = hardware.devices * hardware.num_nodes
    return processes if processes > 1 or hardware.strategy in ZERO else 0


def sharded(hardware: HardwareSettings) -> bool:
    """Whether no process holds all weights (ZeRO-3)."""
    return hardware.strategy in ZERO and ZERO[hardware.strategy][0] == 3


def check_hardware(hardware: HardwareSettings) -> None:
    """ConfigError for a profile that cannot train on this machine."""
    closed = {"accelerator": ACCELERATORS, "strategy": STRATEGIES, "precision": PRECISIONS}
    for name, choices in closed.items():
        if (given := getattr(hardware, name)) not in choices:
            raise unknown_name(f"hardware.{name}", given, choices)
    if hardware.strategy in ZERO and importlib.util.find_spec("deepspeed") is None:
        raise ConfigError(
            f"hardware.strategy={hardware.strategy} needs DeepSpeed: pip install 'robustops[deepspeed]', or "
            "choose hardware.strategy=ddp"
        )
    if hardware.accelerator == "gpu" and torch.cuda.device_count() < hardware.devices:
        raise ConfigError(
            f"hardware={hardware.name} asks for {hardware.devices} CUDA devices a machine, here are "
            f"{torch.cuda.device_count()}; set hardware.devices, or choose hardware=cpu or cpu_deepspeed"
        )


def device_of(hardware: HardwareSettings) -> torch.device:
    """The device of this process; the CPU where there is no other."""
    if hardware.accelerator != "gpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def tell_deepspeed(hardware: HardwareSettings) -> None:
    """Which accelerator DeepSpeed takes. Libraries import it unasked, and it looks when it is imported."""
    if hardware.accelerator == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"


def check_share(key: str, count: int, hardware: HardwareSettings) -> None:
    """Whether every process has something to train on in each step.

    Raises:
        ConfigError: `count`, the trajectories or groups that `key` asks for, are fewer than processes.
    """
    processes = hardware.devices * hardware.num_nodes
    if count < processes:
        raise ConfigError(
            f"{key}={count} leaves some of the {processes} processes of hardware={hardware.name} without "
            f"work in every step; set it to {processes} or more, or use fewer devices"
        )
