"""Faults of a value head, in runs that have one."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from robustops.bench.run_faults.injector import training_hooks
from robustops.errors import ConfigError
from robustops.learning.stages import check_stages
from robustops.settings import GRPOSettings, HardwareSettings, RunFaultSettings, TrainSettings
from tests.bench.run_faults.support import NEEDS_CRITIC, ONSET, Fit, fit, injector
from tests.bench.run_faults.test_mechanisms import GROUP, OTHER
from tests.learning.support import same_weights


@pytest.fixture(scope="module")
def control(tmp_path_factory) -> Fit:
    return fit(tmp_path_factory.mktemp("control"), expert=False, critic=True)


def metric(run: Fit, name: str) -> list[float]:
    return [float(eval(line, {"nan": math.nan, "inf": math.inf})[name].strip("'")) for line in run.telemetry]


@pytest.mark.parametrize("name", sorted(NEEDS_CRITIC))
def test_before_its_onset_nothing_is_changed_and_a_step_later_the_values_are(tmp_path, control, name):
    faulty = fit(tmp_path, injector(tmp_path, name), expert=False, critic=True)
    assert faulty.same_until(control, ONSET) and faulty.telemetry != control.telemetry
    assert [line["touched"] > 0 for line in faulty.exposure] == [False, True, True]
    assert not same_weights(faulty.weights, control.weights)


@pytest.mark.parametrize("name", sorted(NEEDS_CRITIC))
def test_a_head_that_is_never_believed_does_no_harm(tmp_path, name):
    repaired = fit(tmp_path, injector(tmp_path, name), expert=False, critic=True, value_least_ev=1.5)
    control = fit(tmp_path / "b", expert=False, critic=True, value_least_ev=1.5)
    without = fit(tmp_path / "c", expert=False)
    assert any(line["touched"] for line in repaired.exposure)
    assert same_weights(repaired.weights, control.weights) and repaired.episodes == control.episodes
    assert same_weights(control.weights, without.weights), "and so the group means are what they were"


def test_a_resumed_head_goes_on_as_if_it_had_not_been_stopped(tmp_path, control):
    saved = tmp_path / "saved"
    whole = fit(tmp_path, expert=False, critic=True, save=saved)
    assert whole.telemetry == control.telemetry
    (middle,) = [path for path in saved.iterdir() if "step=2" in path.name]
    rest = fit(tmp_path, expert=False, critic=True, resume=middle)
    assert rest.telemetry == whole.telemetry[2:] and same_weights(rest.weights, whole.weights)


def test_targets_change_places_among_the_struck(tmp_path):
    targets = torch.arange(6.0)
    hooks = injector(tmp_path, "permuted_targets")
    given = hooks.on_value_targets(5, [GROUP, OTHER], targets)
    assert sorted(given.tolist()) == targets.tolist() != given.tolist()
    assert hooks.on_value_targets(1, [GROUP, OTHER], targets) is targets
    half = injector(tmp_path, "permuted_targets", probability=0.5).on_value_targets(
        5, [GROUP, OTHER], targets
    )
    assert sorted(half.tolist()) == targets.tolist()


def test_without_a_head_or_in_several_processes_it_is_refused(tmp_path):
    for name in NEEDS_CRITIC:
        settings = TrainSettings(run_fault=RunFaultSettings("value_mismatch", name))
        with pytest.raises(ConfigError, match=r"grpo\.value_head=true, or run_fault\.mechanism=swapped_base"):
            training_hooks(settings, tmp_path)
        assert training_hooks(dataclasses.replace(settings, grpo=GRPOSettings(value_head=True)), tmp_path)
    two = HardwareSettings("two", devices=2, strategy="ddp")
    with pytest.raises(ConfigError, match=r"value_head=true works in one process"):
        check_stages(TrainSettings(hardware=two, grpo=GRPOSettings(value_head=True)))
