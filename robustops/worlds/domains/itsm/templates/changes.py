"""Task templates about changes and the incidents that they cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from robustops.records import StateCheck
from robustops.worlds.database import WorldDatabase
from robustops.worlds.domain import Draft, ExpertScript
from robustops.worlds.domains.itsm import words
from robustops.worlds.domains.itsm.templates import base
from robustops.worlds.expert import Rows, seen_row, write

_OPEN = "status IN ('new', 'in_progress', 'on_hold')"


class OpenChange(base.ItsmTemplate):
    """Open a change for an item and map incidents to it."""

    name = "open_change"
    tools = (
        "create_change",
        "find_change_request_mappings_for_incident",
        "find_configuration_item_by_serial_number",
        "find_incident_by_number",
        "list_changes",
        "map_change_request",
    )
    wordings = (
        'Open a new change "{text}" for {serial} (impact {impact}, risk {risk}, priority {priority}) '
        "and map {incidents} to it.",
        '{serial} needs a change: "{text}". Impact {impact}, risk {risk}, priority {priority}, status new. '
        "Then map it to {incidents}.",
        'Please create the change "{text}" on item {serial}, status new, impact {impact}, risk {risk}, '
        "priority {priority}. It belongs to {incidents}.",
        'Raise a change for {serial} called "{text}" in status new. Impact: {impact}. Risk: {risk}. '
        "Priority: {priority}. Map {incidents}.",
        'To fix {incidents} we plan "{text}" on {serial}. Open this change as new with impact {impact}, '
        "risk {risk}, priority {priority} and map it.",
        'New change request: "{text}", item {serial}, impact {impact}, risk {risk}, priority {priority}. '
        "Link it to {incidents}.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        item = base.some(rng, base.items(database), 1)
        chosen = base.some(rng, base.incidents(database, _OPEN), rng.choice((1, 2, 2, 3)))
        text = rng.choice(words.CHANGES) + rng.choice(("", " in May", " at night", " on site"))
        if not item or not chosen or database.find("change", short_description=text):
            return None
        plan = {
            "serial": item[0]["serial_number"],
            "text": text,
            "impact": rng.choice(("low", "medium", "high")),
            "risk": rng.choice(("low", "medium", "high")),
            "priority": rng.choice(("low", "moderate", "high")),
            "incidents": [row["number"] for row in chosen],
        }
        made = {"short_description": text, "configuration_item": item[0]["configuration_item_id"]}
        rated = {name: plan[name] for name in ("impact", "risk", "priority")}
        change = f"(SELECT change_id FROM change WHERE short_description = {base.quoted(text)})"
        ids = ", ".join(base.quoted(row["incident_id"]) for row in chosen)
        mapped = (
            f"SELECT COUNT(*) FROM change_request_mapping WHERE change_id IN {change} "
            f"AND incident_id IN ({ids})"
        )
        checks = (
            base.holds("opened", "change", **made),
            base.holds("rated", "change", **made, **rated, status="new"),
            StateCheck("mapped", mapped, len(chosen), world="itsm"),
        )
        after = [("opened", "rated"), ("opened", "mapped")]
        return self.draft(database, rng, plan, checks, writes=1 + len(chosen), after=after)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        item = base.needed((yield from base.find_item(plan["serial"])), "configuration_item_id")
        values = {
            "short_description": plan["text"],
            "status": "new",
            "impact": plan["impact"],
            "risk": plan["risk"],
            "priority": plan["priority"],
            "configuration_item": item,
        }
        landed = base.in_list("list_changes", "changes", {"short_description": plan["text"]})
        change = yield from write("create_change", values, landed=landed)
        yield from map_incidents(change["change_id"], plan["incidents"])
        return f"Change {change['number']} is open and mapped."


def map_incidents(change_id: str, numbers: Sequence[str]) -> Rows:
    """Map a change to each of the incidents named by number."""
    rows = []
    for number in numbers:
        key = base.needed((yield from base.find_incident(number)), "incident_id")
        pair = {"change_id": change_id, "incident_id": key}
        landed = seen_row(
            "find_change_request_mappings_for_incident",
            {"incident_id": key},
            rows="change_request_mappings",
            match=pair,
        )
        rows.append((yield from write("map_change_request", pair, landed=landed)))
    return rows


class MapChange(base.ItsmTemplate):
    """Map an existing change to incidents."""

    name = "map_change"
    tools = (
        "find_change_by_number",
        "find_change_request_mappings_for_incident",
        "find_incident_by_number",
        "map_change_request",
    )
    wordings = (
        "Map change {change} to {incidents}.",
        "{incidents} will be fixed by {change}. Map the change.",
        "Please link the change {change} with {incidents}.",
        "Record that {change} belongs to {incidents} with a change mapping.",
        "Change {change} covers {incidents}. Add the mapping.",
        "Connect {incidents} with change {change}.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        where = "status NOT IN ('closed', 'canceled')"
        change = base.some(rng, base.numbered(database, "change", where), 1)
        if not change:
            return None
        key = change[0]["change_id"]
        free = (
            "incident_id NOT IN (SELECT incident_id FROM change_request_mapping WHERE incident_id NOT NULL "
            f"AND change_id = {base.quoted(key)})"
        )
        chosen = base.some(rng, base.incidents(database, f"{free} AND {_OPEN}"), rng.choice((1, 2)))
        if not chosen:
            return None
        plan = {
            "change": change[0]["number"],
            "incidents": [row["number"] for row in chosen],
        }
        checks = [
            base.holds(
                f"mapped_{place}", "change_request_mapping", change_id=key, incident_id=row["incident_id"]
            )
            for place, row in enumerate(chosen, start=1)
        ]
        return self.draft(database, rng, plan, checks, writes=len(chosen))

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        change = yield from base.find_by("find_change_by_number", "number", plan["change"])
        rows = yield from map_incidents(base.needed(change, "change_id"), plan["incidents"])
        return f"{plan['change']} is mapped to {len(rows)} incidents."
