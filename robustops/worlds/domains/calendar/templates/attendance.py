"""Templates about who takes part in events."""

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
    counted,
    events,
    find_event,
    find_event_on,
    find_user,
    listed,
    of_event,
    others_untouched,
    outsiders,
    people,
    pick,
    quote,
    row_counts,
)
from robustops.worlds.expert import read_row, seen_in, write


class InvitePeople(CalendarTemplate):
    """Invite one or two people to an event."""

    name = "invite_people"
    tools = ("list_events", "list_users", "add_attendee", "list_attendees")
    wordings = (
        "Invite {guests} to the {title}.",
        "{guests} should be on the {title} too. Please add them as attendees.",
        "Please add {guests} to the attendees of {title}.",
        "We forgot {guests} for the {title}. Send the invitation.",
        "Could you make sure that {guests} can join {title}? They are not invited yet.",
        "The {title} needs {guests} as well; put them on the guest list.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        event = pick(rng, events(database, alone=True))
        free = outsiders(database, event) if event else []
        if event is None or len(free) < 2:
            return None
        guests = rng.sample(free, rng.choice((1, 2, 2)))
        target = of_event(event["title"])
        before = len(database.find("attendees", event_id=event["event_id"]))
        checks = [
            counted(f"guest_{number}_invited", "attendees", f"{target} AND email = {quote(guest['email'])}")
            for number, guest in enumerate(guests, start=1)
        ]
        edges = [(check.name, "guest_list_complete") for check in checks]
        checks.append(counted("guest_list_complete", "attendees", target, before + len(guests)))
        checks.append(others_untouched(database))
        checks.append(row_counts(database, attendees=len(guests)))
        names = [guest["full_name"] for guest in guests]
        plan = {"title": event["title"], "guest_names": names}
        return self.draft(database, rng, plan, checks, edges, guests=listed(names))

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        event = yield from find_event(plan["title"])
        for name in plan["guest_names"]:
            user = yield from find_user(name)
            yield from add_attendee(event["event_id"], user["email"])
        return DONE


class InviteManager(CalendarTemplate):
    """Invite the manager of a person who is known by e-mail."""

    name = "invite_manager"
    tools = ("list_calendars", "list_events", "get_user_by_email", "add_attendee", "list_attendees")
    wordings = (
        "Invite the manager of {email} to the {title} on the {calendar} calendar.",
        "Whoever manages {email} should attend {title} in {calendar}. Please add them.",
        "Please find out who {email} reports to and invite that person to {title} on {calendar}.",
        "The {title} ({calendar} calendar) also needs the boss of {email}. Send an invitation.",
        "Add the line manager of {email} to the attendees of {title}, calendar {calendar}.",
        "On the {calendar} calendar there is a {title}. The manager of {email} wants to join; invite them.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        event = pick(rng, events(database))
        if event is None:
            return None
        free = {row["email"] for row in outsiders(database, event)}
        person = pick(rng, [row for row in people(database) if row["manager_email"] in free])
        if person is None:
            return None
        plan = {"email": person["email"], "title": event["title"], "calendar": event["calendar"]}
        target = of_event(event["title"], event["calendar"])
        before = len(database.find("attendees", event_id=event["event_id"]))
        invited = f"{target} AND email = {quote(person['manager_email'])}"
        checks = (
            counted("manager_invited", "attendees", invited),
            counted("nobody_else", "attendees", target, before + 1),
            others_untouched(database),
            row_counts(database, attendees=1),
        )
        edges = [("manager_invited", "nobody_else"), ("manager_invited", "no_extra_rows")]
        return self.draft(database, rng, plan, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        event = yield from find_event_on(plan["calendar"], plan["title"])
        key = {"email": plan["email"]}
        person = yield from read_row("get_user_by_email", key, match=key)
        assert person is not None, "not optional, so read_row returns a row"
        yield from add_attendee(event["event_id"], person["manager_email"])
        return DONE


class ReplaceAttendee(CalendarTemplate):
    """Let one person take another's place at an event."""

    name = "replace_attendee"
    tools = ("list_events", "list_users", "add_attendee", "remove_attendee", "list_attendees")
    wordings = (
        "{new_name} takes the place of {old_name} at the {title}. Update the guest list.",
        "Please replace {old_name} with {new_name} on the {title}.",
        "{old_name} cannot come to {title}. Invite {new_name} and take {old_name} off.",
        "For the {title}, swap {old_name} out and {new_name} in.",
        "Invite {new_name} to {title}; {old_name} need not attend any more, so remove that invitation.",
        "At the {title} we want {new_name} instead of {old_name}. Change the attendees accordingly.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        event = pick(rng, events(database, alone=True))
        if event is None:
            return None
        free = outsiders(database, event)
        absent = {row["email"] for row in free}
        new, old = pick(rng, free), pick(rng, [p for p in people(database) if p["email"] not in absent])
        if new is None or old is None:
            return None
        target = of_event(event["title"])
        before = len(database.find("attendees", event_id=event["event_id"]))
        checks = (
            counted("new_invited", "attendees", f"{target} AND email = {quote(new['email'])}"),
            counted("old_removed", "attendees", f"{target} AND email = {quote(old['email'])}", 0),
            counted("others_stay", "attendees", target, before),
            others_untouched(database),
            row_counts(database),
        )
        edges = [("new_invited", "others_stay"), ("old_removed", "others_stay")]
        edges += [("new_invited", "no_extra_rows"), ("old_removed", "no_extra_rows")]
        plan = {"title": event["title"], "new_name": new["full_name"], "old_name": old["full_name"]}
        return self.draft(database, rng, plan, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        event = yield from find_event(plan["title"])
        new = yield from find_user(plan["new_name"])
        old = yield from find_user(plan["old_name"])
        key = {"event_id": event["event_id"]}
        yield from add_attendee(key["event_id"], new["email"])
        match = {"email": old["email"]}
        landed = seen_in("list_attendees", key, rows="attendees", match=match, gone=True)
        yield from write("remove_attendee", {**key, **match}, landed=landed)
        return DONE


class RecordAnswer(CalendarTemplate):
    """Record what a person answered to an invitation."""

    name = "record_answer"
    tools = ("list_calendars", "list_events", "list_users", "update_attendee", "list_attendees")
    wordings = (
        "{person} told me the answer to {title} on the {calendar} calendar is {response_status}. Record it.",
        "Set the response of {person} for {title} in {calendar} to {response_status}.",
        "Please mark {person} as {response_status} for the {title} ({calendar} calendar).",
        "For {title} on {calendar}: {person} is now {response_status}. Please note that.",
        "Could you change {person}'s reply to {response_status}? It is about {title} on {calendar}.",
        "{title}, calendar {calendar}: update the attendance of {person} to {response_status}.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        event = pick(rng, events(database))
        if event is None:
            return None
        known = {row["email"]: row["full_name"] for row in people(database)}
        invited = database.find("attendees", event_id=event["event_id"])
        attendee = pick(rng, [row for row in invited if row["email"] in known])
        if attendee is None:
            return None
        old = attendee["response_status"]
        answer = rng.choice([a for a in ("accepted", "declined", "tentative") if a != old])
        target = of_event(event["title"], event["calendar"])
        where = f"{target} AND email = {quote(attendee['email'])}"
        alike = "SELECT COUNT(*) FROM attendees WHERE response_status = "
        total = int(database.scalar(alike + quote(answer)))
        checks = (
            counted("answer_recorded", "attendees", f"{where} AND response_status = '{answer}'"),
            counted("only_that_one", "attendees", f"response_status = '{answer}'", total + 1),
            others_untouched(database),
            row_counts(database),
        )
        edges = [("answer_recorded", "only_that_one"), ("answer_recorded", "no_extra_rows")]
        plan = {"title": event["title"], "calendar": event["calendar"], "response_status": answer}
        return self.draft(database, rng, {**plan, "person": known[attendee["email"]]}, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        event = yield from find_event_on(plan["calendar"], plan["title"])
        user = yield from find_user(plan["person"])
        key = {"event_id": event["event_id"]}
        values = {"email": user["email"], "response_status": plan["response_status"]}
        landed = seen_in("list_attendees", key, rows="attendees", match=values)
        yield from write("update_attendee", {**key, **values}, landed=landed)
        return DONE
