"""Task templates of the itsm domain on generated worlds and on the real database."""

from __future__ import annotations

from pathlib import Path

import pytest

from robustops.records import DatabaseSpec
from robustops.worlds.checks import run_checks
from robustops.worlds.domains.itsm import ItsmDomain
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import run_expert
from tests.worlds.drafts import draw, draws

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "itsm_world"
REAL = str(DATA / "single_tenant_db.json")
DOMAIN = ItsmDomain()
NAMES = sorted(DOMAIN.templates)
DRAWS = 10
WORLDS = [
    "generated",
    pytest.param("real", marks=pytest.mark.skipif(not DATA.is_dir(), reason="the ITSM data is not here")),
]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", NAMES)
def test_no_check_passes_at_the_start_and_the_expert_needs_no_error_and_no_long_reply(name, world):
    tasks = draws(DOMAIN, name, 3)
    if world == "real":
        tasks = [draw(DOMAIN, name, DatabaseSpec(path=REAL), place) for place in range(DRAWS)]
    local = LocalWorld(DOMAIN)
    for task in tasks:
        local.reset(task)
        start = local.evaluate(task.checks)
        assert not any(start), f"{task.prompt}: {start}"
        assert task.checks[-1].name == "nothing_else"
        run = run_expert(local, DOMAIN, task)
        assert run.success, task.prompt
        for call, result in run.calls:
            assert not result.is_error, f"{call}: {result.text}"
            assert len(result.text) < 420, f"{call}: {result.text}"
    local.close()


def test_the_acting_user_exists_and_is_not_the_notified_caller():
    for task in draws(DOMAIN, "hold_and_notify"):
        database = DOMAIN.open(task.database)
        caller = database.find("incident", number=task.plan["number"])[0]["caller_id"]
        assert task.acting_user != caller and database.find("users", user_id=task.acting_user)


@pytest.mark.parametrize("name", NAMES)
def test_collateral_damage_and_duplicates_fail_the_last_check(name):
    task = draw(DOMAIN, name, DatabaseSpec(seed=3), 3)
    local = LocalWorld(DOMAIN)
    assert run_expert(local, DOMAIN, task).success
    database = local.tools.database
    untouched = database.query("SELECT incident_id FROM incident WHERE updated_at < '2026' LIMIT 1")[0]
    image = database.snapshot()
    with database.atomic():
        database.update("incident", untouched, {"priority": "high", "updated_at": database.now()})
    assert not run_checks(database, task.checks)[-1], "a change to another record"
    database.restore(image)
    with database.atomic():
        row = {**database.find("child_incident")[0], "child_incident_mapping_id": "CINC_9999"}
        database.insert("child_incident", {**row, "created_at": database.now(), "updated_at": database.now()})
    assert not run_checks(database, task.checks)[-1], "one row too many"
    local.close()


def test_difficulty_ranges_from_two_to_eight_calls():
    local = LocalWorld(DOMAIN)
    lengths = {
        name: [len(run_expert(local, DOMAIN, task).calls) for task in draws(DOMAIN, name)] for name in NAMES
    }
    everything = [length for found in lengths.values() for length in found]
    assert min(everything) == 2 and max(everything) >= 7
    usual = [name for name, found in lengths.items() if 3 <= sorted(found)[DRAWS // 2] <= 5]
    assert len(usual) > len(NAMES) / 2, lengths
    local.close()


def test_the_policy_is_short():
    assert 30 <= len(DOMAIN.policy.split()) <= 60
