"""The sets' plans: seeds that do not meet, mechanisms that can be reached, settings that compose."""

from __future__ import annotations

import pytest

from robustops.bench.run_faults.catalog import CATALOG, all_mechanisms
from robustops.bench.transfer.plan import SHORT, SOURCES, STEPS, mechanisms, transfer_plan
from robustops.bench.transfer.reach import IN_TRL, NOT_IN_TRL
from robustops.commands.composition import composed_training
from robustops.errors import ConfigError
from robustops.worlds.domain import get_domain


@pytest.mark.parametrize("source", SOURCES)
def test_a_set_has_every_type_and_no_seed_on_both_sides(source):
    plan = transfer_plan(source, healthy=20, repeats=2)
    healthy, faulty = ([run for run in plan if run.kind == kind] for kind in ("healthy", "fault"))
    assert (len(healthy), len(faulty)) == (20, 32)
    assert len({run.seed for run in healthy}) == 20 and len({run.seed for run in faulty}) == 2
    assert not {run.seed for run in healthy} & {run.seed for run in faulty}
    assert [run.fault for run in faulty] == [*CATALOG, *CATALOG]
    assert len({run.run_id for run in plan}) == len(plan)
    assert all(3 <= run.onset <= 6 < STEPS for run in faulty)


def test_a_run_is_the_same_whatever_else_is_asked_for():
    few, many = transfer_plan("trl", healthy=8), transfer_plan("trl", healthy=20, repeats=2)
    assert set(few) <= set(many)
    assert not {run.run_id for run in few} & {run.run_id for run in transfer_plan("itsm", healthy=8)}
    assert not {run.run_id for run in few} & {run.run_id for run in transfer_plan("trl", healthy=8, root=1)}


def test_a_second_repeat_has_other_mechanisms_where_there_are_some():
    plan = transfer_plan("trl", healthy=0, repeats=2)
    first, second = plan[:16], plan[16:]
    for one, other in zip(first, second, strict=True):
        known = [info.name for info in mechanisms("trl", CATALOG[one.fault])]
        assert [one.mechanism, other.mechanism] == [known[0], known[1 % len(known)]]


def test_what_trl_can_reach_is_told_for_every_mechanism():
    names = {info.name for _, info in all_mechanisms()}
    assert set(IN_TRL) | set(NOT_IN_TRL) == names and not set(IN_TRL) & set(NOT_IN_TRL)
    assert all(any(mechanisms("trl", fault)) for fault in CATALOG.values())


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("strength", ["easy", "full"])
def test_settings_compose(source, strength, tmp_path):
    run = next(
        r
        for r in transfer_plan(source, healthy=0, steps=7, strength=strength)
        if r.fault == "termination_error"
    )
    overrides = ["experiment=faultbench", *run.overrides, f"paths.run_dir='{tmp_path}'"]
    settings, _ = composed_training(overrides)
    assert settings.grpo.steps == 7 and settings.run_fault.name == run.fault
    assert settings.domain.name == ("itsm" if source == "itsm" else "arithmetic")
    assert settings.run_fault.strength == 1.0
    # TRL has one limit of turns for all episodes: struck are whole steps, each of them.
    if source == "trl":
        assert (settings.run_fault.unit, settings.run_fault.probability) == ("step", 1.0)


def test_the_templates_of_itsm_exist():
    assert set(SHORT) <= set(get_domain("itsm").templates)


def test_an_unknown_set_is_refused():
    with pytest.raises(ConfigError, match="itsm"):
        transfer_plan("calendar")
