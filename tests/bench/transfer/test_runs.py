"""Real runs of both sets, cut short."""

from __future__ import annotations

import dataclasses

import pytest

from robustops.bench.campaign.plan import PlannedRun
from robustops.bench.campaign.worker import run_one
from robustops.bench.run_faults.exposure import read_exposure
from robustops.bench.transfer.plan import transfer_plan
from robustops.bench.transfer.policy import WithPolicy
from robustops.bench.transfer.tried import panel_of, read_tried
from robustops.bench.transfer.trl_make import make_trl
from robustops.commands.composition import composed_training
from robustops.errors import DatasetError
from robustops.resources import data_dir
from tests.bench.transfer.drawn import write_trl_set

SMALL = ("grpo.groups=2", "grpo.group_size=4", "domain.train=20")


def short(run: PlannedRun, *more: str) -> PlannedRun:
    return dataclasses.replace(run, overrides=(*run.overrides, *SMALL, *more), seed=7)


@pytest.mark.slow
def test_trl_runs_are_equal_until_a_fault_sets_in(tmp_path):
    pytest.importorskip("trl")
    plan = transfer_plan("trl", healthy=1, steps=3, strength="full")
    faulty = next(run for run in plan if run.fault == "reward_spike")
    runs = [short(plan[0]), short(faulty, "run_fault.onset=3", "run_fault.probability=1.0")]
    for run in runs:
        run_one(run, tmp_path, composed_training, make_trl)
    control, struck = read_tried(tmp_path, runs)
    assert control.panel.steps.tolist() == struck.panel.steps.tolist() == [1, 2, 3]
    for name in ("reward_mean", "entropy", "grad_norm", "kl_ref_k3", "len_mean", "rewards.progress.mean"):
        assert control.panel[name][:2].tolist() == struck.panel[name][:2].tolist(), name
    assert struck.onset == 3 and control.onset == 0
    gap = struck.panel["rewards.progress.mean"][2] - control.panel["rewards.progress.mean"][2]
    assert gap == pytest.approx(10.0, abs=1e-3)  # every episode's progress, at full strength
    place = tmp_path / "runs" / runs[1].run_id
    assert [line["touched"] for line in read_exposure(place / "exposure.jsonl")] == [0, 0, 8]
    kept = {path.name for path in place.iterdir()}
    assert kept == {"trainer_state.json", "exposure.jsonl", "planned.json", "cost.json"}


@pytest.mark.slow
def test_an_itsm_run_has_our_telemetry(tmp_path):
    plan = transfer_plan("itsm", healthy=0, steps=2, strength="full")
    run = next(run for run in plan if run.fault == "reward_spike")
    fault = ("run_fault.onset=2", "run_fault.probability=1.0")
    run = short(run, *fault, "model.max_turns=2", "model.answer_tokens=8", "domain.train=60")
    compose = WithPolicy(composed_training, data_dir() / "models" / "tiny")
    run_one(run, tmp_path, compose)
    (tried,) = read_tried(tmp_path, [run])
    assert tried.panel.steps.tolist() == [1, 2] and tried.onset == 2
    progress = tried.panel["rewards.progress.mean"]
    assert progress[1] - progress[0] == pytest.approx(10.0, abs=1.0)


def test_rows_of_trl_are_numbered_by_steps_of_ours(tmp_path):
    plan = write_trl_set(tmp_path, healthy=1, steps=5)
    tried = list(read_tried(tmp_path, [*plan, transfer_plan("itsm", healthy=1)[0]]))  # the last is not there
    assert len(tried) == 17 and tried[0].panel.steps.tolist() == [1, 2, 3, 4, 5]
    assert not tried[0].faulty and tried[1].faulty and tried[1].onset == 0


def test_a_run_without_a_log_is_told(tmp_path):
    with pytest.raises(DatasetError, match="make the run again"):
        panel_of(tmp_path)
