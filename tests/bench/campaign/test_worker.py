"""One planned run: what its folder holds, and that runs do not see each other."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import torch

from robustops.bench.campaign.folders import complete, cost_of, folder_of, steps_of
from robustops.bench.campaign.plan import PlannedRun, planned
from robustops.bench.campaign.shifts import shift_overrides
from robustops.bench.campaign.worker import run_one
from robustops.bench.run_faults.exposure import read_exposure
from robustops.commands.composition import composed_training
from robustops.errors import ConfigError
from tests.bench.campaign.support import small, small_runs


def telemetry(campaign, run):
    return (folder_of(campaign, run.run_id) / "telemetry.jsonl").read_bytes()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A campaign with a control and a faulty run, and these runs."""
    campaign, runs = tmp_path_factory.mktemp("campaign"), small_runs(2)
    for run in runs:
        run_one(run, campaign, composed_training)
    return campaign, runs


def test_a_folder_holds_what_the_campaign_keeps_and_no_weights(made):
    campaign, (control, faulty) = made
    kept = {"telemetry.jsonl", "episodes.jsonl", "planned.json", "run.json", "cost.json"}
    assert {path.name for path in folder_of(campaign, control.run_id).iterdir()} == kept
    assert {path.name for path in folder_of(campaign, faulty.run_id).iterdir()} == kept | {"exposure.jsonl"}
    assert steps_of(campaign, control.run_id) == 2 and complete(campaign, [control, faulty]) == [
        control,
        faulty,
    ]
    seconds, cpu = cost_of(campaign, control.run_id)
    assert 0 < seconds < 600 and 0 < cpu < 600
    assert [path.name for path in (campaign / "runs").iterdir() if path.name.startswith(".")] == []


def test_a_faulty_run_equals_its_control_until_the_fault_sets_in(made):
    campaign, (control, faulty) = made
    plain, struck = (telemetry(campaign, run).splitlines() for run in (control, faulty))
    assert plain[0] == struck[0] and plain[1] != struck[1]
    exposure = read_exposure(folder_of(campaign, faulty.run_id) / "exposure.jsonl")
    assert [line["step"] for line in exposure if line["touched"]] == [2]


def test_a_run_that_is_there_is_left_alone(made):
    campaign, (control, _) = made
    before = (folder_of(campaign, control.run_id) / "cost.json").stat().st_mtime_ns
    run_one(control, campaign, composed_training)
    assert (folder_of(campaign, control.run_id) / "cost.json").stat().st_mtime_ns == before


def test_a_run_leaves_nothing_behind_that_another_would_see(made, tmp_path):
    """After other runs, with other global generators, in the same process: the same bytes."""
    campaign, (control, faulty) = made
    torch.manual_seed(123)
    run_one(faulty, tmp_path, composed_training)
    run_one(control, tmp_path, composed_training)
    for run in (control, faulty):
        assert telemetry(tmp_path, run) == telemetry(campaign, run)


@pytest.mark.slow
def test_a_fresh_process_makes_the_same_run(made, tmp_path):
    campaign, runs = made
    code = (
        "from pathlib import Path; import sys, torch; torch.set_num_threads(1)\n"
        "from robustops.bench.campaign.worker import run_one\n"
        "from robustops.commands.composition import composed_training\n"
        "from tests.bench.campaign.support import small_runs\n"
        "run_one(small_runs(2)[1], Path(sys.argv[1]), composed_training)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
    assert telemetry(tmp_path, runs[1]) == telemetry(campaign, runs[1])


def test_a_run_that_raises_leaves_no_folder(tmp_path):
    run = dataclasses.replace(planned(seeds=1)[0], overrides=("grpo.steps=none",))
    with pytest.raises(ConfigError, match=r"grpo\.steps"):
        run_one(run, tmp_path, composed_training)
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("shift", ["lr_decay", "curriculum", "prompt_mix", "resume"])
def test_a_benign_shift_begins_at_its_onset_and_a_resumed_run_is_exact(made, tmp_path, shift):
    campaign, (control, _) = made
    run = PlannedRun(
        "0" * 12,
        0,
        "benign",
        shift=shift,
        onset=2,
        seed=control.seed,
        overrides=(*control.overrides, *shift_overrides(shift, 2)),
    )
    run_one(run, tmp_path, composed_training)
    plain, own = telemetry(campaign, control).splitlines(), telemetry(tmp_path, run).splitlines()
    assert len(own) == 2 and own[0] == plain[0]
    assert (own[1] == plain[1]) == (shift == "resume")
    if shift == "lr_decay":
        assert json.loads(own[1])["metrics"]["lr"] < json.loads(plain[1])["metrics"]["lr"]


def test_a_folder_of_another_plan_is_refused_and_says_what_differs(made):
    campaign, (control, _) = made
    other = small(control, "grpo.kl=0.5")
    with pytest.raises(ConfigError, match=r"was made with overrides=.*campaign=FOLDER"):
        complete(campaign, [other])
