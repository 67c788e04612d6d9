from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from robustops.bench.run_faults.catalog import CATALOG, all_mechanisms, chosen, fault_type
from robustops.bench.run_faults.exposure import NAME, read_exposure
from robustops.bench.run_faults.injector import MECHANISMS, spec_of, training_hooks
from robustops.bench.run_faults.spec import UNITS
from robustops.errors import ConfigError
from robustops.learning.combined_hooks import CombinedHooks
from robustops.learning.hooks import NO_TRAINING_HOOKS
from robustops.resources import conf_dir
from robustops.settings import (
    RUN_FAULTS,
    GRPOSettings,
    HardwareSettings,
    RunFaultSettings,
    SamplerSettings,
    TrainSettings,
)
from robustops.validation import validate

CODES = (
    "RF-1 RF-2 RF-3 PG-1 PG-2 PG-3S PG-3L OD-1 OD-2 OD-3 CA-1 CA-2 CA-3 TE-1 TE-2 TE-3"  # the paper's table I
)
REFUSED = [name for name, kind in MECHANISMS.items() if kind.reads_logits]


def test_the_catalogue_has_the_types_of_the_paper_in_its_order():
    assert tuple(CATALOG) == RUN_FAULTS
    assert [fault.code for fault in CATALOG.values()] == CODES.split()
    assert len({fault.family for fault in CATALOG.values()}) == 5


def test_every_type_has_two_mechanisms_and_a_knob_that_works_against_it():
    names = [mechanism.name for _, mechanism in all_mechanisms()]
    assert len(names) == len(set(names)) and set(names) == set(MECHANISMS)
    for fault in CATALOG.values():
        assert len(fault.mechanisms) >= 2 and fault.signature
        assert any(mechanism.countered_by for mechanism in fault.mechanisms), fault.name


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_what_is_said_of_a_mechanism_is_true_of_it(name):
    (info,) = [mechanism for _, mechanism in all_mechanisms() if mechanism.name == name]
    assert info.needs_logits == MECHANISMS[name].reads_logits
    assert (info.site == "sync") == MECHANISMS[name].holds_weights
    assert info.units and set(info.units) <= set(UNITS)
    for counter in info.countered_by:
        place = TrainSettings()
        *sections, key = counter.key.split(".")
        for section in sections:
            place = getattr(place, section)
        assert getattr(place, key) != counter.value, f"{counter.key} is {counter.value} by default"
        dataclasses.replace(place, **{key: counter.value})


@pytest.mark.parametrize("name", RUN_FAULTS)
def test_every_choice_of_the_group_names_the_main_mechanism(name):
    written = yaml.safe_load((conf_dir() / "run_fault" / f"{name}.yaml").read_text(encoding="utf-8"))
    settings = RunFaultSettings(**written)
    validate(settings)
    fault, mechanism = chosen(settings)
    assert (fault.name, mechanism) == (name, fault.mechanisms[0])
    assert spec_of(settings).unit == mechanism.units[0]
    assert {path.stem for path in (conf_dir() / "run_fault").glob("*.yaml")} == {"none", *RUN_FAULTS}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "reward_spke"}, "choose one of: none, reward_spike"),
        ({"name": "reward_spike", "mechanism": "x"}, "episode_spike or component_scale or uniform_spike"),
        ({"name": "reward_spike", "unit": "token"}, "strikes by episode or group or step"),
        ({"name": "reward_spike", "strength": 2.0}, "strength is 2.0; it must be between 0 and 1"),
        ({"name": "reward_spike", "onset": 0}, "onset is 0; it must be at least 1"),
        ({"name": "reward_spike", "onset": 4, "end": 3}, "leaves no step to strike"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        validate(TrainSettings(run_fault=RunFaultSettings(**values)))


def test_an_unknown_type_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match="unknown run fault 'x'; choose one of: advantage_instability"):
        fault_type("x")


def hooks_of(folder: Path, name: str, mechanism: str | None = None, **sections):
    run_fault = RunFaultSettings(name, mechanism)
    return training_hooks(TrainSettings(run_fault=run_fault, **sections), folder)


