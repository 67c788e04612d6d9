"""Tools about knowledge articles and their links to incidents."""

from __future__ import annotations

from typing import Any

from robustops.errors import ToolError
from robustops.worlds.database import Row
from robustops.worlds.domains.itsm.enums import ArticleState, UsedAs, Visibility, members
from robustops.worlds.domains.itsm.tools.base import ItsmBase
from robustops.worlds.toolset import tool


class KnowledgeTools(ItsmBase):
    """Knowledge articles."""

    @tool("write")
    def create_knowledge_article(
        self,
        title: str,
        owner_id: str,
        body: str | None = None,
        state: ArticleState | None = None,
        visibility: Visibility | None = None,
    ) -> Row:
        """Write a knowledge article."""
        self._check_owner(owner_id)
        self._check_title(title, owner_id, None)
        values = {
            "kb_number": self._next_label("knowledge", "kb_number", "KB"),
            "title": title,
            "body": body,
            "state": state or "published",
            "visibility": visibility or "internal",
            "owner_id": owner_id,
            "org_id": self._organisation(),
        }
        return self._reply("knowledge", self._insert("knowledge", values), ("owner_id",))

    @tool("write")
    def update_knowledge_article(
        self,
        knowledge_id: str | None = None,
        kb_number: str | None = None,
        title: str | None = None,
        body: str | None = None,
        state: ArticleState | None = None,
        visibility: Visibility | None = None,
        owner_id: str | None = None,
    ) -> Row:
        """Change fields of a knowledge article, named by its knowledge_id."""
        given = self._given_values(locals(), null_clears=False)
        if knowledge_id is None:
            raise ToolError("VALIDATION_ERROR", "Field required", "knowledge_id")
        del given["knowledge_id"]
        row = self._article(knowledge_id)
        if title == "":
            raise ToolError("VALIDATION_ERROR", "title must not be empty", "title")
        if owner_id:
            self._check_owner(owner_id)
        wanted = {name: None if value == "" else value for name, value in given.items()}
        changes = {name: value for name, value in wanted.items() if row[name] != value}
        if not changes:
            raise ToolError("NO_CHANGES_DETECTED", "No changes detected")
        if "title" in changes or "owner_id" in changes:
            new = {**row, **changes}
            self._check_title(new["title"], new["owner_id"], knowledge_id)
        return self._reply("knowledge", self._patch("knowledge", row, changes), changes)

    def _article(self, knowledge_id: str) -> Row:
        return self._need("knowledge", knowledge_id, "knowledge_id", "RESOURCE_NOT_FOUND")

    def _check_owner(self, owner_id: str) -> None:
        if self._get("users", owner_id) is None:
            raise ToolError("USER_NOT_FOUND", f"User with ID '{owner_id}' not found", "owner_id")

    def _check_title(self, title: str, owner_id: str | None, key: str | None) -> None:
        other = self._first("knowledge", title=title, owner_id=owner_id)
        if other is not None and other["knowledge_id"] != key:
            message = "A knowledge article with the same title and owner already exists"
            raise ToolError("DUPLICATE_ARTICLE", message, "title")

    @tool("read")
    def retrieve_knowledge_articles(
        self,
        knowledge_id: str | None = None,
        kb_number: str | None = None,
        title: str | None = None,
        body: str | None = None,
        state: ArticleState | None = None,
        visibility: Visibility | None = None,
        owner_id: str | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
    ) -> Row:
        """List knowledge articles that match all filters; `title` may be a part of the title."""
        filters = self._given_values(locals(), null_clears=False)
        after, before = filters.pop("created_after", None), filters.pop("created_before", None)
        rows = self._select(
            "knowledge",
            filters,
            order="newest",
            contains=("title", "body"),
            after=after,
            before=before,
        )
        reply: Row = self._list("knowledge", rows, "knowledges")
        return reply

    @tool("write")
    def link_knowledge_to_incident(
        self, incident_id: str, knowledge_id: str, used_as: UsedAs | None = None
    ) -> Row:
        """Attach a knowledge article to an incident."""
        incident = self._need("incident", incident_id, "incident_id", "RESOURCE_NOT_FOUND")
        article = self._article(knowledge_id)
        pair = {"incident_id": incident_id, "knowledge_id": knowledge_id}
        used_as = used_as or "suggested"
        other = self._first("incident_knowledge", **pair)
        if other is not None and other["used_as"] == used_as:
            message = (
                f"Knowledge article {article['kb_number']} is already linked to incident "
                f"{incident['number']} as '{used_as}'"
            )
            raise ToolError("DUPLICATE_LINK", message)
        if other is not None:
            raise ToolError(
                "CONSTRAINT_VIOLATION",
                f"incident {incident_id} and article {knowledge_id} are already linked as "
                f"'{other['used_as']}'",
            )
        values = {**pair, "org_id": incident["org_id"], "used_as": used_as}
        return self._reply("incident_knowledge", self._insert("incident_knowledge", values))

    @tool("read")
    def find_incident_knowledge_links(
        self,
        incident_kb_id: str | None = None,
        incident_id: str | None = None,
        knowledge_id: str | None = None,
        used_as: str | None = None,
    ) -> Any:
        """List links between incidents and articles; `used_as` may name several, with commas."""
        kinds = [kind.strip() for kind in used_as.split(",")] if used_as is not None else []
        for kind in kinds:
            if kind not in members(UsedAs):
                raise ToolError(
                    "INVALID_ENUM_VALUE",
                    f"Invalid value '{kind}' for 'used_as'",
                    "used_as",
                    members(UsedAs),
                )
        filters = {
            "incident_kb_id": incident_kb_id,
            "incident_id": incident_id,
            "knowledge_id": knowledge_id,
        }
        rows = self._select("incident_knowledge", filters)
        rows = [row for row in rows if not kinds or row["used_as"] in kinds]
        return self._list("incident_knowledge", rows, "incident_knowledges", bare=True)

    @tool("write")
    def remove_knowledge_link_to_incident(
        self,
        incident_kb_id: str | None = None,
        incident_id: str | None = None,
        knowledge_id: str | None = None,
        used_as: UsedAs | None = None,
    ) -> Row:
        """Remove a link between an incident and a knowledge article."""
        if incident_kb_id is None and (incident_id is None or knowledge_id is None):
            message = "Either incident_kb_id or both incident_id and knowledge_id must be provided"
            raise ToolError("MISSING_IDENTIFIERS", message)
        filters = {
            "incident_kb_id": incident_kb_id,
            "incident_id": incident_id,
            "knowledge_id": knowledge_id,
            "used_as": used_as,
        }
        rows = self._select("incident_knowledge", filters)
        if not rows:
            given = incident_kb_id or f"{incident_id}-{knowledge_id}"
            raise ToolError("LINK_NOT_FOUND", f"Incident knowledge link '{given}' not found")
        self.database.delete("incident_knowledge", {"incident_kb_id": rows[0]["incident_kb_id"]})
        return {"message": "Knowledge link removed successfully"}
