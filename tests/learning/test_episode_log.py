"""The episode log of a real fit: what it holds, and that a fit with it is the fit without it."""

from __future__ import annotations

import json

import pytest

from robustops.learning.data import RolloutTicket, StepData
from robustops.learning.episode_log import EpisodeLog
from robustops.learning.hooks import NO_TRAINING_HOOKS, HooksCallback
from robustops.monitor.episodes import read_episodes
from tests.bench.run_faults.support import Kept, fit, parts, weights_of
from tests.learning.support import Metrics, quiet_trainer

STEPS, COUNT = 3, 4


def logged_fit(folder, *, steps=STEPS, resume=None, save=None):
    """A fit of the toy domain with the log; returns the trainer's module and metrics."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    module, rollout = parts(NO_TRAINING_HOOKS, expert=True)
    metrics, kept = Metrics(), Kept()
    log = EpisodeLog(folder / "episodes.jsonl", COUNT, 3, lambda: rollout.sampled)
    callbacks = [log, rollout, HooksCallback(NO_TRAINING_HOOKS), metrics, kept]
    if save is not None:
        callbacks.append(ModelCheckpoint(save, every_n_train_steps=1, save_top_k=-1, filename="{step}"))
    trainer = quiet_trainer(folder, *callbacks, enable_checkpointing=save is not None)
    trainer.fit(module, datamodule=StepData(steps, RolloutTicket), ckpt_path=resume, weights_only=False)
    return module, metrics, kept


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logged")
    return folder, *logged_fit(folder, save=folder / "checkpoints")


def test_the_log_changes_nothing_of_the_fit(logged, tmp_path):
    _, module, metrics, kept = logged
    plain = fit(tmp_path, expert=True)
    assert [json.dumps({k: repr(v) for k, v in step.items()}) for step in metrics.steps] == plain.telemetry
    assert kept.steps == plain.episodes
    mine = weights_of(module.model)
    assert all(mine[name].equal(weight) for name, weight in plain.weights.items())


def test_it_holds_so_many_episodes_a_step_as_they_were_trained_on(logged):
    folder, _, _, kept = logged
    rows = read_episodes(folder / "episodes.jsonl")
    assert [row["step"] for row in rows] == [step for step in range(1, STEPS + 1) for _ in range(COUNT)]
    for row in rows:
        assert row["length"] == len(row["tokens"])
        trained = kept.steps[row["step"] - 1]
        if not row["trained"]:
            assert row["advantage"] is None
            continue
        alike = [e for e in trained if e.case_id == row["case_id"]]
        episode = alike[row["member"]]
        assert row["tokens"] == [i for i, m in zip(episode.token_ids, episode.loss_mask, strict=True) if m]
        assert row["reward"] == episode.reward_parts.to_dict() and row["stop"] == episode.stop


def test_advantages_are_those_of_the_episode(logged):
    """Within a group the better episode has the larger advantage; equal rewards have equal ones."""
    folder, module, _, _ = logged
    assert len(module.advantages) == 6, "two groups of three"
    rows = [row for row in read_episodes(folder / "episodes.jsonl") if row["trained"]]
    assert rows and any(row["advantage"] != 0 for row in rows)
    pairs = [(a, b) for a in rows for b in rows if (a["step"], a["group"]) == (b["step"], b["group"])]
    for one, other in pairs:
        if one["reward"]["progress"] == other["reward"]["progress"] and one["reward"] == other["reward"]:
            assert one["advantage"] == pytest.approx(other["advantage"])
        elif all(one["reward"][part] >= other["reward"][part] for part in one["reward"]):
            assert one["advantage"] > other["advantage"]


def test_a_resumed_fit_goes_on_with_the_log(logged, tmp_path):
    folder, *_ = logged
    whole = (folder / "episodes.jsonl").read_text()
    (tmp_path / "episodes.jsonl").write_text(whole)  # two steps further than the checkpoint
    checkpoint = next(p for p in (folder / "checkpoints").glob("*step=1.ckpt"))
    logged_fit(tmp_path, resume=checkpoint)
    assert (tmp_path / "episodes.jsonl").read_text() == whole
