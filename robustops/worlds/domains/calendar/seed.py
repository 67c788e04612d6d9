"""Generated seed worlds: Faker people, calendars, rooms and a few weeks of events."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

from faker import Faker

from robustops.errors import unknown_name
from robustops.seeding import child_seed, generator
from robustops.worlds.database import Row, WorldDatabase
from robustops.worlds.domains.calendar import vocabulary as words
from robustops.worlds.domains.calendar.schema import TIME_FORMAT, room_bookings

#: People, calendars, events and rooms of a size; the small ones fit a context of 1,536 tokens even
#: where a list comes unfiltered.
SIZES = {
    "tiny": (6, 4, 10, 4),
    "small": (9, 5, 16, 5),
    "medium": (24, 12, 70, 10),
    "large": (80, 32, 400, 20),
}
_LENGTHS = (30, 45, 60, 90)
#: Titles that no seed event has, for events that requests create.
_SPARE_TITLES = 60
#: Before the clock of every world starts, so that rows that a task writes can be told by their time.
_STAMP = "2025-12-15 08:00:00"


@dataclass
class _Builder:
    """State of one world under construction."""

    database: WorldDatabase
    rng: Random
    fake: Faker
    users: list[Row] = field(default_factory=list)
    calendars: list[str] = field(default_factory=list)
    rooms: list[str] = field(default_factory=list)
    colors: list[str] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)

    def ids(self, prefix: str, count: int, digits: int) -> list[str]:
        """Distinct short ids whose order tells nothing."""
        low = 10 ** (digits - 1)
        return [f"{prefix}{number}" for number in self.rng.sample(range(low, 10 * low), count)]

    def emails(self) -> list[str]:
        return [user["email"] for user in self.users]


def fill_world(database: WorldDatabase, seed: int, size: str) -> None:
    """Write a generated world; the same seed and size give the same rows.

    The first user owns the one primary calendar and is the one on whose behalf tasks are worked on.
    """
    if size not in SIZES:
        raise unknown_name("size of the calendar world", size, SIZES)
    people, calendars, events, rooms = SIZES[size]
    fake = Faker("en_US")
    fake.seed_instance(child_seed(seed, "calendar", size, "faker"))
    builder = _Builder(database, generator(seed, "calendar", size), fake)
    _people(builder, people)
    _places(builder, rooms)
    _calendars(builder, calendars)
    _access(builder)
    _events(builder, events)
    _details(builder)


def _people(world: _Builder, count: int) -> None:
    domain = world.rng.choice(words.DOMAINS)
    zone = world.rng.choice(words.TIME_ZONES)
    seen: set[str] = set()
    while len(world.users) < count:
        first, last = world.fake.first_name(), world.fake.last_name()
        email = re.sub(r"[^a-z.]", "", f"{first}.{last}".lower()) + "@" + domain
        if email in seen or last in seen:
            continue
        seen |= {email, last}
        managers = world.emails()[: max(1, count // 4)]
        world.users.append(
            {
                "email": email,
                "full_name": f"{first} {last}",
                "department": world.rng.choice(words.DEPARTMENTS),
                "manager_email": world.rng.choice(managers) if world.users else None,
                "time_zone": zone,
            }
        )
    world.database.insert_many("users", world.users)


def _places(world: _Builder, count: int) -> None:
    world.rooms = world.ids("room_", count, 2)
    names = world.rng.sample(words.ROOMS, count)
    buildings = world.rng.sample(words.BUILDINGS, 2 if count < 10 else 4)
    world.database.insert_many(
        "rooms",
        [
            {
                "room_id": room,
                "room_name": name,
                "building": buildings[index % len(buildings)],
                "capacity": world.rng.choice((4, 6, 8, 10, 12, 20)),
            }
            for index, (room, name) in enumerate(zip(world.rooms, names, strict=True))
        ],
    )
    colors = world.rng.sample(words.COLORS, 6)
    world.colors = world.ids("clr_", len(colors), 2)
    rows = [{"color_id": i, "color_name": n} for i, n in zip(world.colors, colors, strict=True)]
    world.database.insert_many("colors", rows)


def _calendars(world: _Builder, count: int) -> None:
    world.calendars = world.ids("cal_", count, 2)
    me = world.users[0]
    names = [me["full_name"], *world.rng.sample(words.CALENDARS, count - 1)]
    rows = []
    for index, (calendar, name) in enumerate(zip(world.calendars, names, strict=True)):
        owner = me["email"] if index == 0 else world.rng.choice(world.emails())
        rows.append(
            {
                "calendar_id": calendar,
                "name": name,
                "description": None if index == 0 else world.fake.catch_phrase(),
                "owner_email": owner,
                "time_zone": me["time_zone"],
                "is_primary": int(index == 0),
                "created_at": _STAMP,
                "updated_at": _STAMP,
            }
        )
    world.rng.shuffle(rows)
    world.database.insert_many("calendars", rows)


def _access(world: _Builder) -> None:
    """The owner's rule and one or two others on each calendar; calendar lists of the first people."""
    grants = []
    for calendar in world.database.find("calendars"):
        others = [email for email in world.emails() if email != calendar["owner_email"]]
        grants.append((calendar["calendar_id"], calendar["owner_email"], "owner"))
        for email in world.rng.sample(others, world.rng.choice((1, 2, 2))):
            role = world.rng.choice(("freeBusyReader", "reader", "writer"))
            grants.append((calendar["calendar_id"], email, role))
    world.rng.shuffle(grants)
    rules = world.ids("acl_", len(grants), 3)
    world.database.insert_many(
        "acl_rules",
        [
            {"rule_id": rule, "calendar_id": calendar, "email": email, "role": role}
            for rule, (calendar, email, role) in zip(rules, grants, strict=True)
        ],
    )
    entries: list[dict[str, Any]] = []
    for index, email in enumerate(world.emails()[:3]):
        for calendar_id in world.calendars if index == 0 else world.rng.sample(world.calendars, 2):
            color, hidden = world.rng.choice(world.colors), int(world.rng.random() < 0.2)
            entries.append({"email": email, "calendar_id": calendar_id, "color_id": color, "hidden": hidden})
    world.database.insert_many("calendar_list", entries)