def test_without_a_fault_there_are_no_hooks_and_no_log(tmp_path):
    assert hooks_of(tmp_path, "none") is NO_TRAINING_HOOKS
    hooks = hooks_of(tmp_path, "reward_spike")
    assert type(hooks) is MECHANISMS["episode_spike"]
    hooks.begin(0)
    hooks.end_step(1)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("sampler", ["vllm", "vllm_server"])
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_sampler_without_logits_is_refused_with_another_mechanism(tmp_path, sampler, name):
    (fault,) = [fault for fault, mechanism in all_mechanisms() if mechanism.name == name]
    with pytest.raises(ConfigError, match=r"choose run_fault\.mechanism=(\w+)") as refused:
        hooks_of(tmp_path, fault.name, name, sampler=SamplerSettings(sampler))
    other = str(refused.value).split("run_fault.mechanism=")[1].split(" ")[0].rstrip(",")
    assert hooks_of(tmp_path, fault.name, other, sampler=SamplerSettings(sampler))
    assert hooks_of(tmp_path, fault.name, name)


def test_runs_that_a_fault_cannot_be_injected_into_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"stages is \[sft\]; add grpo"):
        hooks_of(tmp_path, "reward_spike", stages=["sft"])
    with pytest.raises(ConfigError, match="works in one process"):
        hooks_of(tmp_path, "reward_spike", hardware=HardwareSettings("gpu_2", devices=2, strategy="ddp"))
    with pytest.raises(ConfigError, match="works in one process"):
        hooks_of(tmp_path, "reward_spike", hardware=HardwareSettings(strategy="deepspeed_stage_2"))
    with pytest.raises(ConfigError, match=r"grpo\.sync_guard=report"):
        hooks_of(tmp_path, "update_freeze", "stale_sampler")
    for guard in ("report", "resync"):
        assert hooks_of(tmp_path, "update_freeze", "stale_sampler", grpo=GRPOSettings(sync_guard=guard))


# --- two at once ----------------------------------------------------------------------------------
def both(first: RunFaultSettings, second: RunFaultSettings) -> TrainSettings:
    return TrainSettings(run_fault=first, second_run_fault=second)


def test_two_faults_are_two_injectors_with_a_log_each(tmp_path):
    first, second = RunFaultSettings("reward_spike", seed=4), RunFaultSettings("kl_explosion", strength=0.5)
    hooks = training_hooks(both(first, second), tmp_path)
    assert isinstance(hooks, CombinedHooks)
    assert [type(one) for one in hooks.sets] == [
        MECHANISMS[name] for name in ("episode_spike", "aggressive_updates")
    ]
    hooks.begin(0)
    hooks.end_step(1)
    lines = [read_exposure(tmp_path / name) for name in ("exposure.jsonl", "exposure_2.jsonl")]
    assert [line["fault"] for (line,) in lines] == ["reward_spike", "kl_explosion"]
    assert [one.spec.seed for one in hooks.sets] == [4, 0] and hooks.sets[1].spec.strength == 0.5


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (("none",), ("reward_spike",), "run_fault is none; choose run_fault=reward_spike"),
        (("reward_spike",), ("reward_spike", "component_scale"), "both reward_spike; choose another type"),
        (("kl_explosion",), ("update_freeze",), "push update_norm_rel in opposite directions"),
        (("update_freeze",), ("kl_explosion",), r"skipped_updates \(run_fault=update_freeze\)"),
        (("reward_spike",), ("kl_explosion", "x"), "has no mechanism 'x'"),
    ],
)
def test_faults_that_make_no_two_are_refused(tmp_path, first, second, message):
    settings = both(RunFaultSettings(*first), RunFaultSettings(*second))
    with pytest.raises(ConfigError, match=message):
        validate(settings)
    with pytest.raises(ConfigError, match=message):
        training_hooks(settings, tmp_path)


def test_what_a_run_cannot_have_is_refused_of_the_second_fault_too(tmp_path):
    settings = both(RunFaultSettings("reward_spike"), RunFaultSettings("empty_response"))
    with pytest.raises(ConfigError, match="changes logits, which sampler=vllm does not offer"):
        training_hooks(dataclasses.replace(settings, sampler=SamplerSettings("vllm")), tmp_path)
