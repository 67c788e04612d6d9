"""Task templates that change several incidents, or link them to each other."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from robustops.worlds.database import Row, WorldDatabase
from robustops.worlds.domain import Draft, ExpertScript
from robustops.worlds.domains.itsm.templates import base
from robustops.worlds.expert import write

#: How many incidents a loop covers at most.
MOST = 3


class EscalateItem(base.ItsmTemplate):
    """Raise the priority of all incidents of a state on one item."""

    name = "escalate_item"
    tools = ("find_configuration_item_by_serial_number", "list_incidents", "update_incident")
    wordings = (
        "Set every incident on {serial} that is {status} to priority {priority}.",
        "All {status} incidents about {serial} must have priority {priority}.",
        "Escalate {serial}: give each of its incidents in status {status} the priority {priority}.",
        "Please change the priority of all incidents on item {serial} with status {status} to {priority}.",
        "{serial} matters more now. Its {status} incidents should all get priority {priority}.",
        "For item {serial}, put all incidents with status {status} on priority {priority}.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        priority = rng.choice(("critical", "high"))
        target = base.choose(
            database,
            rng,
            "SELECT configuration_item AS item, status FROM incident WHERE configuration_item IS NOT NULL "
            "AND status IN ('new', 'in_progress') GROUP BY configuration_item, status "
            "HAVING COUNT(*) BETWEEN 2 AND ? AND SUM(priority = ?) = 0 ORDER BY MIN(rowid)",
            (MOST, priority),
        )
        if target is None:
            return None
        item = base.items(database, f"configuration_item_id = {base.quoted(target['item'])}")[0]
        rows = database.find("incident", configuration_item=target["item"], status=target["status"])
        ids = [row["incident_id"] for row in rows]
        plan = {"serial": item["serial_number"], "status": target["status"], "priority": priority}
        checks = (
            base.all_have("first_raised", "incident", ids[:1], priority=priority),
            base.all_have("all_raised", "incident", ids, priority=priority),
        )
        after = [("first_raised", "all_raised")]
        return self.draft(database, rng, plan, checks, writes=len(ids), after=after)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        item = base.needed((yield from base.find_item(plan["serial"])), "configuration_item_id")
        rows = yield from base.list_incidents(configuration_item=item, status=plan["status"])
        for row in rows:
            yield from base.update_incident(row["incident_id"], priority=plan["priority"])
        return f"{len(rows)} incidents have priority {plan['priority']}."


class HandOver(base.ItsmTemplate):
    """Give a user's incidents of a state to a colleague."""

    name = "hand_over"
    tools = ("get_user_using_name", "list_incidents", "update_incident")
    wordings = (
        "{giver} is away. Assign all incidents of {giver} with status {status} to {taker}.",
        "Please move every {status} incident assigned to {giver} over to {taker}.",
        "{taker} takes over from {giver}: reassign all incidents in status {status}.",
        "Reassign the {status} incidents of {giver} to {taker}.",
        "All incidents with status {status} that {giver} holds now belong to {taker}. Change the assignee.",
        "Hand the {status} incidents from {giver} to {taker}, nothing else.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        people = {row["user_id"]: row for row in base.users(database)}
        loads = database.query(
            "SELECT assigned_to AS giver, status FROM incident WHERE status IN ('new', 'in_progress', "
            "'on_hold') GROUP BY assigned_to, status HAVING COUNT(*) BETWEEN 1 AND ? ORDER BY MIN(rowid)",
            (MOST,),
        )
        loads = [row for row in loads if row["giver"] in people]
        takers = [row for row in people.values() if row["role"] == "agent"]
        if not loads or len(takers) < 2:
            return None
        load = rng.choice(loads)
        taker = rng.choice([row for row in takers if row["user_id"] != load["giver"]])
        rows = database.find("incident", assigned_to=load["giver"], status=load["status"])
        ids = [row["incident_id"] for row in rows]
        plan = {
            "giver": base.full_name(people[load["giver"]]),
            "taker": base.full_name(taker),
            "status": load["status"],
        }
        checks = (
            base.all_have("first_moved", "incident", ids[:1], assigned_to=taker["user_id"]),
            base.all_have("all_moved", "incident", ids, assigned_to=taker["user_id"]),
        )
        after = [("first_moved", "all_moved")]
        return self.draft(database, rng, plan, checks, writes=len(ids), after=after)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        giver = base.needed((yield from base.find_user(plan["giver"])), "user_id")
        taker = base.needed((yield from base.find_user(plan["taker"])), "user_id")
        rows = yield from base.list_incidents(assigned_to=giver, status=plan["status"])
        for row in rows:
            yield from base.update_incident(row["incident_id"], assigned_to=taker)
        return f"{len(rows)} incidents now belong to {plan['taker']}."


class LinkChildren(base.ItsmTemplate):
    """Make incidents the children of another one."""

    name = "link_children"
    tools = ("add_child_incident", "find_incident_by_number", "list_child_incidents")
    wordings = (
        "Make {children} part of {parent} as child incidents.",
        "{parent} is the main incident. Link {children} to it as children.",
        "Please attach {children} to the parent incident {parent}.",
        "Group our reports: {parent} is the parent, {children} below it.",
        "Link these as child incidents of {parent}: {children}.",
        "{children} came from the same outage as {parent}. Add them under that parent.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        free = "incident_id NOT IN (SELECT child_incident FROM child_incident)"
        rows = base.incidents(database, f"{free} AND status NOT IN ('closed', 'canceled')")
        rows = [
            row for row in rows if not database.find("child_incident", parent_incident=row["incident_id"])
        ]
        chosen = base.some(rng, rows, rng.choice((2, 2, 3, 3, 4)))
        if not chosen:
            return None
        parent, *children = chosen
        plan = {"parent": parent["number"], "children": [row["number"] for row in children]}
        checks = [
            base.holds(
                f"child_{place}",
                "child_incident",
                parent_incident=parent["incident_id"],
                child_incident=child["incident_id"],
            )
            for place, child in enumerate(children, start=1)
        ]
        count = base.holds(
            "family_size", "child_incident", times=len(children), parent_incident=parent["incident_id"]
        )
        after = [(check.name, count.name) for check in checks]
        return self.draft(database, rng, plan, (*checks, count), writes=len(children), after=after)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        parent = base.needed((yield from base.find_incident(plan["parent"])), "incident_id")
        for number in plan["children"]:
            child = base.needed((yield from base.find_incident(number)), "incident_id")
            pair = {"parent_incident": parent, "child_incident": child}
            landed = base.in_list(
                "list_child_incidents", "child_incidents", {"parent_incident": parent}, match=pair
            )
            yield from write("add_child_incident", pair, landed=landed)
        return f"{len(plan['children'])} child incidents are linked to {plan['parent']}."


class LinkProblem(base.ItsmTemplate):
    """Set the problem of one or two incidents."""

    name = "link_problem"
    tools = ("find_incident_by_number", "find_problem_by_number", "list_incidents", "update_incident")
    wordings = (
        "Link {incidents} to problem {problem}.",
        "{problem} is the cause of {incidents}. Set the problem on each.",
        "Please set problem {problem} on {incidents}.",
        "We found the cause: {problem}. Record it on {incidents}.",
        "Attach the problem {problem} to {incidents}.",
        "{incidents}: put {problem} in the problem field.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        problem = base.some(rng, base.numbered(database, "problem"), 1)
        rows = base.incidents(database, "problem IS NULL AND status NOT IN ('closed', 'canceled')")
        chosen = base.some(rng, rows, rng.choice((1, 2, 2, 3)))
        if not problem or not chosen:
            return None
        key = problem[0]["problem_id"]
        plan = {
            "problem": problem[0]["number"],
            "incidents": [row["number"] for row in chosen],
        }
        checks = [
            base.holds(f"linked_{place}", "incident", incident_id=row["incident_id"], problem=key)
            for place, row in enumerate(chosen, start=1)
        ]
        total = base.holds("linked_in_all", "incident", times=self._total(database, key, chosen), problem=key)
        after = [(check.name, total.name) for check in checks]
        return self.draft(database, rng, plan, (*checks, total), writes=len(chosen), after=after)

    @staticmethod
    def _total(database: WorldDatabase, problem: str, chosen: list[Row]) -> int:
        return len(database.find("incident", problem=problem)) + len(chosen)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        problem = yield from base.find_by("find_problem_by_number", "number", plan["problem"])
        for number in plan["incidents"]:
            key = base.needed((yield from base.find_incident(number)), "incident_id")
            yield from base.update_incident(key, problem=base.needed(problem, "problem_id"))
        return f"{base.spoken(plan['incidents'])} linked to {plan['problem']}."
