"""Task templates of the calendar domain: what is not the same for every domain."""

import pytest

from robustops.faults.wrapper import FaultyWorld
from robustops.worlds.domain import get_domain
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import run_expert
from tests.worlds.drafts import draws

DOMAIN = get_domain("calendar", "brief")
NAMES = sorted(DOMAIN.templates)


def failed(world, task):
    return [c.name for c, passed in zip(task.checks, world.evaluate(task.checks), strict=True) if not passed]


@pytest.mark.parametrize("name", NAMES)
def test_checks_have_prerequisites_and_select_by_content(name):
    for task in draws(DOMAIN, name):
        assert 3 <= len(task.checks) <= 6 and task.prerequisites
        text = task.prompt + str(task.plan) + "".join(check.query for check in task.checks)
        database = DOMAIN.open(task.database)
        for table, column in (
            *(("calendars", "calendar_id"), ("events", "event_id"), ("acl_rules", "rule_id")),
            *(("rooms", "room_id"), ("colors", "color_id"), ("reminders", "reminder_id")),
        ):
            assert not any(row[column] in text for row in database.find(table))
        database.close()


@pytest.mark.parametrize("name", NAMES)
def test_every_template_gives_most_faults_something_to_strike(name):
    seen = set()
    for task in draws(DOMAIN, name, 3):
        observer = FaultyWorld(LocalWorld(DOMAIN), observe=True)
        run_expert(observer, DOMAIN, task)
        seen.update(subtype for o in observer.opportunities for subtype in o.subtypes)
    assert seen >= {"temporary_refusal", "truncated_body", "lost_receipt", "filter_dropped"}


@pytest.mark.parametrize("name", NAMES)
def test_doing_the_work_twice_or_elsewhere_fails(name):
    """Every further row or changed event is noticed."""
    world = LocalWorld(DOMAIN)
    task = draws(DOMAIN, name, 1)[0]
    for extra in ("events", "attendees", "acl_rules", "reminders", "notifications", "calendars"):
        run_expert(world, DOMAIN, task)
        database = world.tools.database
        row = database.find(extra)[0]
        key = next(iter(row))
        with database.atomic():
            unique = {key: "zzz_1"} if extra != "attendees" else {"email": "zzz@zzz.example"}
            unique |= {"email": "zzz@zzz.example"} if extra == "acl_rules" else {}
            database.insert(extra, {**row, **unique})
        assert failed(world, task), f"a second row in {extra} went unnoticed"
    if name not in ("share_calendar", "change_role", "hand_over", "manager_access", "color_calendar"):
        run_expert(world, DOMAIN, task)
        database = world.tools.database
        touched = database.scalar("SELECT event_id FROM events ORDER BY updated_at, event_id LIMIT 1")
        with database.atomic():
            database.update("events", {"event_id": touched}, {"updated_at": database.now()})
        assert failed(world, task) == ["other_events_untouched"]


def test_both_outcomes_of_a_busy_room_occur():
    world = LocalWorld(DOMAIN)
    lengths = {len(run_expert(world, DOMAIN, task).calls) for task in draws(DOMAIN, "book_room", 20)}
    assert lengths == {3, 4}
