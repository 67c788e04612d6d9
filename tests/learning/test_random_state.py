"""What draws from the global generators goes on exactly after a resume."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest
import torch
from lightning import LightningModule
from lightning.pytorch.callbacks import Callback

from robustops.errors import ConfigError
from robustops.learning import random_state
from robustops.learning.checkpoints import Checkpoints, StageCheckpoint, StreamCheckpointIO
from robustops.learning.data import StepData
from robustops.learning.processes import World
from robustops.learning.random_state import RandomState, generator_states, restore_generators, seed_generators
from tests.learning.support import quiet_trainer


@pytest.fixture(autouse=True)
def _others_keep_their_state():
    states = generator_states()
    yield
    restore_generators(states)


def draw() -> tuple[float, ...]:
    """One number of each generator; `gauss` and `normal` keep half of a pair for the next call."""
    return (
        random.random(),
        random.gauss(0, 1),
        float(np.random.normal()),
        float(torch.rand(())),
        float(torch.randn(3)[2]),
    )


def test_states_come_back_exactly_also_through_a_file(tmp_path):
    seed_generators(3)
    draw()
    torch.save(generator_states(), tmp_path / "states")
    expected = [draw() for _ in range(3)]
    seed_generators(4)
    assert draw() not in expected
    restore_generators(torch.load(tmp_path / "states", weights_only=True))
    assert [draw() for _ in range(3)] == expected


def test_a_seed_fixes_every_generator():
    def drawn(seed):
        seed_generators(seed)
        return draw()

    assert drawn(2**62 + 1) == drawn(2**62 + 1)
    assert not set(drawn(1)) & set(drawn(2))


class Draws(LightningModule):
    """Keeps what its steps, and its data, draw."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[tuple[float, ...]] = []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def training_step(self, batch, batch_idx):
        self.seen.append((*batch, *draw()))
        self.optimizers().step()


class Noise(Callback):
    """Starting a stage draws numbers: a different count every time."""

    count = 0

    def on_train_start(self, trainer, pl_module):
        Noise.count += 1
        for _ in range(Noise.count):
            draw()


def fit(folder, stop, path=None, seed=5):
    checkpoints, module = Checkpoints(folder / "stage"), Draws()
    trainer = quiet_trainer(
        folder, Noise(), RandomState(seed), StageCheckpoint(checkpoints, 2),
        enable_checkpointing=True, plugins=[StreamCheckpointIO()],
    )  # fmt: skip

    def make(step):
        if step == stop:
            raise KeyError("killed")
        return draw()

    with contextlib.suppress(KeyError):
        trainer.fit(module, datamodule=StepData(6, make), ckpt_path=path, weights_only=False)
    return module.seen


@pytest.mark.parametrize("stop", [3, 4])
def test_random_numbers_restart_on_resume(tmp_path, stop):
    """T 37, T 38: layers, libraries and iter(DataLoader) draw from the global generators."""
    whole = fit(tmp_path / "whole", stop=None)
    assert len(set(whole)) == 6
    assert fit(tmp_path / "part", stop=stop) == whole[:stop]
    point = Checkpoints(tmp_path / "part" / "stage").recover(print)
    draw()
    assert fit(tmp_path / "part", None, point.path) == whole[point.step :]
    assert fit(tmp_path / "other", stop=None, seed=6)[0] != whole[0]


def test_every_process_gets_its_own_state_back(monkeypatch):
    states = []
    for rank in range(2):
        monkeypatch.setattr(random_state, "world", lambda rank=rank: World(rank, 2))
        RandomState(1).on_train_start(None, None)
        states.append(generator_states())
    first = [draw()]
    assert not torch.equal(states[0]["torch"], states[1]["torch"]), "processes draw different numbers"
    callback = RandomState(1)
    callback.load_state_dict({"processes": states})
    callback.on_train_start(None, None)
    assert [draw()] == first
    callback.load_state_dict({"processes": states[:1]})
    with pytest.raises(ConfigError, match=r"of 1 processes, this run has 2; .*hardware\.devices"):
        callback.on_train_start(None, None)
