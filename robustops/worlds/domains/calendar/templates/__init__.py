"""Task templates of the calendar domain."""

from __future__ import annotations

from collections.abc import Mapping

from robustops.worlds.domain import TaskTemplate
from robustops.worlds.domains.calendar.templates.attendance import (
    InviteManager,
    InvitePeople,
    RecordAnswer,
    ReplaceAttendee,
)
from robustops.worlds.domains.calendar.templates.calendars import ColourCalendar, NewCalendar, RetireCalendar
from robustops.worlds.domains.calendar.templates.events import BookRoom, CancelAndTell, SetReminder
from robustops.worlds.domains.calendar.templates.scheduling import (
    FollowOn,
    RenameSeries,
    Reschedule,
    ScheduleMeeting,
)
from robustops.worlds.domains.calendar.templates.sharing import ChangeRole, HandOver, ShareCalendar

_ALL: tuple[type[TaskTemplate], ...] = (
    *(ScheduleMeeting, Reschedule, FollowOn, RenameSeries),
    *(CancelAndTell, BookRoom, SetReminder),
    *(InvitePeople, InviteManager, ReplaceAttendee, RecordAnswer),
    *(ShareCalendar, ChangeRole, HandOver),
    *(NewCalendar, RetireCalendar, ColourCalendar),
)
TEMPLATES: Mapping[str, TaskTemplate] = {template.name: template() for template in _ALL}
