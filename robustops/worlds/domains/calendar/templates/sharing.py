"""Templates about access to calendars."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, get_args

from robustops.worlds.database import Row, WorldDatabase
from robustops.worlds.domain import Draft, ExpertScript
from robustops.worlds.domains.calendar.schema import Role
from robustops.worlds.domains.calendar.templates.common import (
    DONE,
    CalendarTemplate,
    access_list,
    calendars,
    counted,
    find_calendar,
    find_one,
    find_user,
    on_calendar,
    people,
    pick,
    quote,
    row_counts,
)
from robustops.worlds.expert import Write, read_row, seen_in, seen_values, write

ROLES: tuple[str, ...] = get_args(Role)


def _rules(database: WorldDatabase, calendar: Row) -> dict[str, str]:
    """Role by e-mail on a calendar."""
    rules = database.find("acl_rules", calendar_id=calendar["calendar_id"])
    return {rule["email"]: rule["role"] for rule in rules}


def _find_rule(calendar_id: str, email: str) -> Write:
    """Look up a person's access rule on a calendar."""
    scope = {"calendar_id": calendar_id}
    return find_one("list_acl", dict(scope), rows="rules", scope=scope, match={"email": email})


def _grant(calendar_id: str, email: str, role: str) -> Write:
    """Give a person access who has none yet."""
    scope, values = {"calendar_id": calendar_id}, {"email": email, "role": role}
    landed = seen_in("list_acl", scope, rows="rules", match=values)
    return write("create_acl_rule", {**scope, **values}, landed=landed)


