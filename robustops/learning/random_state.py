"""Global random generators that begin a stage with its seed and go on exactly after a resume.

Everything here draws from generators of its own (`robustops.seeding`). Layers, libraries and plugins may
still draw from the global ones: of Python, NumPy, torch and the process's CUDA device.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from robustops.errors import ConfigError
from robustops.learning.processes import gather_objects, world
from robustops.seeding import child_seed


class RandomState(Callback):
    """Seeds the global generators when a stage begins, saves them with it, and puts them back on a resume.

    Every process has generators of its own, and a checkpoint those of all processes. Let it be the last
    callback before those that save: the start of the others may draw numbers too. seed: of the stage.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._saved: list[dict[str, Any]] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rank, size = world()
        if self._saved is None:
            seed_generators(child_seed(self.seed, "process", rank))
            return
        if len(self._saved) != size:
            raise ConfigError(
                f"the checkpoint is of {len(self._saved)} processes, this run has {size}; resume with the "
                "same hardware.devices and hardware.num_nodes"
            )
        restore_generators(self._saved[rank])
        self._saved = None

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors. With several processes, all of them must call it."""
        return {"processes": [state for (state,) in gather_objects([generator_states()])]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict["processes"]


def seed_generators(seed: int) -> None:
    """Seed the global generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def generator_states() -> dict[str, Any]:
    """The global generators' states, in plain values and tensors."""
    kind, keys, *rest = np.random.get_state()
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, [int(key) for key in keys], *rest),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_generators(states: dict[str, Any]) -> None:
    """The inverse of `generator_states`."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())
