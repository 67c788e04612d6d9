from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint

from robustops.learning.data import (
    Demonstration,
    DemonstrationSchedule,
    RolloutTicket,
    StepData,
    StepDataset,
    demonstration,
)
from tests.learning.support import made_episode, quiet_trainer


def demonstrations(count: int) -> list[Demonstration]:
    """Each is told from the others by its first token."""
    return [
        Demonstration((100 + n, *range(n % 5 + 1)), (False,) + (True,) * (n % 5 + 1), ((1, n % 5 + 2),))
        for n in range(count)
    ]


def names(batch) -> list[int]:
    return [d.token_ids[0] - 100 for d in batch.demonstrations]


@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 3))
def test_every_epoch_is_a_permutation(count, size, seed):
    schedule = DemonstrationSchedule(demonstrations(count), size, budget=20, seed=seed)
    steps = -(-3 * count // schedule.size)
    seen = [name for step in range(steps) for name in names(schedule.step(step))]
    for epoch in range(3):
        assert sorted(seen[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_epochs_and_seeds_have_orders_of_their_own():
    schedule = DemonstrationSchedule(demonstrations(10), 10, budget=50, seed=1)
    orders = [names(schedule.step(step)) for step in range(3)]
    other = names(DemonstrationSchedule(demonstrations(10), 10, budget=50, seed=2).step(0))
    assert len({tuple(order) for order in [*orders, other]}) == 4


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_a_step_depends_on_its_number_only(order):
    fresh = [DemonstrationSchedule(demonstrations(7), 3, budget=9, seed=4).step(step) for step in order]
    used = DemonstrationSchedule(demonstrations(7), 3, budget=9, seed=4)
    for step, expected in zip(order, fresh, strict=True):
        batch = used.step(step)
        assert batch.step == step and batch.demonstrations == expected.demonstrations
        for one, two in zip(batch.parts, expected.parts, strict=True):
            assert torch.equal(one.token_ids, two.token_ids) and torch.equal(one.rows, two.rows)


def test_micro_batches_hold_each_demonstration_of_the_step_once():
    schedule = DemonstrationSchedule(demonstrations(9), 6, budget=12, seed=0)
    batch = schedule.step(0)
    rows = [row for part in batch.parts for row in part.rows.tolist()]
    assert sorted(rows) == list(range(6)) and len(batch.parts) > 1
    for part in batch.parts:
        for place, row in enumerate(part.rows.tolist()):
            wanted = batch.demonstrations[row]
            kept = part.attention_mask[place]
            assert tuple(part.token_ids[place][kept].tolist()) == wanted.token_ids
            assert tuple(part.loss_mask[place][kept].tolist()) == wanted.loss_mask


def test_processes_share_the_micro_batches_of_a_step():
    """All know the whole step; each demonstration is in a micro-batch of one of them."""
    batches = [
        DemonstrationSchedule(demonstrations(9), 5, budget=8, seed=0, world=(rank, 2)).step(1)
        for rank in (0, 1)
    ]
    whole = DemonstrationSchedule(demonstrations(9), 5, budget=8, seed=0).step(1)
    assert all(batch.demonstrations == whole.demonstrations for batch in batches)
    assert len(batches[0].parts) == len(batches[1].parts)
    rows = [row for batch in batches for part in batch.parts for row in part.rows.tolist()]
    assert sorted(row for row in rows if row >= 0) == list(range(5))


def test_a_batch_larger_than_the_data_is_all_of_it_once():
    schedule = DemonstrationSchedule(demonstrations(3), 8, budget=50, seed=0)
    assert sorted(names(schedule.step(0))) == [0, 1, 2]


def test_a_dataset_that_is_iterated_again_goes_on_where_training_is():
    done = 0
    dataset = StepDataset(5, lambda: done, RolloutTicket)
    assert [ticket.step for ticket in dataset] == [0, 1, 2, 3, 4]
    done = 3
    assert [ticket.step for ticket in dataset] == [3, 4] and len(dataset) == 5
    done = 5
    assert list(dataset) == []


class Recorder(LightningModule):
    """Steps an optimiser by hand and notes which item it was given at which global step."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[tuple[int, int]] = []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return batch

    def training_step(self, ticket, batch_idx):
        self.seen.append((ticket.step, self.global_step))
        if ticket.step == 3 and not hasattr(self, "resumed"):
            raise RuntimeError("stopped")
        self.weight.grad = torch.ones(1)
        self.optimizers().step()


def saver(folder):
    return ModelCheckpoint(
        dirpath=folder, filename="last", every_n_train_steps=2, enable_version_counter=False
    )


def test_step_data_starts_at_the_global_step_and_owes_what_is_left(tmp_path):
    first = Recorder()
    trainer = quiet_trainer(tmp_path, saver(tmp_path), enable_checkpointing=True)
    with pytest.raises(RuntimeError, match="stopped"):
        trainer.fit(first, datamodule=StepData(6, RolloutTicket))
    assert first.seen == [(0, 0), (1, 1), (2, 2), (3, 3)]
    second = Recorder()
    second.resumed = True
    trainer = quiet_trainer(tmp_path, saver(tmp_path), enable_checkpointing=True)
    trainer.fit(
        second,
        datamodule=StepData(6, RolloutTicket),
        ckpt_path=str(tmp_path / "last.ckpt"),
        weights_only=False,
    )
    assert second.seen == [(2, 2), (3, 3), (4, 4), (5, 5)] and trainer.global_step == 6
    assert second.weight.item() == -6.0, "weights go on from the checkpoint"


def test_step_data_without_a_trainer_begins_at_zero():
    assert [ticket.step for ticket in StepData(2, RolloutTicket).train_dataloader()] == [0, 1]


def test_tickets_do_not_share_their_groups():
    one, two = RolloutTicket(0), RolloutTicket(1)
    one.metrics["x"] = 1.0
    assert two.groups == [] and two.metrics == {}


def test_a_demonstration_trains_valid_turns_only():
    episode = made_episode([(2, 4), (5, 8), (9, 10)], 11, seed=1)
    made = demonstration(episode, [True, False, True])
    assert made.token_ids == episode.token_ids
    assert [place for place, kept in enumerate(made.loss_mask) if kept] == [2, 3, 9]
    assert made.decisions == ((2, 4), (9, 10))
    inherited = made_episode([(2, 4), (5, 8)], 9, seed=1, inherited=1)
    assert [p for p, kept in enumerate(demonstration(inherited, [True, True]).loss_mask) if kept] == [5, 6, 7]
    with pytest.raises(ValueError):
        demonstration(episode, [True])
