from __future__ import annotations

import dataclasses

import pytest
import yaml

from robustops.bench.campaign.designs import designs
from robustops.bench.campaign.layout import MODES
from robustops.bench.campaign.plan import fault_overrides, planned
from robustops.bench.campaign.strengths import PATH, entry, frozen, guessed, injection, written
from robustops.bench.run_faults.catalog import all_mechanisms
from robustops.bench.run_faults.spec import RunFaultSpec
from robustops.errors import ConfigError

MECHANISMS = [(fault.name, info) for fault, info in all_mechanisms() if not info.needs_critic]


@pytest.mark.parametrize("mode", MODES)
def test_every_mechanism_has_values_that_an_injection_takes(mode):
    for fault, info in MECHANISMS:
        values = injection(fault, info.name, mode)
        assert values["unit"] is None or values["unit"] in info.units
        unit = values["unit"] or info.units[0]
        spec = RunFaultSpec(fault, info.name, **{**values, "unit": unit}, onset=3)
        assert spec.level(40) > 0 and spec.probability > 0
        assert (spec.ramp > 0) == (mode == "ramp")
        if mode == "intermittent":
            assert 0.25 <= spec.probability <= 0.4
        assert fault_overrides("run_fault", fault, info.name, values, 3, 1)


def test_the_committed_file_says_what_the_catalogue_says():
    body = frozen()
    by_name = {info.name: (fault, info) for fault, info in MECHANISMS}
    for name, found in body["mechanisms"].items():
        fault, info = by_name[name]
        assert (found["fault"], found["quantity"], found["direction"]) == (
            fault,
            info.quantity,
            info.direction,
        )
        assert tuple(found["modes"]) == MODES
    if body["measured"]:
        assert set(body["mechanisms"]) == set(by_name) and body["seeds"] and body["commit"]


def test_the_pilots_seeds_are_none_of_the_campaigns():
    from robustops.bench.campaign.trials import Trial

    pilots = {Trial(place, 40).planned().seed for place in range(12)}
    assert pilots.isdisjoint(run.seed for run in planned())


def test_guesses_stand_in_only_for_what_was_never_measured(tmp_path):
    path = tmp_path / "strengths.yaml"
    design = designs()[0]
    path.write_text(written({"measured": False, "mechanisms": {}}))
    assert injection(design.fault, design.mechanism, "weak", path) == guessed(design, "weak")
    other = tmp_path / "measured.yaml"
    other.write_text(written({"measured": True, "mechanisms": {}}))
    with pytest.raises(ConfigError, match="unknown mechanism with frozen strengths 'episode_spike'"):
        injection(design.fault, design.mechanism, "weak", other)
    share = dataclasses.replace(design, knob="probability", strength=0.6)
    assert guessed(share, "easy") == {"strength": 0.6, "probability": 1.0, "unit": None, "ramp": 0}
    assert guessed(share, "ramp") == {"strength": 0.6, "probability": 0.5, "unit": None, "ramp": 20}


def test_wrong_requests_and_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="belongs to run_fault=reward_spike, not to reward_collapse"):
        injection("reward_collapse", "episode_spike", "weak")
    with pytest.raises(ConfigError, match="unknown mode 'mild'; choose one of: delayed, easy"):
        injection("reward_spike", "episode_spike", "mild")
    with pytest.raises(ConfigError, match="stage=pilot"):
        frozen(tmp_path / "absent.yaml")
    (tmp_path / "list.yaml").write_text(yaml.safe_dump([1]))
    with pytest.raises(ConfigError, match="holds no strengths"):
        frozen(tmp_path / "list.yaml")
    assert entry("episode_spike", PATH)["knob"] == "strength"
