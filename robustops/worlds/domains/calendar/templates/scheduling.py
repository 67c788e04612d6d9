"""Templates that create events or change when and under which title they take place."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from robustops.worlds.database import WorldDatabase
from robustops.worlds.domain import Draft, ExpertScript
from robustops.worlds.domains.calendar.templates.common import (
    DONE,
    CalendarTemplate,
    add_attendee,
    calendars,
    counted,
    events,
    events_on,
    find_calendar,
    find_event_on,
    find_user,
    listed,
    new_times,
    new_title,
    notify,
    of_event,
    on_calendar,
    others_untouched,
    people,
    pick,
    quote,
    row_counts,
    update_event,
)
from robustops.worlds.domains.calendar.vocabulary import MESSAGES
from robustops.worlds.expert import read_row, seen_row, write


class ScheduleMeeting(CalendarTemplate):
    """Create an event with one or two guests."""

    name = "schedule_meeting"
    tools = (
        *("list_calendars", "list_users", "create_event", "add_attendee"),
        *("list_events", "list_attendees"),
    )
    wordings = (
        "Please put a {title} on the {calendar} calendar, {start_time} to {end_time}, and invite {guests}.",
        "We need a {title} with {guests} in the {calendar} calendar from {start_time} until {end_time}.",
        "Schedule {title} for {start_time} to {end_time}. Calendar: {calendar}. Guests: {guests}.",
        "Can you set up a {title}? It runs {start_time} - {end_time}, belongs on {calendar}, and {guests} "
        "should be invited.",
        "{guests} should get an invitation to a new {title} on the {calendar} calendar, starting "
        "{start_time}, ending {end_time}.",
        "Add the meeting {title} to {calendar}: start {start_time}, end {end_time}, attendees {guests}.",
        "Book a {title} into the {calendar} calendar ({start_time} till {end_time}) and invite {guests}.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        calendar, times, known = pick(rng, calendars(database)), new_times(database, rng), people(database)
        if calendar is None or times is None or len(known) < 2:
            return None
        guests = rng.sample(known, rng.choice((1, 1, 2)))
        title, where = new_title(database, rng), on_calendar(calendar["name"])
        plan = {"calendar": calendar["name"], "title": title, "start_time": times[0], "end_time": times[1]}
        made = f"{where} AND title = {quote(title)} AND status = 'confirmed'"
        slot = f"start_time = {quote(times[0])} AND end_time = {quote(times[1])}"
        checks = [
            counted("event_created", "events", made),
            counted("right_time", "events", f"{made} AND {slot}"),
        ]
        edges = [("event_created", "right_time"), ("event_created", "no_extra_rows")]
        edges.append(("event_created", "other_events_untouched"))
        for number, guest in enumerate(guests, start=1):
            invited = f"email = {quote(guest['email'])} AND {of_event(title, calendar['name'])}"
            checks.append(counted(f"guest_{number}_invited", "attendees", invited))
            edges.append(("event_created", f"guest_{number}_invited"))
        checks.append(others_untouched(database, made))
        checks.append(row_counts(database, events=1, attendees=len(guests)))
        names = [guest["full_name"] for guest in guests]
        return self.draft(database, rng, {**plan, "guest_names": names}, checks, edges, guests=listed(names))

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        calendar = yield from find_calendar(plan["calendar"])
        emails = []
        for name in plan["guest_names"]:
            user = yield from find_user(name)
            emails.append(user["email"])
        key = {"calendar_id": calendar["calendar_id"], "title": plan["title"]}
        times = {"start_time": plan["start_time"], "end_time": plan["end_time"]}
        event = yield from write(
            "create_event", {**key, **times}, landed=seen_row("list_events", key, rows="events", match=key)
        )
        for email in emails:
            yield from add_attendee(event["event_id"], email)
        return DONE


class Reschedule(CalendarTemplate):
    """Move one event in time and tell its attendees why."""

    name = "reschedule"
    tools = (
        *("list_calendars", "list_events", "update_event", "notify_attendees"),
        *("get_event", "list_notifications"),
    )
    wordings = (
        "Move the {title} on the {calendar} calendar to {start_time} and notify the attendees: {message}",
        "The {title} ({calendar} calendar) has to start at {start_time} instead. Tell everyone: {message}",
        "Please reschedule {title} in {calendar} to {start_time}, then message its attendees: {message}",
        "{title} on {calendar} should now begin {start_time}. Let the attendees know: {message}",
        "Could you shift our {title} in the {calendar} calendar to {start_time}? Send the attendees this "
        "note: {message}",
        "New time for {title} on the {calendar} calendar: {start_time}. Message for the attendees: {message}",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        event = pick(rng, events(database))
        times = new_times(database, rng, event)
        if event is None or times is None:
            return None
        target = of_event(event["title"], event["calendar"])
        plan = {"calendar": event["calendar"], "title": event["title"], "start_time": times[0]}
        plan["message"] = rng.choice(MESSAGES)
        if database.find("notifications", event_id=event["event_id"], message=plan["message"]):
            return None
        moved = f"{target} AND start_time = {quote(times[0])} AND end_time = {quote(times[1])}"
        told = f"{target} AND message = {quote(plan['message'])}"
        checks = (
            counted("event_moved", "events", moved),
            counted("attendees_told", "notifications", told),
            others_untouched(database, target),
            row_counts(database, notifications=1),
        )
        edges = [("event_moved", "attendees_told"), ("event_moved", "other_events_untouched")]
        return self.draft(database, rng, plan, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        event = yield from find_event_on(plan["calendar"], plan["title"])
        yield from update_event(event["event_id"], start_time=plan["start_time"])
        yield from notify(event["event_id"], plan["message"])
        return DONE


class FollowOn(CalendarTemplate):
    """Let one event begin when another one of the same calendar ends."""

    name = "follow_on"
    tools = ("list_calendars", "list_events", "get_event", "update_event")
    wordings = (
        "On the {calendar} calendar, let {title} start exactly when {before} ends.",
        "Please move {title} in {calendar} so that it begins as soon as {before} is over.",
        "{title} should follow {before} without a gap. Both are on the {calendar} calendar.",
        "Reschedule {title} ({calendar} calendar) to the moment {before} finishes.",
        "In {calendar}, put {title} straight after {before}; they must not overlap or leave a break.",
        "The {title} on {calendar} has to start at the end time of {before}. Change it, please.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        known = events(database)
        pairs = [
            (first, second)
            for first in known
            for second in known
            if first["calendar_id"] == second["calendar_id"] and first["event_id"] != second["event_id"]
            if first["end_time"] != second["start_time"] and second["room_id"] is None
        ]
        if not pairs:
            return None
        before, event = rng.choice(pairs)
        target = of_event(event["title"], event["calendar"])
        plan = {"calendar": event["calendar"], "title": event["title"], "before": before["title"]}
        followed = f"{target} AND start_time = {quote(before['end_time'])}"
        span = "strftime('%s', end_time) - strftime('%s', start_time)"
        seconds = int(database.scalar(f"SELECT {span} FROM events WHERE {target}"))
        checks = (
            counted("starts_after", "events", followed),
            counted("length_kept", "events", f"{followed} AND {span} = {seconds}"),
            others_untouched(database, target),
            row_counts(database),
        )
        edges = [("starts_after", "length_kept"), ("starts_after", "other_events_untouched")]
        return self.draft(database, rng, plan, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        calendar = yield from find_calendar(plan["calendar"])
        found = yield from events_on(calendar["calendar_id"])
        ids = {row["title"]: row["event_id"] for row in found}
        first = {"event_id": ids[plan["before"]]}
        before = yield from read_row("get_event", first, match=first)
        assert before is not None, "not optional, so read_row returns a row"
        yield from update_event(ids[plan["title"]], start_time=before["end_time"])
        return DONE


class RenameSeries(CalendarTemplate):
    """Give every event of one title on a calendar another title."""

    name = "rename_series"
    tools = ("list_calendars", "list_events", "update_event", "get_event")
    wordings = (
        "Rename every {title} on the {calendar} calendar to {new_title}.",
        "All events called {title} in the {calendar} calendar should be called {new_title} from now on.",
        "Please change the title {title} to {new_title} for each such event on {calendar}.",
        "In {calendar}, {title} is now named {new_title}. Update all of them.",
        "Our {title} events on the {calendar} calendar get a new title, {new_title}. There may be several.",
        "Go through the {calendar} calendar and retitle each {title} as {new_title}.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        series = database.query(
            "SELECT c.name AS calendar, e.title, COUNT(*) AS size FROM events e JOIN calendars c "
            "USING (calendar_id) WHERE e.status = 'confirmed' GROUP BY e.calendar_id, e.title "
            "HAVING COUNT(*) BETWEEN 2 AND 4 ORDER BY c.name, e.title"
        )
        names = {row["name"] for row in calendars(database)}
        chosen = pick(rng, [row for row in series if row["calendar"] in names])
        if chosen is None:
            return None
        new = new_title(database, rng)
        plan = {"calendar": chosen["calendar"], "title": chosen["title"], "new_title": new}
        live = f"{on_calendar(chosen['calendar'])} AND status = 'confirmed'"
        checks = (
            counted("all_renamed", "events", f"{live} AND title = {quote(new)}", chosen["size"]),
            counted("old_title_gone", "events", f"{live} AND title = {quote(chosen['title'])}", 0),
            others_untouched(database, f"title = {quote(new)}"),
            row_counts(database),
        )
        edges = [("all_renamed", "other_events_untouched"), ("old_title_gone", "all_renamed")]
        return self.draft(database, rng, plan, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        calendar = yield from find_calendar(plan["calendar"])
        found = yield from events_on(calendar["calendar_id"])
        for event in found:
            if event["title"] == plan["title"]:
                yield from update_event(event["event_id"], title=plan["new_title"])
        return DONE
