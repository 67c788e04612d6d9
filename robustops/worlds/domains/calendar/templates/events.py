"""Templates about single events: cancel, room, reminder."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from robustops.worlds.database import Row, WorldDatabase
from robustops.worlds.domain import Draft, ExpertScript
from robustops.worlds.domains.calendar.schema import room_bookings
from robustops.worlds.domains.calendar.templates.common import (
    DONE,
    CalendarTemplate,
    counted,
    events,
    find_event,
    find_event_on,
    notify,
    of_event,
    others_untouched,
    pick,
    quote,
    row_counts,
    update_event,
)
from robustops.worlds.domains.calendar.vocabulary import MESSAGES, MINUTES
from robustops.worlds.expert import ExpertError, or_refused, read_row, read_rows, seen_in, seen_values, write


class CancelAndTell(CalendarTemplate):
    """Cancel the event of a title that takes place on one day, and tell its attendees."""

    name = "cancel_and_tell"
    tools = ("list_events", "cancel_event", "notify_attendees", "get_event", "list_notifications")
    wordings = (
        "Cancel the {title} on {day} and tell its attendees: {message}",
        "The {title} of {day} is off. Please cancel it and send the attendees this: {message}",
        "Please call off {title} on {day}, then notify everyone invited: {message}",
        "{title} will not take place on {day}. Cancel it and let the attendees know: {message}",
        "Could you cancel {day}'s {title} and message the people invited? The text is: {message}",
        "We have to drop the {title} planned for {day}. After cancelling, write to the attendees: {message}",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        found = database.query(
            "SELECT *, substr(start_time, 1, 10) AS day FROM events e WHERE status = 'confirmed' AND "
            "(SELECT COUNT(*) FROM events x WHERE x.title = e.title COLLATE NOCASE "
            "AND substr(x.start_time, 1, 10) = substr(e.start_time, 1, 10)) = 1 ORDER BY event_id"
        )
        event = pick(rng, found)
        if event is None:
            return None
        plan = {"title": event["title"], "day": event["day"], "message": rng.choice(MESSAGES)}
        if database.find("notifications", event_id=event["event_id"], message=plan["message"]):
            return None
        target = f"title = {quote(event['title'])} AND substr(start_time, 1, 10) = {quote(event['day'])}"
        told = f"event_id IN (SELECT event_id FROM events WHERE {target}) AND message = "
        cancelled = int(database.scalar("SELECT COUNT(*) FROM events WHERE status = 'cancelled'"))
        checks = (
            counted("cancelled", "events", f"{target} AND status = 'cancelled'"),
            counted("attendees_told", "notifications", told + quote(plan["message"])),
            counted("one_cancelled", "events", "status = 'cancelled'", cancelled + 1),
            others_untouched(database, target),
            row_counts(database, notifications=1),
        )
        edges = [("cancelled", "attendees_told"), ("cancelled", "one_cancelled")]
        return self.draft(database, rng, plan, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        arguments = {"title": plan["title"], "day": plan["day"]}
        rows = yield from read_rows("list_events", arguments, rows="events", match={"title": plan["title"]})
        hits = [row for row in rows if row["start_time"].startswith(plan["day"])]
        if not hits:
            raise ExpertError(f"no {plan['title']} on {plan['day']}")
        key = {"event_id": hits[0]["event_id"]}
        landed = seen_values("get_event", key, identity=key, values={"status": "cancelled"})
        yield from write("cancel_event", key, landed=landed)
        yield from notify(key["event_id"], plan["message"])
        return DONE


class BookRoom(CalendarTemplate):
    """Book a room for an event, or a second choice where the first is taken."""

    name = "book_room"
    tools = ("list_events", "list_rooms", "update_event", "get_event")
    wordings = (
        "Book the {first} room in {building} for {title}. If it is taken at that time, take {second}.",
        "{title} needs a room: {first} in the {building} building, or {second} there if {first} is busy.",
        "Please reserve {first} ({building} building) for the {title}; {second} will do if it is not free.",
        "Could {title} be held in {first}? That is in the {building} building. Otherwise use {second}.",
        "Find a place for {title} in the {building} building: first choice {first}, second choice {second}.",
        "Put {title} into room {first}, building {building}. Should that room be occupied, put it into "
        "{second}.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        cases = [
            (bool(self._taken(database, event, first)), event, first, second)
            for event in events(database, alone=True)
            for first in database.find("rooms")
            for second in database.find("rooms", building=first["building"])
            if event["room_id"] is None and first is not second and first["room_id"] != second["room_id"]
            if not self._taken(database, event, second)
        ]
        busy = rng.random() < 0.5
        wanted = [case for case in cases if case[0] == busy] or cases
        if not wanted:
            return None
        taken, event, first, second = rng.choice(wanted)
        plan = {"title": event["title"], "building": first["building"]}
        plan |= {"first": first["room_name"], "second": second["room_name"]}
        target = of_event(event["title"])
        room = second if taken else first
        held = f"room_id IN (SELECT room_id FROM rooms WHERE room_name = {quote(room['room_name'])} AND "
        held += f"building = {quote(room['building'])})"
        times = f"start_time = {quote(event['start_time'])} AND end_time = {quote(event['end_time'])}"
        checks = (
            counted("has_a_room", "events", f"{target} AND room_id IS NOT NULL"),
            counted("right_room", "events", f"{target} AND {held}"),
            counted("time_kept", "events", f"{target} AND {times}"),
            others_untouched(database, target),
            row_counts(database),
        )
        edges = [("has_a_room", "right_room"), ("has_a_room", "time_kept")]
        return self.draft(database, rng, plan, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        event = yield from find_event(plan["title"])
        where = {"building": plan["building"]}
        rooms = yield from read_rows("list_rooms", where, rows="rooms", match=where)
        ids = {row["room_name"]: row["room_id"] for row in rooms}
        booked = yield from or_refused(
            update_event(event["event_id"], room_id=ids[plan["first"]]), "ROOM_BUSY"
        )
        if booked is None:
            yield from update_event(event["event_id"], room_id=ids[plan["second"]])
        return DONE

    @staticmethod
    def _taken(database: WorldDatabase, event: Row, room: Row) -> list[Row]:
        return room_bookings(database, room["room_id"], event["start_time"], event["end_time"])


class SetReminder(CalendarTemplate):
    """Add a reminder to an event."""

    name = "set_reminder"
    tools = ("list_calendars", "list_events", "add_reminder", "list_reminders")
    wordings = (
        "Add a reminder by {method} {minutes_before} minutes before {title} on the {calendar} calendar.",
        "Please set a reminder for {title} in {calendar}: {method}, {minutes_before} minutes ahead.",
        "I want a reminder by {method} for {title} ({calendar} calendar), {minutes_before} minutes before.",
        "Remind people by {method} {minutes_before} minutes before the {title} on {calendar} starts.",
        "The {title} in the {calendar} calendar needs a reminder: {method}, {minutes_before} minutes.",
        "Could you give {title} on {calendar} a reminder? By {method}, {minutes_before} minutes before.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        event = pick(rng, events(database))
        if event is None:
            return None
        reminder = {"method": rng.choice(("popup", "email")), "minutes_before": rng.choice(MINUTES)}
        if database.find("reminders", event_id=event["event_id"], **reminder):
            return None
        target = of_event(event["title"], event["calendar"])
        before = len(database.find("reminders", event_id=event["event_id"]))
        right = f"method = '{reminder['method']}' AND minutes_before = {reminder['minutes_before']}"
        checks = (
            counted("reminder_added", "reminders", f"{target} AND {right}"),
            counted("earlier_ones_kept", "reminders", target, before + 1),
            others_untouched(database),
            row_counts(database, reminders=1),
        )
        edges = [("reminder_added", "earlier_ones_kept"), ("reminder_added", "no_extra_rows")]
        plan = {"calendar": event["calendar"], "title": event["title"], **reminder}
        return self.draft(database, rng, plan, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        event = yield from find_event_on(plan["calendar"], plan["title"])
        key = {"event_id": event["event_id"]}
        values = {"method": plan["method"], "minutes_before": plan["minutes_before"]}
        landed = seen_in("list_reminders", key, rows="reminders", match=values)
        yield from write("add_reminder", {**key, **values}, landed=landed)
        return DONE


class SameRoom(CalendarTemplate):
    """Book for one event the room that another one has."""

    name = "same_room"
    tools = ("list_events", "get_event", "update_event")
    wordings = (
        "Book for {title} the room that {other} is in.",
        "{title} should take place in the same room as {other}. Please book it.",
        "Please look up where {other} is held and reserve that room for {title} as well.",
        "We want {title} and {other} in one room; {other} has one already, {title} does not.",
        "The {title} has no room yet. Give it the one of {other}.",
        "Use {other}'s room for the {title}, too.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        known = events(database, alone=True)
        pairs = [
            (event, other)
            for event in known
            for other in known
            if event["room_id"] is None and other["room_id"] is not None
            if not room_bookings(database, other["room_id"], event["start_time"], event["end_time"])
        ]
        if not pairs:
            return None
        event, other = rng.choice(pairs)
        target = of_event(event["title"])
        alike = f"room_id = (SELECT room_id FROM events WHERE title = {quote(other['title'])})"
        room = quote(database.find("rooms", room_id=other["room_id"])[0]["room_name"])
        kept = (
            f"{of_event(other['title'])} AND room_id IN (SELECT room_id FROM rooms WHERE room_name = {room})"
        )
        times = f"start_time = {quote(event['start_time'])} AND end_time = {quote(event['end_time'])}"
        checks = (
            counted("same_room", "events", f"{target} AND {alike}"),
            counted("other_keeps_its_room", "events", kept),
            counted("time_kept", "events", f"{target} AND {times}"),
            others_untouched(database, target),
            row_counts(database),
        )
        edges = [("other_keeps_its_room", "same_room"), ("same_room", "other_events_untouched")]
        plan = {"title": event["title"], "other": other["title"]}
        return self.draft(database, rng, plan, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        other = yield from find_event(plan["other"])
        key = {"event_id": other["event_id"]}
        details = yield from read_row("get_event", key, match=key)
        assert details is not None, "not optional, so read_row returns a row"
        event = yield from find_event(plan["title"])
        yield from update_event(event["event_id"], room_id=details["room_id"])
        return DONE
