from __future__ import annotations

import json
import time

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from robustops.learning.data import RolloutTicket, StepData
from robustops.learning.optimisation import PolicyModule, adamw, update
from robustops.learning.telemetry_callback import TelemetryCallback
from robustops.monitor.telemetry import StepRecord, TelemetryWriter, read_telemetry
from robustops.tracking.run_store import RunStore
from tests.learning.support import group_of, made_episode, quiet_trainer

FACTS = {"schema_version": 1}


class Stepper(PolicyModule):
    """Steps with metrics that follow from the step's number; stops before `stop_at`."""

    def __init__(self, stage: str, stop_at: int = 99) -> None:
        self.stage = stage
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.stop_at = stop_at

    def configure_optimizers(self):
        return adamw(self, 0.1, 0.0, 0, None)

    def training_step(self, ticket, batch_idx):
        if ticket.step == self.stop_at:
            raise RuntimeError("stopped")
        time.sleep(0.002)
        update(self, 1.0)
        self.keep_record({"loss": ticket.step / 2, "odd": float("nan") if ticket.step == 1 else 1.0}, FACTS)


@pytest.fixture
def files(tmp_path):
    with TelemetryWriter(tmp_path / "telemetry.jsonl") as telemetry, RunStore(tmp_path / "run.db") as store:
        yield tmp_path, telemetry, store


def train(files, steps, stage="grpo", *, stop_at=99, resume=False, groups=None, every=2, logger=False):
    folder, telemetry, store = files
    callback = TelemetryCallback(telemetry, store, groups)
    saver = ModelCheckpoint(
        dirpath=folder / stage, filename="last", every_n_train_steps=every, enable_version_counter=False
    )
    trainer = quiet_trainer(folder, callback, saver, enable_checkpointing=True, logger=logger)
    path = str(folder / stage / "last.ckpt") if resume else None
    data = StepData(steps, RolloutTicket)
    trainer.fit(Stepper(stage, stop_at), datamodule=data, ckpt_path=path, weights_only=False)
    return trainer


def test_every_step_is_one_line_and_one_row(files):
    folder, _, store = files
    train(files, 4)
    lines = (folder / "telemetry.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    assert json.loads(lines[1])["metrics"] == {"loss": 0.5, "odd": "NaN"}, "not finite is kept as a fact"
    records, rows = read_telemetry(folder / "telemetry.jsonl"), store.steps("grpo")
    assert [row["step"] for row in rows] == [record.step for record in records]
    for row, record in zip(rows, records, strict=True):
        assert record.stage == row["stage"] == "grpo" and record.facts == FACTS
        assert str(row["metrics"]) == str(dict(record.metrics))


def test_wall_clock_is_in_the_database_only(files):
    folder, _, store = files
    train(files, 2)
    seconds = [row["seconds"] for row in store.steps("grpo")]
    assert all(0.002 <= value < 5 for value in seconds)
    text = (folder / "telemetry.jsonl").read_text()
    assert "second" not in text and "time" not in text


def test_sampled_episodes_are_stored_with_their_step(files):
    _, _, store = files
    made = [made_episode([(2, 5)], 8, seed=n, index=n) for n in range(4)]
    steps = iter([[group_of(*made[:2])], [group_of(*made[2:3]), group_of(*made[3:])], []])
    train(files, 3, groups=lambda: next(steps))
    rows = store.episodes(stage="grpo")
    assert [(row["step"], row["attempt"]) for row in rows] == [(1, 0), (1, 1), (2, 2), (2, 3)]
    assert {row["policy"] for row in rows} == {"grpo"}


def test_a_stage_without_rollouts_stores_no_episodes(files):
    train(files, 2, stage="sft")
    assert files[2].episodes() == [] and len(files[2].steps("sft")) == 2


def test_what_came_after_the_checkpoint_is_taken_back(files):
    folder, telemetry, store = files
    telemetry.write(StepRecord(step=9, stage="sft"))
    store.add_step("sft", 9, {}, 0.1)

    def groups():
        return [group_of(made_episode([(2, 5)], 8, seed=1))]

    with pytest.raises(RuntimeError, match="stopped"):
        train(files, 6, stop_at=3, groups=groups)  # checkpoint at step 2, line 3 written
    path = folder / "telemetry.jsonl"
    assert [r.step for r in read_telemetry(path)] == [9, 1, 2, 3]
    train(files, 6, resume=True, groups=groups)
    assert [(r.stage, r.step) for r in read_telemetry(path)] == [
        ("sft", 9),
        *(("grpo", n) for n in range(1, 7)),
    ]
    assert [row["step"] for row in store.steps("grpo")] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in store.episodes(stage="grpo")] == [1, 2, 3, 4, 5, 6]
    assert len(store.steps("sft")) == 1, "other stages stay"


def test_loggers_get_the_metrics_under_the_stages_name(files):
    folder, *_ = files
    train(files, 2, logger=CSVLogger(folder, name="csv", version=0))
    header, *rows = (folder / "csv" / "version_0" / "metrics.csv").read_text().splitlines()
    assert {"grpo/loss", "grpo/odd", "step"} <= set(header.split(","))
    assert len(rows) == 2
