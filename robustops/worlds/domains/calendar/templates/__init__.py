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
from robustops.worlds.domains.calendar.templates.calendars import ColorCalendar, NewCalendar, RetireCalendar
from robustops.worlds.domains.calendar.templates.events import BookRoom, CancelAndTell, SameRoom, SetReminder
from robustops.worlds.domains.calendar.templates.scheduling import (
    FollowOn,
    RenameSeries,
    Reschedule,
    ScheduleMeeting,
)
from robustops.worlds.domains.calendar.templates.sharing import (
    ChangeRole,
    HandOver,
    ManagerAccess,
    ShareCalendar,
)

_ALL: tuple[type[TaskTemplate], ...] = (
    *(ScheduleMeeting, Reschedule, FollowOn, RenameSeries),
    *(CancelAndTell, BookRoom, SameRoom, SetReminder),
    *(InvitePeople, InviteManager, ReplaceAttendee, RecordAnswer),
    *(ShareCalendar, ChangeRole, HandOver, ManagerAccess),
    *(NewCalendar, RetireCalendar, ColorCalendar),
)
TEMPLATES: Mapping[str, TaskTemplate] = {template.name: template() for template in _ALL}
