"""The calendar domain: calendars, events, attendees, access rules, rooms, reminders."""

from __future__ import annotations

from robustops.worlds.database import WorldDatabase
from robustops.worlds.domain import Domain
from robustops.worlds.domains.calendar.loading import load_tables
from robustops.worlds.domains.calendar.schema import SCHEMA
from robustops.worlds.domains.calendar.seed import fill_world
from robustops.worlds.domains.calendar.templates import TEMPLATES
from robustops.worlds.domains.calendar.toolset import CalendarToolset

POLICY = (
    "You work in a calendar system through tools. Look up ids before writing; never guess them. Do what is "
    "asked once and change nothing else. Repeat a call that was not executed. If a receipt is lost, "
    "check whether the change landed before repeating. If a reply is incomplete or about something else, "
    "read again."
)


class CalendarDomain(Domain):
    """A company's shared calendars."""

    name = "calendar"
    schema = SCHEMA
    policy = POLICY
    toolset = CalendarToolset
    templates = TEMPLATES

    def fill(self, database: WorldDatabase, seed: int, size: str) -> None:
        fill_world(database, seed, size)

    def load(self, database: WorldDatabase, path: str) -> None:
        load_tables(database, path)


DOMAIN = CalendarDomain
