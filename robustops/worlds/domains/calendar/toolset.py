"""All tools of the calendar domain in one set."""

from __future__ import annotations

from robustops.worlds.domains.calendar.tools_calendars import CalendarsTools
from robustops.worlds.domains.calendar.tools_events import EventsTools
from robustops.worlds.domains.calendar.tools_people import AccessTools, PeopleTools
from robustops.worlds.domains.calendar.tools_places import PlacesTools


class CalendarToolset(CalendarsTools, EventsTools, PeopleTools, AccessTools, PlacesTools):
    """Calendars, events, people, access, rooms. Names follow the calendar server of EnterpriseOps-Gym."""
