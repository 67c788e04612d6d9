"""Task templates about knowledge, problems and groups."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from robustops.records import StateCheck
from robustops.worlds.database import WorldDatabase
from robustops.worlds.domain import Draft, ExpertScript
from robustops.worlds.domains.itsm import words
from robustops.worlds.domains.itsm.templates import base
from robustops.worlds.expert import read_rows, write

_OPEN = "status IN ('new', 'in_progress', 'on_hold')"


class PublishArticle(base.ItsmTemplate):
    """Write a knowledge article for an owner and attach it to an incident."""

    name = "publish_article"
    tools = (
        "create_knowledge_article",
        "find_incident_by_number",
        "find_incident_knowledge_links",
        "get_user_using_name",
        "link_knowledge_to_incident",
        "retrieve_knowledge_articles",
    )
    wordings = (
        'Publish the article "{title}" owned by {owner} and attach it to {number} as {used_as}.',
        'Write a knowledge article "{title}" for {owner}, then link it to {number} as {used_as}.',
        '{owner} wants an article titled "{title}". Create it and put it on {number} as {used_as}.',
        'Please create "{title}" (owner {owner}) in the knowledge base and attach it to {number}, '
        "used as {used_as}.",
        'For {number} we need a new article "{title}" by {owner}. Publish it and link it as {used_as}.',
        'Add "{title}" to the knowledge base under {owner} and link it to {number} as {used_as}.',
    )
    titles = (
        "Steps when the {} {}",
        "What to do if the {} {}",
        "Quick fix: {} {}",
        "Notes on how the {} {}",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        owner = base.some(rng, base.users(database), 1)
        incident = base.some(rng, base.incidents(database, _OPEN), 1)
        subject, _ = rng.choice(words.SUBJECTS)
        title = rng.choice(self.titles).format(subject.lower(), rng.choice(words.SYMPTOMS))
        if not owner or not incident or database.find("knowledge", title=title):
            return None
        plan = {
            "owner": base.full_name(owner[0]),
            "number": incident[0]["number"],
            "title": title,
            "used_as": rng.choice(("applied", "resolution")),
        }
        made = {"title": title, "owner_id": owner[0]["user_id"], "state": "published"}
        article = f"(SELECT knowledge_id FROM knowledge WHERE title = {base.quoted(title)})"
        query = base.count_where(
            "incident_knowledge", incident_id=incident[0]["incident_id"], used_as=plan["used_as"]
        )
        linked = StateCheck("linked", f"{query} AND knowledge_id IN {article}", 1, world="itsm")
        checks = (base.holds("published", "knowledge", **made), linked)
        return self.draft(database, rng, plan, checks, writes=2, after=[("published", "linked")])

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        owner = base.needed((yield from base.find_user(plan["owner"])), "user_id")
        values = {"title": plan["title"], "owner_id": owner}
        landed = base.in_list("retrieve_knowledge_articles", "knowledges", {"title": plan["title"]})
        article = yield from write("create_knowledge_article", values, landed=landed)
        key = base.needed((yield from base.find_incident(plan["number"])), "incident_id")
        pair = {"incident_id": key, "knowledge_id": article["knowledge_id"]}
        landed = base.in_list("find_incident_knowledge_links", "incident_knowledges", pair)
        used = {**pair, "used_as": plan["used_as"]}
        yield from write("link_knowledge_to_incident", used, landed=landed)
        return f'"{plan["title"]}" is published and linked to {plan["number"]}.'


class AttachArticle(base.ItsmTemplate):
    """Attach an existing article, found by its title, to an incident."""

    name = "attach_article"
    tools = (
        "find_incident_by_number",
        "find_incident_knowledge_links",
        "link_knowledge_to_incident",
        "retrieve_knowledge_articles",
    )
    wordings = (
        'Attach the article "{title}" to {number} as {used_as}.',
        'Link our article "{title}" to incident {number}, used as {used_as}.',
        '"{title}" helps with {number}. Link it there as {used_as}.',
        'For {number}, please record the knowledge article "{title}" as {used_as}.',
        'Put the knowledge article "{title}" on {number} and mark it {used_as}.',
        '{number} should show the article "{title}" as {used_as}.',
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        article = base.choose(
            database,
            rng,
            "SELECT * FROM knowledge k WHERE (SELECT COUNT(*) FROM knowledge o WHERE "
            "instr(lower(o.title), lower(k.title))) = 1 ORDER BY rowid",
        )
        if article is None:
            return None
        key = article["knowledge_id"]
        free = (
            "incident_id NOT IN (SELECT incident_id FROM incident_knowledge WHERE "
            f"knowledge_id = {base.quoted(key)})"
        )
        incident = base.some(rng, base.incidents(database, f"{free} AND {_OPEN}"), 1)
        if not incident:
            return None
        pair = {"incident_id": incident[0]["incident_id"], "knowledge_id": key}
        used_as = rng.choice(("applied", "resolution", "suggested"))
        plan = {"title": article["title"], "number": incident[0]["number"], "used_as": used_as}
        checks = (
            base.holds("linked", "incident_knowledge", **pair),
            base.holds("marked", "incident_knowledge", **pair, used_as=used_as),
        )
        return self.draft(database, rng, plan, checks, writes=1, after=[("linked", "marked")])

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        key = base.needed((yield from base.find_incident(plan["number"])), "incident_id")
        title = {"title": plan["title"]}
        found = yield from read_rows("retrieve_knowledge_articles", title, rows="knowledges", match=title)
        pair = {"incident_id": key, "knowledge_id": base.needed(found[0] if found else None, "knowledge_id")}
        landed = base.in_list("find_incident_knowledge_links", "incident_knowledges", pair)
        used = {**pair, "used_as": plan["used_as"]}
        yield from write("link_knowledge_to_incident", used, landed=landed)
        return f'"{plan["title"]}" is on {plan["number"]}.'


class JoinGroup(base.ItsmTemplate):
    """Add a user to a group."""

    name = "join_group"
    tools = ("add_new_group_member", "find_group_by_name", "get_user_using_name", "list_group_members")
    wordings = (
        "Add {person} to the group {group}.",
        "{person} joins {group}. Please add the membership.",
        "Make {person} a member of {group}.",
        "From today {person} works with {group}; put them into that group.",
        "The group {group} gets a new member: {person}.",
        "Please give {person} a membership in {group}.",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        person = base.some(rng, base.users(database), 1)
        if not person:
            return None
        key = person[0]["user_id"]
        mine = {row["group_id"] for row in database.find("user_group_member", user_id=key)}
        group = base.some(rng, [row for row in base.groups(database) if row["group_id"] not in mine], 1)
        if not group:
            return None
        plan = {"person": base.full_name(person[0]), "group": group[0]["name"]}
        pair = {"group_id": group[0]["group_id"], "user_id": key}
        size = len(database.find("user_group_member", group_id=group[0]["group_id"])) + 1
        checks = (
            base.holds("member", "user_group_member", **pair),
            base.holds("group_size", "user_group_member", times=size, group_id=pair["group_id"]),
        )
        return self.draft(database, rng, plan, checks, writes=1, after=[("member", "group_size")])

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        user = base.needed((yield from base.find_user(plan["person"])), "user_id")
        group = base.needed((yield from base.find_group(plan["group"])), "group_id")
        pair = {"group_id": group, "user_id": user}
        landed = base.in_list("list_group_members", "group_members", pair)
        yield from write("add_new_group_member", pair, landed=landed)
        return f"{plan['person']} is in {plan['group']}."


class CloseProblem(base.ItsmTemplate):
    """Resolve a problem, and move on the incident that it came from."""

    name = "close_problem"
    tools = (
        "find_problem_by_number",
        "list_incidents",
        "list_problems",
        "update_incident",
        "update_problem",
    )
    wordings = (
        'Resolve problem {number} with the fix notes "{notes}" and set its original incident to {status}.',
        'Problem {number} is fixed: "{notes}". Make it resolved, and its original incident {status}.',
        'Set {number} to resolved, fix notes "{notes}". Its original task becomes {status}.',
        'Please resolve {number} ("{notes}" goes into the fix notes) and then mark its original incident '
        "as {status}.",
        'The team fixed {number}. Fix notes: "{notes}". Resolve it; the incident behind it becomes {status}.',
        '{number} is done. Resolve it with fix notes "{notes}"; the incident it came from becomes {status}.',
    )
    notes = (
        "Replaced the power supply",
        "Rolled back the update",
        "Added more memory",
        "Changed the timeout",
        "Moved the data to a new disk",
        "Removed the broken driver",
    )

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        rows = base.numbered(
            database,
            "problem",
            "status NOT IN ('resolved', 'closed') AND original_task IN "
            "(SELECT incident_id FROM incident WHERE status NOT IN ('closed', 'canceled'))",
        )
        problem = base.some(rng, rows, 1)
        if not problem:
            return None
        key = problem[0]["problem_id"]
        task = {"incident_id": problem[0]["original_task"]}
        is_resolved = database.find("incident", **task, status="resolved")
        plan = {
            "number": problem[0]["number"],
            "notes": rng.choice(self.notes),
            "status": "closed" if is_resolved else "resolved",
        }
        checks = (
            base.holds("problem_resolved", "problem", problem_id=key, status="resolved"),
            base.holds("fix_noted", "problem", problem_id=key, fix_notes=plan["notes"]),
            base.holds("incident_moved", "incident", **task, status=plan["status"]),
        )
        after = [("problem_resolved", "fix_noted")]
        return self.draft(database, rng, plan, checks, writes=2, after=after)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        problem = yield from base.find_by("find_problem_by_number", "number", plan["number"])
        key, task = base.needed(problem, "problem_id"), base.needed(problem, "original_task")
        values = {"problem_id": key, "status": "resolved", "fix_notes": plan["notes"]}
        landed = base.in_list("list_problems", "problems", values)
        yield from write("update_problem", values, landed=landed)
        yield from base.update_incident(task, status=plan["status"])
        return f"{plan['number']} is resolved, its incident {plan['status']}."
