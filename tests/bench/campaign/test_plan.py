"""The plan: counts, balance, ids that tell nothing, and the same run whatever part is asked for."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from robustops.bench.campaign.doubles import fault_pairs
from robustops.bench.campaign.layout import RUNS_OF_MODE, mechanisms_of, modes_of
from robustops.bench.campaign.plan import KINDS, PlannedRun, planned
from robustops.bench.campaign.shifts import SHIFTS
from robustops.bench.run_faults.catalog import CATALOG
from robustops.errors import ConfigError
from robustops.settings import RUN_FAULTS

PLAN = planned()
FAULTY = [run for run in PLAN if run.kind == "fault"]


def test_the_campaign_has_the_size_it_should_have():
    assert Counter(run.kind for run in PLAN) == {"fault": 768, "healthy": 260, "benign": 60, "double": 40}
    assert Counter(run.shift for run in PLAN if run.kind == "benign") == dict.fromkeys(SHIFTS, 15)


@pytest.mark.parametrize("fault", RUN_FAULTS)
def test_every_type_has_one_run_in_each_base_group_20_easy_and_7_of_each_hard_mode(fault):
    own = [run for run in FAULTY if run.fault == fault]
    assert sorted(run.seed_group for run in own) == list(range(48))
    assert Counter(run.mode for run in own) == RUNS_OF_MODE
    assert Counter(run.difficulty for run in own) == {"easy": 20, "hard": 28}


@pytest.mark.parametrize("fault", RUN_FAULTS)
def test_half_of_a_types_runs_have_its_main_mechanism_in_every_mode_and_the_others_share_the_rest(fault):
    own = [run for run in FAULTY if run.fault == fault]
    names = [mechanism.name for mechanism in CATALOG[fault].mechanisms if not mechanism.needs_critic]
    counts = Counter(run.mechanism for run in own)
    assert counts[names[0]] == 24
    assert max(counts[name] for name in names[1:]) - min(counts[name] for name in names[1:]) <= 1
    for mode, number in RUNS_OF_MODE.items():
        main = sum(run.mechanism == names[0] for run in own if run.mode == mode)
        assert abs(main - number / 2) <= 0.5


def test_every_seed_group_mixes_modes():
    for group in range(48):
        modes = Counter(run.mode for run in FAULTY if run.seed_group == group)
        assert set(modes) == set(RUNS_OF_MODE) and 5 <= modes["easy"] <= 8


def test_a_type_with_one_mechanism_has_it_everywhere():
    fault = next(iter(CATALOG.values()))
    alone = type(fault)(fault.name, fault.code, fault.family, fault.signature, fault.mechanisms[:1])
    assert set(mechanisms_of(alone, modes_of(0))) == {fault.mechanisms[0]}


def test_a_group_shares_seed_and_variety_and_other_groups_have_another_seed():
    by_group = {group: [r for r in PLAN if r.seed_group == group] for group in range(260)}
    for runs in by_group.values():
        assert len({run.seed for run in runs}) == 1 and len({run.variant for run in runs}) == 1
        assert sum(run.kind == "healthy" for run in runs) == 1
        shared = next(run.overrides for run in runs if run.kind == "healthy")
        assert all(run.overrides[: len(shared)] == shared for run in runs)
    assert len({runs[0].seed for runs in by_group.values()}) == 260


def test_injectors_have_seeds_of_their_own():
    seeds = [run.injector_seed for run in PLAN if run.kind in ("fault", "double")]
    assert len(set(seeds)) == len(seeds) and not set(seeds) & {run.seed for run in PLAN}


def test_onsets_lie_where_they_should():
    bounds = {"delayed": (10, 14), "benign": (8, 16), "healthy": (0, 0)}
    for run in PLAN:
        low, high = bounds.get(run.mode) or bounds.get(run.kind) or (3, 6)
        assert low <= run.onset <= high
    early = Counter(run.onset for run in FAULTY if run.mode != "delayed")
    assert set(early) == {3, 4, 5, 6} and min(early.values()) > 100


def test_ids_are_unique_of_one_form_and_unrelated_to_the_label():
    ids = [run.run_id for run in PLAN]
    assert len(set(ids)) == len(ids) and {len(text) for text in ids} == {12}
    assert all(set(text) <= set("0123456789abcdef") for text in ids)
    for place in range(12):  # of the 1,128 ids, about as many faulty ones have a letter in each place
        letters = [run.run_id[place] in "abcdef" for run in PLAN]
        faulty = [own for own, run in zip(letters, PLAN, strict=True) if run.kind == "fault"]
        assert abs(sum(letters) / len(letters) - sum(faulty) / len(faulty)) < 0.05


def test_the_plan_is_the_same_every_time_and_another_root_is_another_campaign():
    assert planned() == PLAN
    other = planned(root=1)
    assert not {run.run_id for run in other} & {run.run_id for run in PLAN}
    assert not {run.seed for run in other} & {run.seed for run in PLAN}


def test_a_part_of_the_plan_has_the_very_runs_of_the_whole_and_their_controls():
    part = planned(["reward_spike", "kl_explosion"], 2)
    assert Counter((run.kind, run.fault) for run in part) == {
        ("healthy", "none"): 2,
        ("fault", "reward_spike"): 2,
        ("fault", "kl_explosion"): 2,
    }
    assert [run for run in PLAN if run in part] == part
    assert len(planned(["healthy"])) == 260 and len(planned(["double"])) == 40 + 48
    assert {run.seed_group for run in planned(seeds=3)} == {0, 1, 2}


def test_strengths_come_from_the_injection_that_is_given():
    def injection(fault, mechanism, mode):
        return {"strength": 0.125, "unit": None} if mode == "weak" else {}

    weak = [run for run in planned(injection=injection) if run.mode == "weak"]
    assert all({"run_fault.strength=0.125", "run_fault.unit=null"} <= set(run.overrides) for run in weak)


def test_a_type_that_there_is_not_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"unknown type of runs 'reward_spke'.*reward_spike"):
        planned(["reward_spke"])
    assert set(KINDS) == {run.kind for run in PLAN}


def test_a_planned_run_survives_json():
    for run in PLAN[:20]:
        assert PlannedRun.from_dict(json.loads(json.dumps(run.to_dict()))) == run
    with pytest.raises(ConfigError, match="another version"):
        PlannedRun.from_dict({"overrides": [], "colour": "blue"})


def test_double_faults_pair_each_type_five_times_and_nothing_twice_or_against_itself():
    pairs = fault_pairs()
    assert len({frozenset(pair) for pair in pairs}) == 40
    assert Counter(name for pair in pairs for name in pair) == dict.fromkeys(RUN_FAULTS, 5)
    for pair in pairs:
        one, other = (CATALOG[name].mechanisms[0] for name in pair)
        assert one.quantity != other.quantity or one.direction == other.direction


def test_both_faults_of_a_double_are_in_its_overrides():
    for run in (run for run in PLAN if run.kind == "double"):
        assert f"run_fault={run.fault}" in run.overrides
        assert f"run_fault@second_run_fault={run.second_fault}" in run.overrides
        assert f"second_run_fault.mechanism={run.second_mechanism}" in run.overrides
