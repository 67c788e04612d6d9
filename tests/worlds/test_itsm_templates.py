"""Task templates of the itsm domain on generated worlds and on the real database."""

from __future__ import annotations

from pathlib import Path

import pytest

from robustops.records import DatabaseSpec
from robustops.worlds.checks import run_checks
from robustops.worlds.domains.itsm import ItsmDomain
from robustops.worlds.environment import LocalWorld
from robustops.worlds.probes import draw_task
from robustops.worlds.scripted import run_expert
from tests.worlds.drafts import draws, solved

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
    tasks = draws(DOMAIN, name, DRAWS)
    if world == "real":
        tasks = [draw_task(DOMAIN, name, DatabaseSpec(seed=place, path=REAL)) for place in range(DRAWS)]
    local = LocalWorld(DOMAIN)
    for task in tasks:
        local.reset(task)
        start = local.evaluate(task.checks)
        assert not any(start), f"{task.prompt}: {start}"
        assert task.checks[-1].name == "nothing_else"
        for call, result in solved(local, DOMAIN, task).calls:
            assert not result.is_error, f"{call}: {result.text}"
            assert len(result.text) < 420, f"{call}: {result.text}"
    local.close()


@pytest.mark.parametrize("name", NAMES)
def test_every_wording_holds_the_whole_plan_and_the_plan_no_id(name):
    template = DOMAIN.templates[name]
    assert template.tools == tuple(sorted(template.tools))
    (task,) = draws(DOMAIN, name, 1, first=2)
    for wording in template.wordings:
        missing = [fact for fact in task.plan if "{" + fact + "}" not in wording]
        assert not missing, f"{wording}: {missing}"
    tables = DOMAIN.open(task.database).dump().values()
    ids = {row[k] for rows in tables for row in rows for k in row if k.endswith("_id")}
    words = [value for fact in task.plan.values() for value in (fact if isinstance(fact, list) else [fact])]
    assert not ids & set(words)


def test_the_acting_user_exists_and_is_not_the_notified_caller():
    for task in draws(DOMAIN, "hold_and_notify"):
        database = DOMAIN.open(task.database)
        caller = database.find("incident", number=task.plan["number"])[0]["caller_id"]
        assert task.acting_user != caller and database.find("users", user_id=task.acting_user)


@pytest.mark.parametrize("name", NAMES)
def test_collateral_damage_and_duplicates_fail_the_last_check(name):
    task = draw_task(DOMAIN, name, DatabaseSpec(seed=3))
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
