"""Task templates about single incidents."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from robustops.worlds.database import WorldDatabase
from robustops.worlds.domain import Draft, ExpertScript
from robustops.worlds.domains.itsm import words
from robustops.worlds.domains.itsm.templates import base
from robustops.worlds.expert import read_row, write

_OPEN = "status IN ('new', 'in_progress')"
_TROUBLES = (
    "{subject} {symptom}",
    "{subject} {symptom} since Monday",
    "{subject} {symptom} after the update",
    "{subject} {symptom} again",
    "New report: {subject} {symptom}",
)


def trouble(rng: Random) -> str:
    """A short description of an incident that is to be opened."""
    subject, _ = rng.choice(words.SUBJECTS)
    return rng.choice(_TROUBLES).format(subject=subject, symptom=rng.choice(words.SYMPTOMS))


class OpenIncident(base.ItsmTemplate):
    """Open an incident for a caller on an item and give it to a group."""

    name = "open_incident"
    tools = (
        "create_incident",
        "find_configuration_item_by_serial_number",
        "find_group_by_name",
        "get_user_using_name",
        "list_incidents",
    )
    wordings = (
        'Open an incident for {caller}: "{text}". It is about {serial} and goes to {group}.',
        '{caller} called about {serial}: "{text}". Log an incident and assign it to the group {group}.',
        'Please register "{text}" for {caller}, item {serial}, assignment group {group}.',
        'We need a new incident. Caller: {caller}. Item: {serial}. Group: {group}. Text: "{text}".',
        'Log "{text}" on {serial} for {caller} and route it to {group}.',
        'Create a ticket for {group}: "{text}", reported by {caller}, affected item {serial}.',
        'Item {serial} gives {caller} trouble. Raise an incident "{text}" with {group}.',
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        caller = base.some(rng, base.users(database), 1)
        item = base.some(rng, base.items(database), 1)
        group = base.some(rng, base.groups(database), 1)
        text = trouble(rng)
        taken = database.scalar(base.count_where("incident", short_description=text))
        if not (caller and item and group) or taken:
            return None
        plan = {
            "caller": base.full_name(caller[0]),
            "serial": item[0]["serial_number"],
            "group": group[0]["name"],
            "text": text,
        }
        made = {"short_description": text, "caller_id": caller[0]["user_id"]}
        key = {"configuration_item": item[0]["configuration_item_id"]}
        checks = (
            base.holds("opened_for_caller", "incident", **made),
            base.holds("on_item", "incident", **made, **key),
            base.holds("with_group", "incident", **made, assignment_group=group[0]["group_id"]),
        )
        after = [("opened_for_caller", "on_item"), ("opened_for_caller", "with_group")]
        return self.draft(database, rng, plan, checks, writes=1, after=after)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        caller = base.needed((yield from base.find_user(plan["caller"])), "user_id")
        item = base.needed((yield from base.find_item(plan["serial"])), "configuration_item_id")
        group = base.needed((yield from base.find_group(plan["group"])), "group_id")
        values = {
            "caller_id": caller,
            "short_description": plan["text"],
            "configuration_item": item,
            "assignment_group": group,
        }
        landed = base.in_list("list_incidents", "incidents", {"short_description": plan["text"]})
        row = yield from write("create_incident", values, landed=landed)
        return f"The incident is open: {row['incident_id']}."


class ResolveIncident(base.ItsmTemplate):
    """Resolve an incident that is named by number."""

    name = "resolve_incident"
    tools = ("find_incident_by_number", "list_incidents", "update_incident")
    wordings = (
        'Resolve {number} with code "{code}" and the note "{notes}".',
        'Incident {number} is fixed. Set it to resolved, resolution code "{code}", notes "{notes}".',
        'Please mark {number} as resolved. Code: "{code}". Resolution notes: "{notes}".',
        '{number} can be resolved now: "{notes}". Use the code "{code}".',
        'The caller agrees that {number} is done. Resolve it ("{code}") and note "{notes}".',
        'Set the status of {number} to resolved. The resolution code is "{code}", the note "{notes}".',
    )
    codes = ("Solution Provided", "Workaround Provided", "Known Error", "User error", "Resolved By Caller")
    notes = (
        "Restarted the service",
        "Replaced the cable",
        "Cleared the cache",
        "Renewed the license",
        "Reset the password",
        "Showed the caller how",
        "Updated the driver",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        incident = base.some(rng, base.incidents(database, _OPEN), 1)
        if not incident:
            return None
        key = incident[0]["incident_id"]
        plan = {
            "number": incident[0]["number"],
            "code": rng.choice(self.codes),
            "notes": rng.choice(self.notes),
        }
        checks = (
            base.holds("resolved", "incident", incident_id=key, status="resolved"),
            base.holds("code", "incident", incident_id=key, resolution_code=plan["code"]),
            base.holds("notes", "incident", incident_id=key, resolution_notes=plan["notes"]),
        )
        after = [("resolved", "code"), ("resolved", "notes")]
        return self.draft(database, rng, plan, checks, writes=1, after=after)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        key = base.needed((yield from base.find_incident(plan["number"])), "incident_id")
        changes = {"status": "resolved", "resolution_code": plan["code"], "resolution_notes": plan["notes"]}
        yield from base.update_incident(key, **changes)
        return f"{plan['number']} is resolved."


class HoldAndNotify(base.ItsmTemplate):
    """Put an incident on hold with a reason and tell its caller."""

    name = "hold_and_notify"
    tools = (
        "find_incident_by_number",
        "find_notifications",
        "get_user",
        "list_incidents",
        "send_notification",
        "update_incident",
    )
    wordings = (
        'Put {number} on hold, reason "{reason}", and send the caller an update: "{message}".',
        'Incident {number} has to wait ("{reason}"). Put it on hold and notify its caller: "{message}".',
        'Set {number} to on hold with the reason "{reason}". Then tell the caller "{message}" by an update.',
        'Please park {number} as "{reason}" and write the caller an update that says "{message}".',
        '{number}: on hold, "{reason}". The caller should get an update with the message "{message}".',
        'We cannot go on with {number}. Hold it as "{reason}" and send its caller the update "{message}".',
    )
    reasons = ("Awaiting Change", "Awaiting Caller", "Awaiting Problem")
    messages = (
        "We wait for a part",
        "We will call you tomorrow",
        "Work goes on next week",
        "Please keep the device on",
        "We need your answer first",
        "A fix is planned",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        rows = base.incidents(database, f"{_OPEN} AND caller_id IN (SELECT user_id FROM users WHERE active)")
        incident = base.some(rng, rows, 1)
        if not incident:
            return None
        key, caller = incident[0]["incident_id"], incident[0]["caller_id"]
        email = database.scalar("SELECT email FROM users WHERE user_id = ?", (caller,))
        plan = {
            "number": incident[0]["number"],
            "reason": rng.choice(self.reasons),
            "message": rng.choice(self.messages),
        }
        sent = {"incident_id": key, "email": email, "type": "update"}
        if database.find("notification", **sent):
            return None
        checks = (
            base.holds("on_hold", "incident", incident_id=key, status="on_hold"),
            base.holds("reason", "incident", incident_id=key, on_hold_reason=plan["reason"]),
            base.holds("caller_notified", "notification", **sent, message=plan["message"]),
        )
        after = [("on_hold", "reason")]
        return self.draft(database, rng, plan, checks, writes=2, after=after, avoid=[caller])

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        incident = yield from base.find_incident(plan["number"])
        key, caller = base.needed(incident, "incident_id"), base.needed(incident, "caller_id")
        yield from base.update_incident(key, status="on_hold", on_hold_reason=plan["reason"])
        user = yield from read_row("get_user", {"user_id": caller}, match={"user_id": caller})
        to = {"incident_id": key, "email": base.needed(user, "email"), "type": "update"}
        landed = base.in_list("find_notifications", "notifications", to)
        yield from write("send_notification", {**to, "message": plan["message"]}, landed=landed)
        return f"{plan['number']} is on hold and the caller knows."


class AffectedItem(base.ItsmTemplate):
    """Record an item on an incident, in both places that hold it."""

    name = "affected_item"
    tools = (
        "find_configuration_item_by_serial_number",
        "find_incident_by_number",
        "link_affected_ci_to_incident",
        "list_incident_affected_cis",
        "list_incidents",
        "update_incident",
    )
    wordings = (
        "Record {serial} on {number}: as affected item and in the incident itself.",
        "{number} is about {serial}. Set the item on the incident and add the affected-item link.",
        "Please add {serial} to {number}, both as a link to the affected item and as its configuration item.",
        "The device behind {number} is {serial}. Link it as affected and put it on the incident record.",
        "Make {serial} the configuration item of {number} and link it as an affected item too.",
        "For {number}: link the affected item {serial} and set it as configuration item.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        incident = base.some(rng, base.incidents(database, "status NOT IN ('closed', 'canceled')"), 1)
        if not incident:
            return None
        key = incident[0]["incident_id"]
        free = (
            f"configuration_item_id IS NOT {base.quoted(incident[0]['configuration_item'])} AND "
            "configuration_item_id NOT IN (SELECT configuration_item FROM incident_affected_cis "
            f"WHERE incident_id = '{key}')"
        )
        item = base.some(rng, base.items(database, free), 1)
        if not item:
            return None
        pair = {"incident_id": key, "configuration_item": item[0]["configuration_item_id"]}
        plan = {"number": incident[0]["number"], "serial": item[0]["serial_number"]}
        checks = (
            base.holds("linked", "incident_affected_cis", **pair),
            base.holds("on_record", "incident", **pair),
        )
        return self.draft(database, rng, plan, checks, writes=2)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        key = base.needed((yield from base.find_incident(plan["number"])), "incident_id")
        item = base.needed((yield from base.find_item(plan["serial"])), "configuration_item_id")
        pair = {"configuration_item": item, "incident_id": key}
        landed = base.in_list("list_incident_affected_cis", "incident_affected_cis", pair)
        yield from write("link_affected_ci_to_incident", pair, landed=landed)
        yield from base.update_incident(key, configuration_item=item)
        return f"{plan['serial']} is on {plan['number']}."


class StartSla(base.ItsmTemplate):
    """Start an SLA clock on an incident."""

    name = "start_sla"
    tools = (
        "find_incident_by_number",
        "find_incident_slas",
        "find_sla_definition_by_name",
        "link_new_incident_sla",
    )
    wordings = (
        "Start the SLA {sla} on {number}.",
        "{number} has no {sla} clock yet. Please attach that SLA.",
        "Link the SLA definition {sla} to incident {number}.",
        "Incident {number} falls under {sla}. Add this SLA to it.",
        "Attach {sla} to {number} so that its clock runs.",
        "Please put {number} under the SLA named {sla}.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        incident = base.some(rng, base.incidents(database, _OPEN), 1)
        if not incident:
            return None
        key = incident[0]["incident_id"]
        sla = base.choose(
            database,
            rng,
            "SELECT * FROM sla_definition s WHERE active AND sla_def_id NOT IN "
            "(SELECT sla_def_id FROM incident_sla WHERE incident_id = ?) AND "
            "(SELECT COUNT(*) FROM sla_definition o WHERE o.name = s.name) = 1 ORDER BY rowid",
            (key,),
        )
        if sla is None:
            return None
        pair = {"incident_id": key, "sla_def_id": sla["sla_def_id"]}
        checks = (base.holds("clock_runs", "incident_sla", **pair, stage="in_progress"),)
        plan = {"number": incident[0]["number"], "sla": sla["name"]}
        return self.draft(database, rng, plan, checks, writes=1)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        key = base.needed((yield from base.find_incident(plan["number"])), "incident_id")
        sla = yield from base.find_by("find_sla_definition_by_name", "name", plan["sla"])
        pair = {"incident_id": key, "sla_def_id": base.needed(sla, "sla_def_id")}
        landed = base.in_list("find_incident_slas", "incident_slas", pair)
        yield from write("link_new_incident_sla", pair, landed=landed)
        return f"{plan['sla']} runs on {plan['number']}."
