"""Task templates of the itsm domain on generated worlds and on the real database."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from robustops.faults.wrapper import FaultyWorld
from robustops.records import DatabaseSpec, Task
from robustops.seeding import generator
from robustops.worlds.checks import gated_count, run_checks, validate_graph
from robustops.worlds.domains.itsm import ItsmDomain
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import run_expert

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "itsm_world"
REAL = str(DATA / "single_tenant_db.json")
DOMAIN, FULL = ItsmDomain(), ItsmDomain(detail="full")
NAMES = sorted(DOMAIN.templates)
DRAWS = 10
WORLDS = [
    "generated",
    pytest.param("real", marks=pytest.mark.skipif(not DATA.is_dir(), reason="the ITSM data is not here")),
]


def draw(name: str, spec: DatabaseSpec, place: int) -> Task:
    """The first draft within 20 attempts, as a task."""
    template, database = DOMAIN.templates[name], DOMAIN.open(spec)
    rng = generator(7, name, place)
    draft = next(d for _ in range(20) if (d := template.draw(database, rng)) is not None)
    return Task(
        id=f"{name}-{place}",
        domain="itsm",
        template=name,
        policy=DOMAIN.policy,
        prompt=draft.prompt,
        tools=template.tools,
        distractors=(),
        database=spec,
        acting_user=draft.acting_user,
        checks=draft.checks,
        prerequisites=draft.prerequisites,
        plan=draft.plan,
    )


def tasks(name: str, world: str) -> list[Task]:
    specs = [DatabaseSpec(path=REAL) if world == "real" else DatabaseSpec(seed=i) for i in range(DRAWS)]
    return [draw(name, spec, place) for place, spec in enumerate(specs)]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", NAMES)
def test_start_never_passes_and_the_expert_always_does(name, world):
    local, template = LocalWorld(DOMAIN), DOMAIN.templates[name]
    for task in tasks(name, world):
        names = [check.name for check in task.checks]
        validate_graph(names, task.prerequisites)
        local.reset(task)
        start = local.evaluate(task.checks)
        assert not any(start), f"{task.prompt}: {start}"
        run = run_expert(local, DOMAIN, task)
        assert run.success, f"{task.prompt}: {dict(zip(names, run.checks, strict=True))}"
        assert gated_count(names, run.checks, task.prerequisites) == len(names)
        assert 2 <= len(run.calls) <= 9
        assert {call.name for call, _ in run.calls} <= set(template.tools)
        for call, result in run.calls:
            assert not result.is_error, f"{call}: {result.text}"
            assert len(result.text) < 420, f"{call}: {result.text}"
    local.close()


@pytest.mark.parametrize("name", NAMES)
def test_full_replies_serve_as_well(name):
    local = LocalWorld(FULL)
    assert run_expert(local, FULL, draw(name, DatabaseSpec(seed=1), 1)).success
    local.close()


@pytest.mark.parametrize("name", NAMES)
def test_the_form_of_a_template(name):
    template, specs = DOMAIN.templates[name], DOMAIN.toolset.specs()
    assert template.name == name and template.tools == tuple(sorted(set(template.tools))) and template.tools
    assert set(template.tools) <= set(specs)
    assert len(set(template.wordings)) >= 6
    drawn = tasks(name, "generated")
    assert len({task.prompt for task in drawn}) == DRAWS
    for task in drawn:
        assert 3 <= len(task.prompt.split()) <= 60 and "{" not in task.prompt
        assert 2 <= len(task.checks) <= 6 and task.checks[-1].name == "nothing_else"
        assert json.loads(json.dumps(task.plan)) == task.plan


@pytest.mark.parametrize("name", NAMES)
def test_all_facts_of_the_plan_stand_in_every_wording(name):
    """The expert must not know more than the prompt says, nor any id."""
    template = DOMAIN.templates[name]
    plan = draw(name, DatabaseSpec(seed=2), 2).plan
    for wording in template.wordings:
        missing = [fact for fact in plan if "{" + fact + "}" not in wording]
        assert not missing, f"{wording}: {missing}"
    database = DOMAIN.open(DatabaseSpec(seed=2))
    ids = {row[k] for rows in database.dump().values() for row in rows for k in row if k.endswith("_id")}
    words = [value for fact in plan.values() for value in (fact if isinstance(fact, list) else [fact])]
    assert not ids & set(words)


def test_the_acting_user_exists_and_is_not_the_notified_caller():
    for task in tasks("hold_and_notify", "generated"):
        database = DOMAIN.open(task.database)
        caller = database.find("incident", number=task.plan["number"])[0]["caller_id"]
        assert task.acting_user != caller and database.find("users", user_id=task.acting_user)


@pytest.mark.parametrize("name", NAMES)
def test_collateral_damage_and_duplicates_fail_the_last_check(name):
    task = draw(name, DatabaseSpec(seed=3), 3)
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


@pytest.mark.parametrize("name", NAMES)
def test_the_expert_recovers_from_every_fault_on_two_worlds(name):
    """Deeper than the suite over all domains: other worlds, and faults that repeat three times."""
    local = LocalWorld(DOMAIN)
    for seed in (11, 12):
        task = draw(name, DatabaseSpec(seed=seed, size="tiny" if name != "escalate_item" else "small"), seed)
        observer = FaultyWorld(local, observe=True)
        run_expert(observer, DOMAIN, task)
        for opportunity in observer.opportunities:
            for subtype in opportunity.subtypes:
                world = FaultyWorld(local, opportunity.plan(subtype, cap=3))
                run = run_expert(world, DOMAIN, task)
                assert run.success and world.hits >= 1, f"{task.prompt}: {subtype} at {opportunity.turn}"
    local.close()


def test_templates_that_find_no_rows_say_so():
    database = DOMAIN.new_database()
    for name in NAMES:
        assert DOMAIN.templates[name].draw(database, generator(0, name)) is None, name


def test_difficulty_ranges_from_two_to_eight_calls():
    local = LocalWorld(DOMAIN)
    lengths = {
        name: [len(run_expert(local, DOMAIN, task).calls) for task in tasks(name, "generated")]
        for name in NAMES
    }
    everything = [length for found in lengths.values() for length in found]
    assert min(everything) == 2 and max(everything) >= 7
    usual = [name for name, found in lengths.items() if 3 <= sorted(found)[DRAWS // 2] <= 5]
    assert len(usual) > len(NAMES) / 2, lengths
    local.close()


def test_the_policy_is_short():
    assert 30 <= len(DOMAIN.policy.split()) <= 60
