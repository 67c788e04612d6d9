"""Templates about whole calendars: found one, retire one, colour one."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from robustops.worlds.database import Row, WorldDatabase
from robustops.worlds.domain import Draft, ExpertScript
from robustops.worlds.domains.calendar.templates.common import (
    DONE,
    CalendarTemplate,
    acting_user,
    calendars,
    counted,
    events,
    events_on,
    find_calendar,
    find_one,
    listed,
    move_event,
    on_calendar,
    others_untouched,
    pick,
    quote,
    row_counts,
)
from robustops.worlds.domains.calendar.vocabulary import CALENDARS
from robustops.worlds.expert import read_rows, seen_in, seen_row, write


class NewCalendar(CalendarTemplate):
    """Create a calendar and move one or two events into it."""

    name = "new_calendar"
    tools = ("list_calendars", "list_events", "create_calendar", "move_event")
    wordings = (
        "Create a calendar named {new_name} and move {titles} from {calendar} into it.",
        "We need a new calendar, {new_name}. Take {titles} out of the {calendar} calendar and put it there.",
        "Please set up the {new_name} calendar and transfer {titles} to it from {calendar}.",
        "{titles} should leave the {calendar} calendar for a new one called {new_name}.",
        "Start a calendar {new_name}; {titles}, now on {calendar}, must be moved over to it.",
        "Move {titles} from {calendar} to a separate calendar {new_name}, which you create first.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        source = pick(rng, calendars(database))
        known = [event for event in events(database) if source and event["calendar"] == source["name"]]
        used = {row["name"].lower() for row in database.find("calendars")}
        fresh = [name for name in CALENDARS if not any(name.lower() in other for other in used)]
        if source is None or not known or not fresh:
            return None
        chosen = rng.sample(known, min(len(known), rng.choice((1, 2))))
        name, titles = rng.choice(fresh), [event["title"] for event in chosen]
        checks = [counted("calendar_created", "calendars", f"name = {quote(name)}")]
        edges = [("calendar_created", "no_extra_rows")]
        for number, title in enumerate(titles, start=1):
            moved = f"{on_calendar(name)} AND title = {quote(title)} AND status = 'confirmed'"
            checks.append(counted(f"event_{number}_moved", "events", moved))
            edges.append(("calendar_created", f"event_{number}_moved"))
            edges.append((f"event_{number}_moved", "other_events_untouched"))
        checks.append(others_untouched(database, on_calendar(name)))
        checks.append(counted("nothing_else_moved", "events", on_calendar(name), len(titles)))
        checks.append(row_counts(database, calendars=1, acl_rules=1, calendar_list=1))
        plan = {"calendar": source["name"], "new_name": name, "event_titles": titles}
        return self.draft(database, rng, plan, checks, edges, titles=listed(titles))

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        source = yield from find_calendar(plan["calendar"])
        found = yield from events_on(source["calendar_id"])
        ids = {row["title"]: row["event_id"] for row in found}
        key = {"name": plan["new_name"]}
        landed = seen_row("list_calendars", key, rows="calendars", match=key)
        calendar = yield from write("create_calendar", dict(key), landed=landed)
        for title in plan["event_titles"]:
            yield from move_event(ids[title], calendar["calendar_id"])
        return DONE


class RetireCalendar(CalendarTemplate):
    """Move a calendar's events to another calendar, then delete it."""

    name = "retire_calendar"
    tools = ("list_calendars", "list_events", "move_event", "delete_calendar")
    wordings = (
        "Close the {old} calendar: move all its events to {calendar}, then delete {old}.",
        "{old} is no longer needed. Put everything on it into the {calendar} calendar and delete it.",
        "Please merge the {old} calendar into {calendar} and remove {old} afterwards.",
        "Everything on the {old} calendar now belongs to {calendar}. Move it and delete {old}.",
        "We give up the {old} calendar. Its events go to {calendar}; after that, delete the calendar.",
        "Delete the {old} calendar, but first bring each of its events over to {calendar}.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        live = {row["calendar_id"]: self._events(database, row) for row in calendars(database)}
        small = [row for row in calendars(database) if 1 <= len(live[row["calendar_id"]]) <= 4]
        old = pick(rng, small)
        target = pick(rng, [row for row in calendars(database) if row != old])
        if old is None or target is None:
            return None
        moving, staying = live[old["calendar_id"]], live[target["calendar_id"]]
        where = on_calendar(target["name"])
        titles = ", ".join(sorted({quote(row["title"]) for row in moving}))
        confirmed = f"{where} AND status = 'confirmed'"
        gone = database.find("events", calendar_id=old["calendar_id"], status="cancelled")
        checks = (
            counted("all_moved", "events", confirmed, len(moving) + len(staying)),
            counted("old_deleted", "calendars", f"name = {quote(old['name'])}", 0),
            others_untouched(database, f"{where} AND title IN ({titles})"),
            self._counts(database, old, gone),
        )
        edges = [("all_moved", "old_deleted"), ("old_deleted", "no_extra_rows")]
        edges.append(("all_moved", "other_events_untouched"))
        return self.draft(database, rng, {"old": old["name"], "calendar": target["name"]}, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        old = yield from find_calendar(plan["old"])
        target = yield from find_calendar(plan["calendar"])
        found = yield from events_on(old["calendar_id"])
        for event in found:
            yield from move_event(event["event_id"], target["calendar_id"])
        key = {"name": plan["old"]}
        landed = seen_in("list_calendars", {}, rows="calendars", match=key, gone=True)
        yield from write("delete_calendar", {"calendar_id": old["calendar_id"]}, landed=landed)
        return DONE

    @staticmethod
    def _events(database: WorldDatabase, calendar: Row) -> list[Row]:
        return database.find("events", calendar_id=calendar["calendar_id"], status="confirmed")

    @staticmethod
    def _counts(database: WorldDatabase, old: Row, gone: list[Row]) -> Any:
        """Row counts after the deletion, which takes rules, list entries and cancelled events along."""
        less = {"calendars": -1, "events": -len(gone)}
        for table in ("acl_rules", "calendar_list"):
            less[table] = -len(database.find(table, calendar_id=old["calendar_id"]))
        for table in ("attendees", "reminders", "notifications"):
            less[table] = -sum(len(database.find(table, event_id=event["event_id"])) for event in gone)
        return row_counts(database, **less)


class ColorCalendar(CalendarTemplate):
    """Give a calendar another colour in the acting user's list."""

    name = "color_calendar"
    tools = ("list_calendars", "get_colors", "update_calendar_in_list", "get_calendar_list")
    wordings = (
        "Give the {calendar} calendar the colour {color_name} in my list.",
        "I want to see {calendar} in {color_name}. Please change its colour in my calendar list.",
        "Please colour the {calendar} calendar {color_name} for me.",
        "Could you set my colour for the {calendar} calendar to {color_name}?",
        "In my calendar list, {calendar} should be {color_name}.",
        "My {calendar} calendar has the wrong colour; make it {color_name}.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        me, known = acting_user(database), {row["calendar_id"]: row for row in calendars(database)}
        entries = [e for e in database.find("calendar_list", email=me) if e["calendar_id"] in known]
        entry = pick(rng, entries)
        colors = database.query(
            "SELECT * FROM colors c WHERE (SELECT COUNT(*) FROM colors d "
            "WHERE d.color_name = c.color_name) = 1 ORDER BY color_id"
        )
        color = pick(rng, [row for row in colors if entry and row["color_id"] != entry["color_id"]])
        if entry is None or color is None:
            return None
        calendar = known[entry["calendar_id"]]
        mine = f"email = {quote(me)} AND {on_calendar(calendar['name'])}"
        colored = f"color_id IN (SELECT color_id FROM colors WHERE color_name = {quote(color['color_name'])})"
        total = int(database.scalar(f"SELECT COUNT(*) FROM calendar_list WHERE {colored}"))
        same = f"hidden = {entry['hidden']}"
        checks = (
            counted("color_set", "calendar_list", f"{mine} AND {colored}"),
            counted("still_as_visible", "calendar_list", f"{mine} AND {colored} AND {same}"),
            counted("only_that_one", "calendar_list", colored, total + 1),
            row_counts(database),
        )
        edges = [("color_set", "still_as_visible"), ("color_set", "only_that_one")]
        plan = {"calendar": calendar["name"], "color_name": color["color_name"]}
        return self.draft(database, rng, plan, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        calendar = yield from find_calendar(plan["calendar"])
        match = {"color_name": plan["color_name"]}
        color = yield from find_one("get_colors", match, rows="colors", scope=match, match=match)
        key, values = {"calendar_id": calendar["calendar_id"]}, {"color_id": color["color_id"]}

        def landed() -> Any:
            rows = yield from read_rows("get_calendar_list", {}, rows="calendar_list")
            hits = [row for row in rows if row["calendar_id"] == key["calendar_id"]]
            return hits[0] if hits and hits[0]["color_id"] == values["color_id"] else None

        yield from write("update_calendar_in_list", {**key, **values}, landed=landed)
        return DONE