class ShareCalendar(CalendarTemplate):
    """Give a person access to a calendar."""

    name = "share_calendar"
    tools = ("list_calendars", "list_users", "create_acl_rule", "list_acl")
    wordings = (
        "Share the {calendar} calendar with {person} as {role}.",
        "{person} needs {role} access to the {calendar} calendar.",
        "Please give {person} the role {role} on {calendar}.",
        "Could you let {person} into the {calendar} calendar? The role is {role}.",
        "Grant {role} rights on the calendar {calendar} to {person}.",
        "{person} has joined the {calendar} team; add them to that calendar with the {role} role.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        calendar = pick(rng, calendars(database))
        if calendar is None:
            return None
        rules = _rules(database, calendar)
        person = pick(rng, [row for row in people(database) if row["email"] not in rules])
        if person is None:
            return None
        role = rng.choice(ROLES)
        where = f"{on_calendar(calendar['name'])} AND email = {quote(person['email'])}"
        checks = (
            counted("has_access", "acl_rules", where),
            counted("right_role", "acl_rules", f"{where} AND role = '{role}'"),
            access_list(database, calendar["name"], {person["email"]: role}),
            row_counts(database, acl_rules=1),
        )
        edges = [("has_access", "right_role"), ("right_role", "access_list"), ("has_access", "no_extra_rows")]
        plan = {"calendar": calendar["name"], "person": person["full_name"], "role": role}
        return self.draft(database, rng, plan, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        calendar = yield from find_calendar(plan["calendar"])
        user = yield from find_user(plan["person"])
        yield from _grant(calendar["calendar_id"], user["email"], plan["role"])
        return DONE


class ChangeRole(CalendarTemplate):
    """Change the role that a person has on a calendar."""

    name = "change_role"
    tools = ("list_calendars", "list_acl", "update_acl_rule", "get_acl_rule")
    wordings = (
        "Change the role of {email} on the {calendar} calendar to {role}.",
        "{email} should be {role} on {calendar} from now on. Please update the access.",
        "Please give {email} the role {role} on the {calendar} calendar; they have another one today.",
        "On the {calendar} calendar, {email} needs the role {role} instead of the present one.",
        "Set {email}'s access to {calendar} to {role}.",
        "The rights of {email} in the {calendar} calendar are wrong: {role} is right. Correct them.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        choices = [
            (calendar, email, old)
            for calendar in calendars(database)
            for email, old in sorted(_rules(database, calendar).items())
            if old != "owner"
        ]
        if not choices:
            return None
        calendar, email, old = rng.choice(choices)
        role = rng.choice([name for name in ROLES if name != old])
        where = f"{on_calendar(calendar['name'])} AND email = {quote(email)}"
        total = int(database.scalar("SELECT COUNT(*) FROM acl_rules WHERE role = ?", (role,)))
        checks = (
            counted("role_changed", "acl_rules", f"{where} AND role = '{role}'"),
            access_list(database, calendar["name"], {email: role}),
            counted("no_other_calendar", "acl_rules", f"role = '{role}'", total + 1),
            row_counts(database),
        )
        edges = [("role_changed", "access_list"), ("role_changed", "no_other_calendar")]
        plan = {"calendar": calendar["name"], "email": email, "role": role}
        return self.draft(database, rng, plan, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        calendar = yield from find_calendar(plan["calendar"])
        rule = yield from _find_rule(calendar["calendar_id"], plan["email"])
        key = {"rule_id": rule["rule_id"]}
        landed = seen_values("get_acl_rule", key, identity=key, values={"role": plan["role"]})
        yield from write("update_acl_rule", {**key, "role": plan["role"]}, landed=landed)
        return DONE


class HandOver(CalendarTemplate):
    """Make someone owner of a calendar, then take the former owner's access away."""

    name = "hand_over"
    tools = ("list_calendars", "list_users", "list_acl", "create_acl_rule", "delete_acl_rule")
    wordings = (
        "{person} takes over the {calendar} calendar: make them owner, then remove {email}.",
        "Hand the {calendar} calendar over to {person} as owner. After that {email} loses access.",
        "Please make {person} an owner of {calendar} and delete the access of {email} afterwards.",
        "{email} is leaving. {person} becomes owner of the {calendar} calendar, then {email} goes.",
        "New owner for {calendar}: {person}. Once that is done, take {email} off its access list.",
        "Could you give {person} owner rights on the {calendar} calendar and then revoke those of {email}?",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        calendar = pick(rng, calendars(database))
        if calendar is None:
            return None
        rules = _rules(database, calendar)
        old = next((email for email, role in sorted(rules.items()) if role == "owner"), None)
        person = pick(rng, [row for row in people(database) if row["email"] not in rules])
        if person is None or old is None:
            return None
        where = on_calendar(calendar["name"])
        owner = f"{where} AND email = {quote(person['email'])} AND role = 'owner'"
        checks = (
            counted("new_owner", "acl_rules", owner),
            counted("old_owner_gone", "acl_rules", f"{where} AND email = {quote(old)}", 0),
            access_list(database, calendar["name"], {person["email"]: "owner", old: None}),
            row_counts(database),
        )
        edges = [("new_owner", "old_owner_gone"), ("old_owner_gone", "access_list")]
        edges.append(("old_owner_gone", "no_extra_rows"))
        plan = {"calendar": calendar["name"], "person": person["full_name"], "email": old}
        return self.draft(database, rng, plan, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        calendar = yield from find_calendar(plan["calendar"])
        user = yield from find_user(plan["person"])
        scope = {"calendar_id": calendar["calendar_id"]}
        yield from _grant(scope["calendar_id"], user["email"], "owner")
        rule = yield from _find_rule(scope["calendar_id"], plan["email"])
        match = {"email": plan["email"]}
        landed = seen_in("list_acl", scope, rows="rules", match=match, gone=True)
        yield from write("delete_acl_rule", {"rule_id": rule["rule_id"]}, landed=landed)
        return DONE


class ManagerAccess(CalendarTemplate):
    """Give the manager of a person who is known by e-mail access to a calendar."""

    name = "manager_access"
    tools = ("get_user_by_email", "list_calendars", "create_acl_rule", "list_acl")
    wordings = (
        "Let the manager of {email} into the {calendar} calendar as {role}.",
        "The person {email} reports to needs {role} access to {calendar}.",
        "Please find the manager of {email} and share the {calendar} calendar with them, role {role}.",
        "Whoever manages {email} should have the role {role} on the {calendar} calendar. Please add that.",
        "Give the boss of {email} the role {role} on {calendar}.",
        "Share {calendar} with the line manager of {email}; {role} is enough.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        calendar = pick(rng, calendars(database))
        if calendar is None:
            return None
        rules, known = _rules(database, calendar), {row["email"] for row in people(database)}
        free = [p for p in people(database) if p["manager_email"] in known - set(rules)]
        person = pick(rng, free)
        if person is None:
            return None
        role = rng.choice(ROLES)
        manager = person["manager_email"]
        where = f"{on_calendar(calendar['name'])} AND email = {quote(manager)}"
        checks = (
            counted("manager_has_access", "acl_rules", where),
            counted("right_role", "acl_rules", f"{where} AND role = '{role}'"),
            access_list(database, calendar["name"], {manager: role}),
            row_counts(database, acl_rules=1),
        )
        edges = [("manager_has_access", "right_role"), ("right_role", "access_list")]
        edges.append(("manager_has_access", "no_extra_rows"))
        plan = {"calendar": calendar["name"], "email": person["email"], "role": role}
        return self.draft(database, rng, plan, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        key = {"email": plan["email"]}
        person = yield from read_row("get_user_by_email", key, match=key)
        assert person is not None, "not optional, so read_row returns a row"
        calendar = yield from find_calendar(plan["calendar"])
        yield from _grant(calendar["calendar_id"], person["manager_email"], plan["role"])
        return DONE
