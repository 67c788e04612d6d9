"""Task templates of the calendar domain: well-posed requests, experts that always get there."""

import pytest

from robustops.faults.plan import SUBTYPES, FaultPlan
from robustops.faults.wrapper import FaultyWorld
from robustops.records import DatabaseSpec, Task
from robustops.seeding import generator
from robustops.worlds.checks import validate_graph
from robustops.worlds.domain import get_domain
from robustops.worlds.environment import LocalWorld

DOMAIN = get_domain("calendar", "brief")
NAMES = sorted(DOMAIN.templates)
DRAWS = 10


def draws(name, count=DRAWS, first=100):
    """Tasks of a template, each on a world of its own."""
    template = DOMAIN.templates[name]
    tasks = []
    for seed in range(first, first + 4 * count):
        spec = DatabaseSpec(seed=seed)
        database = DOMAIN.open(spec)
        before = database.dump()
        draft = template.draw(database, generator(1, name, seed))
        assert database.dump() == before, "drawing must not change the start state"
        database.close()
        if draft is not None:
            tasks.append(
                Task(
                    id=f"calendar-{name}-{seed}",
                    domain="calendar",
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
            )
        if len(tasks) == count:
            return tasks
    raise AssertionError(f"{name} fits too few worlds")


def solve(world, task, budget=40):
    """Run the scripted expert; the calls that it made."""
    world.reset(task)
    script = DOMAIN.templates[task.template].expert(task.plan)
    calls = []
    try:
        call = next(script)
        while len(calls) < budget:
            calls.append(call)
            call = script.send(world.step(call))
    except StopIteration as stop:
        assert isinstance(stop.value, str) and stop.value
        return calls
    raise AssertionError(f"no end after {budget} calls")


def failed(world, task):
    return [c.name for c, passed in zip(task.checks, world.evaluate(task.checks), strict=True) if not passed]


@pytest.mark.parametrize("name", NAMES)
def test_start_fails_expert_passes(name):
    world = LocalWorld(DOMAIN)
    for task in draws(name):
        names = [check.name for check in task.checks]
        validate_graph(names, task.prerequisites)
        assert 3 <= len(names) <= 6 and task.prerequisites
        world.reset(task)
        assert failed(world, task), "the start state must not pass"
        calls = solve(world, task)
        assert failed(world, task) == []
        assert 2 <= len(calls) <= 9
        assert {call.name for call in calls} <= set(task.tools) <= set(DOMAIN.toolset.specs())


@pytest.mark.parametrize("name", NAMES)
def test_requests_are_short_and_free_of_ids(name):
    tasks = draws(name)
    assert len(set(DOMAIN.templates[name].wordings)) >= 6
    assert len({task.prompt for task in tasks}) == len(tasks)
    for task in tasks:
        assert len(task.prompt.split()) <= 60
        text = task.prompt + str(task.plan) + "".join(check.query for check in task.checks)
        database = DOMAIN.open(task.database)
        for table, column in (
            *(("calendars", "calendar_id"), ("events", "event_id"), ("acl_rules", "rule_id")),
            *(("rooms", "room_id"), ("colors", "color_id"), ("reminders", "reminder_id")),
        ):
            assert not any(row[column] in text for row in database.find(table))
        for value in task.plan.values():
            for part in value if isinstance(value, list) else [value]:
                assert str(part).lower() in task.prompt.lower(), "the plan states what the prompt states"


@pytest.mark.parametrize("name", NAMES)
def test_every_wording_uses_every_fact(name):
    template = DOMAIN.templates[name]
    fields = [sorted({part.split("}")[0] for part in text.split("{")[1:]}) for text in template.wordings]
    assert all(names == fields[0] for names in fields)


@pytest.mark.parametrize("name", NAMES)
def test_doing_the_work_twice_or_elsewhere_fails(name):
    """Every further row or changed event is noticed."""
    world = LocalWorld(DOMAIN)
    task = draws(name, 1)[0]
    for extra in ("events", "attendees", "acl_rules", "reminders", "notifications", "calendars"):
        solve(world, task)
        database = world.tools.database
        row = database.find(extra)[0]
        key = next(iter(row))
        with database.atomic():
            unique = {key: "zzz_1"} if extra != "attendees" else {"email": "zzz@zzz.example"}
            unique |= {"email": "zzz@zzz.example"} if extra == "acl_rules" else {}
            database.insert(extra, {**row, **unique})
        assert failed(world, task), f"a second row in {extra} went unnoticed"
    if name not in ("share_calendar", "change_role", "hand_over", "manager_access", "color_calendar"):
        solve(world, task)
        database = world.tools.database
        touched = database.scalar("SELECT event_id FROM events ORDER BY updated_at, event_id LIMIT 1")
        with database.atomic():
            database.update("events", {"event_id": touched}, {"updated_at": database.now()})
        assert failed(world, task) == ["other_events_untouched"]


@pytest.mark.parametrize("name", NAMES)
def test_expert_recovers_from_every_fault(name):
    struck = set()
    for task in draws(name, 3):
        observer = FaultyWorld(LocalWorld(DOMAIN), observe=True)
        solve(observer, task)
        for opportunity in observer.opportunities:
            for subtype in opportunity.subtypes:
                plan = opportunity.plan(subtype, cap=2)
                world = FaultyWorld(LocalWorld(DOMAIN), plan)
                solve(world, task)
                assert world.hits >= 1
                assert failed(world, task) == [], (plan, task.prompt)
                struck.add(subtype)
    assert struck >= {"temporary_refusal", "truncated_body", "lost_receipt", "filter_dropped"}


@pytest.mark.parametrize("subtype", SUBTYPES)
def test_every_fault_has_opportunities(subtype):
    """The domain as a whole gives each mechanism something to strike."""
    hits = 0
    for name in NAMES:
        world = FaultyWorld(LocalWorld(DOMAIN), FaultPlan(subtype, 0))
        solve(world, draws(name, 1)[0])
        hits += world.hits
    assert hits >= 2


def test_both_outcomes_of_a_busy_room_occur():
    world = LocalWorld(DOMAIN)
    lengths = {len(solve(world, task)) for task in draws("book_room", 20)}
    assert lengths == {3, 4}


def test_worlds_of_other_sizes_have_tasks_too():
    for size in ("tiny", "medium"):
        fits = 0
        for name in NAMES:
            for seed in range(6):
                spec = DatabaseSpec(seed=seed, size=size)
                fits += DOMAIN.templates[name].draw(DOMAIN.open(spec), generator(2, name, seed)) is not None
        assert fits >= 0.6 * 6 * len(NAMES)