def _slots(world: _Builder, count: int) -> list[datetime]:
    """Few start times, so that events meet and rooms are taken."""
    days = [datetime(2026, 1, 12) + timedelta(days=d) for d in range(80)]
    workdays = [day for day in days if day.weekday() < 5]
    chosen = world.rng.sample(workdays, min(count, len(workdays)))
    return [day + timedelta(minutes=30 * world.rng.randrange(16, 34)) for day in chosen]


def _events(world: _Builder, count: int) -> None:
    """About half of the events have a room; some titles are a series, some occur on two calendars."""
    rng, slots = world.rng, _slots(world, max(5, min(40, count // 3)))
    known = words.all_titles()
    titles = rng.sample(known, min(count, len(known) - _SPARE_TITLES))
    planned: list[tuple[str, str]] = []
    room = Counter({calendar: count // len(world.calendars) + 2 for calendar in world.calendars})
    while len(planned) < count:
        calendar = max(world.calendars, key=lambda name: (room[name], rng.random()))
        title = titles[len(planned) % len(titles)]
        if planned and rng.random() < 0.3:
            other, title = rng.choice(planned)
            calendar = other if room[other] > 0 and rng.random() < 0.7 else calendar
        room[calendar] -= 1
        planned.append((calendar, title))
    rng.shuffle(planned)
    taken: set[tuple[str, str, datetime]] = set()
    for event_id, (calendar, title) in zip(world.ids("evt_", count, 4), planned, strict=True):
        free = [slot for slot in slots if (calendar, title, slot) not in taken]
        start = rng.choice(free or slots)
        taken.add((calendar, title, start))
        _event(world, event_id, calendar, title, start)


def _event(world: _Builder, event_id: str, calendar: str, title: str, start: datetime) -> None:
    rng = world.rng
    end = (start + timedelta(minutes=rng.choice(_LENGTHS))).strftime(TIME_FORMAT)
    begin = start.strftime(TIME_FORMAT)
    room = rng.choice(world.rooms) if rng.random() < 0.5 else None
    if room is not None and room_bookings(world.database, room, begin, end):
        room = None
    row = {
        "event_id": event_id,
        "calendar_id": calendar,
        "title": title,
        "description": world.fake.bs() if rng.random() < 0.5 else None,
        "location": None,
        "start_time": begin,
        "end_time": end,
        "room_id": room,
        "color_id": rng.choice(world.colors) if rng.random() < 0.2 else None,
        "status": "cancelled" if rng.random() < 0.06 else "confirmed",
        "visibility": rng.choice(("default", "default", "private")),
        "organizer_email": rng.choice(world.emails()),
        "created_at": _STAMP,
        "updated_at": _STAMP,
    }
    world.events.append(row)
    world.database.insert("events", row)


def _details(world: _Builder) -> None:
    """Attendees, reminders and earlier notifications."""
    rng = world.rng
    attendees = []
    for event in world.events:
        for email in rng.sample(world.emails(), rng.choice((1, 2, 2, 3))):
            status = rng.choice(("needsAction", "accepted", "accepted", "tentative"))
            optional = int(rng.random() < 0.2)
            attendees.append((event["event_id"], email, status, optional))
    names = ("event_id", "email", "response_status", "optional")
    world.database.insert_many("attendees", [dict(zip(names, row, strict=True)) for row in attendees])
    reminded = rng.sample(world.events, len(world.events) // 3)
    for reminder, event in zip(world.ids("rem_", len(reminded), 3), reminded, strict=True):
        row = {
            "reminder_id": reminder,
            "event_id": event["event_id"],
            "method": rng.choice(("popup", "email")),
        }
        world.database.insert("reminders", {**row, "minutes_before": rng.choice(words.MINUTES)})
    notified = rng.sample(world.events, max(2, len(world.events) // 8))
    for notification, event in zip(world.ids("ntf_", len(notified), 3), notified, strict=True):
        row = {"notification_id": notification, "event_id": event["event_id"]}
        row |= {"message": rng.choice(words.MESSAGES), "sent_by": event["organizer_email"], "sent_at": _STAMP}
        world.database.insert("notifications", row)
