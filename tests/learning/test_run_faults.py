"""A run fault in the whole pipeline: `run_training` with an injector, held against the run without one."""

from __future__ import annotations

import json

import pytest

from robustops.bench.run_faults.exposure import NAME, read_exposure
from robustops.bench.run_faults.injector import training_hooks
from robustops.learning.pipeline import run_training
from robustops.settings import RunFaultSettings
from tests.learning.run_folders import telemetry
from tests.learning.small_run import CONFIG, train_settings

ONSET = 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "mechanism"), [("reward_spike", "episode_spike"), ("tool_call_error", "tool_outage")]
)
def test_a_faulty_run_is_that_without_the_fault_up_to_its_onset(
    base_model, finished, tmp_path, fault, mechanism
):
    healthy, _ = finished
    run_fault = RunFaultSettings(fault, mechanism, onset=ONSET)
    settings = train_settings(base_model, run_fault=run_fault)
    run_training(settings, tmp_path, CONFIG, hooks=training_hooks(settings, tmp_path))
    mine, theirs = telemetry(tmp_path).splitlines(), telemetry(healthy).splitlines()
    assert len(mine) == len(theirs) == 5, "two steps of SFT, three of GRPO"
    assert (
        mine[: 2 + ONSET - 1] == theirs[: 2 + ONSET - 1] and mine[2 + ONSET - 1 :] != theirs[2 + ONSET - 1 :]
    )
    exposure = read_exposure(tmp_path / NAME)
    assert [(line["step"], line["touched"] > 0) for line in exposure] == [(1, False), (2, True), (3, True)]
    assert not (healthy / NAME).exists()
    for line in mine:
        assert not set(json.loads(line)["metrics"]) & {"eligible", "touched", "level"}
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["settings"]["run_fault.name"] == fault
