"""A small but complete domain for tests: notes in boxes. `from tests.toy_domain import TOY, toy_task`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Literal

from robustops.errors import ConfigError, ToolError
from robustops.records import DatabaseSpec, StateCheck, Task
from robustops.seeding import generator
from robustops.worlds.database import Row, WorldDatabase
from robustops.worlds.domain import Domain, Draft, ExpertScript, TaskTemplate
from robustops.worlds.expert import read_row, read_rows, seen_row, seen_values, write
from robustops.worlds.toolset import Toolset, require, tool

SCHEMA = """
CREATE TABLE box (id TEXT PRIMARY KEY, name TEXT NOT NULL, colour TEXT NOT NULL);
CREATE TABLE note (id TEXT PRIMARY KEY, box_id TEXT NOT NULL, title TEXT NOT NULL, status TEXT NOT NULL,
                   text TEXT, updated_on TEXT NOT NULL);
"""
BOXES = ("garden", "kitchen", "garage", "attic", "office", "cellar")
TITLES = ("buy seeds", "fix lamp", "call plumber", "sort mail", "paint door", "order rice", "clean vent")
COLOURS = ("red", "green", "blue")
Status = Literal["open", "done"]


class ToyTools(Toolset):
    """Six tools: lists with optional filters, gets by id, a create and an update."""

    brief_columns = {"note": ("id", "box_id", "title", "status", "text")}

    @tool("read")
    def list_boxes(self, name: str | None = None, limit: int = 50) -> dict[str, Any]:
        """List boxes.

        Args:
            name: only the box of this name
            limit: rows at most
        """
        return self._rows("box", "boxes", {"name": name}, limit)

    @tool("read")
    def list_notes(
        self, box_id: str | None = None, status: Status | None = None, limit: int = 50
    ) -> dict[str, Any]:
        """List notes.

        Args:
            box_id: only notes of this box
            status: only notes of this status
            limit: rows at most
        """
        return self._rows("note", "notes", {"box_id": box_id, "status": status}, limit)

    @tool("read", identity={"box_id": "box.id"})
    def get_box(self, box_id: str) -> Row:
        """One box."""
        return self.show("box", require(self.database.find("box", id=box_id), "box", box_id, "box_id"))

    @tool("read", identity={"note_id": "note.id"})
    def get_note(self, note_id: str) -> Row:
        """One note."""
        return self.show("note", require(self.database.find("note", id=note_id), "note", note_id, "note_id"))

    @tool("write")
    def create_note(self, box_id: str, title: str, text: str | None = None) -> Row:
        """Put a new note into a box."""
        require(self.database.find("box", id=box_id), "box", box_id, "box_id")
        number = self.database.next_number("note", "id", "N")
        row = {"id": f"N{number}", "box_id": box_id, "title": title, "status": "open", "text": text}
        self.database.insert("note", {**row, "updated_on": self.database.now()})
        return self.get_note(f"N{number}")

    @tool("write")
    def update_note(
        self,
        note_id: str,
        status: Status | None = None,
        title: str | None = None,
        box_id: str | None = None,
    ) -> Row:
        """Change a note."""
        self.get_note(note_id)
        given = {"status": status, "title": title, "box_id": box_id}
        changes = {name: value for name, value in given.items() if value is not None}
        if not changes:
            raise ToolError("NOTHING_TO_CHANGE", "give status, title or box_id")
        if box_id is not None:
            self.get_box(box_id)
        self.database.update("note", {"id": note_id}, {**changes, "updated_on": self.database.now()})
        return self.get_note(note_id)

    def _rows(self, table: str, key: str, filters: dict[str, Any], limit: int) -> dict[str, Any]:
        given = {name: value for name, value in filters.items() if value is not None}
        rows = self.database.find(table, **given)
        return {key: [self.show(table, row) for row in rows[:limit]], "total_count": len(rows)}


class FileNote(TaskTemplate):
    """Put a new note into a named box and mark it as done: read, write, write."""

    name = "file_note"
    tools = ("list_boxes", "list_notes", "get_note", "create_note", "update_note")

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        box = rng.choice(database.find("box"))
        title = f"{rng.choice(TITLES)} {rng.randrange(100, 1000)}"
        there = f"SELECT COUNT(*) FROM note WHERE title = '{title}' AND box_id = '{box['id']}'"
        checks = (
            StateCheck("note_is_there", there, 0, "greater_than"),
            StateCheck("note_is_done", there + " AND status = 'done'", 1),
            StateCheck("no_duplicate", f"SELECT COUNT(*) FROM note WHERE title = '{title}'", 1),
        )
        edges = (("note_is_there", "note_is_done"), ("note_is_there", "no_duplicate"))
        prompt = f"Add a note '{title}' to the {box['name']} box and mark it done."
        return Draft(prompt, {"box": box["name"], "title": title}, checks, edges)

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        name, title = plan["box"], plan["title"]
        boxes = yield from read_rows("list_boxes", {"name": name}, rows="boxes", match={"name": name})
        place = {"box_id": boxes[0]["id"]}
        wanted = {**place, "title": title}
        note = yield from write(
            "create_note", wanted, landed=seen_row("list_notes", place, rows="notes", match=wanted)
        )
        yield from _finish(note["id"])
        return f"The note '{title}' is in the {name} box and done."


class CloseNote(TaskTemplate):
    """Find a note of a box among the open ones, look at it and mark it as done: read, read, read, write."""

    name = "close_note"
    tools = ("list_boxes", "list_notes", "get_box", "get_note", "update_note")

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        notes = database.find("note", status="open")
        if not notes:
            return None
        note = rng.choice(notes)
        box = database.find("box", id=note["box_id"])[0]
        done = f"SELECT status FROM note WHERE id = '{note['id']}'"
        others = len(notes) - 1
        checks = (
            StateCheck("note_is_done", done, "done"),
            StateCheck("others_stay_open", "SELECT COUNT(*) FROM note WHERE status = 'open'", others),
        )
        prompt = f"Mark the note '{note['title']}' in the {box['name']} box as done."
        return Draft(prompt, {"box": box["name"], "title": note["title"]}, checks, ())

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        name, title = plan["box"], plan["title"]
        boxes = yield from read_rows("list_boxes", {"name": name}, rows="boxes", match={"name": name})
        box_id = boxes[0]["id"]
        yield from read_row("get_box", {"box_id": box_id}, match={"id": box_id})
        wanted = {"box_id": box_id, "status": "open"}
        notes = yield from read_rows("list_notes", wanted, rows="notes", match=wanted)
        note_id = next(note["id"] for note in notes if note["title"] == title)
        yield from read_row("get_note", {"note_id": note_id}, match={"id": note_id})
        yield from _finish(note_id)
        return f"The note '{title}' is done."


def _finish(note_id: str) -> Any:
    done = {"status": "done"}
    asked = {"note_id": note_id}
    landed = seen_values("get_note", asked, identity={"id": note_id}, values=done)
    return (yield from write("update_note", {**asked, **done}, landed=landed))


class ToyDomain(Domain):
    """Notes in boxes; sizes: small (4 boxes, 12 notes) and large (6 boxes, 60 notes)."""

    name = "toy"
    schema = SCHEMA
    policy = "You keep notes in boxes. Never create a note twice."
    toolset = ToyTools
    templates = {template.name: template for template in (FileNote(), CloseNote())}

    def fill(self, database: WorldDatabase, seed: int, size: str) -> None:
        rng = generator(seed, "toy", size)
        boxes, notes = (4, 12) if size == "small" else (6, 60)
        rows = [
            {"id": f"B{i}", "name": name, "colour": rng.choice(COLOURS)}
            for i, name in enumerate(rng.sample(BOXES, boxes), start=1)
        ]
        database.insert_many("box", rows)
        for i in range(1, notes + 1):
            note = {"id": f"N{i}", "box_id": f"B{1 + i % boxes}", "title": f"{rng.choice(TITLES)} {i}"}
            status = rng.choice(("open", "open", "done"))
            database.insert("note", {**note, "status": status, "text": None, "updated_on": database.now()})

    def load(self, database: WorldDatabase, path: str) -> None:
        tables = json.loads(Path(path).read_text())
        if set(tables) != {"box", "note"}:
            raise ConfigError(f"{path} has the tables {sorted(tables)}; a toy world has box and note")
        for table, rows in tables.items():
            database.insert_many(table, rows)


TOY = ToyDomain()


def toy_task(
    template: str = "file_note", seed: int = 0, tool_config: str = "oracle", size: str = "small"
) -> Task:
    """A task drawn from a seeded start world; the same arguments give the same task."""
    spec = DatabaseSpec(seed=seed, size=size)
    database = TOY.open(spec)
    draft = TOY.templates[template].draw(database, generator(seed, "toy task", template))
    database.close()
    assert draft is not None
    tools = TOY.templates[template].tools
    return Task(
        id=f"toy_{template}_{seed}",
        domain="toy",
        template=template,
        policy=TOY.policy,
        prompt=draft.prompt,
        tools=tools,
        distractors=tuple(sorted(set(ToyTools.specs()) - set(tools))),
        database=spec,
        acting_user=draft.acting_user,
        checks=draft.checks,
        prerequisites=draft.prerequisites,
        plan=draft.plan,
        tool_config=tool_config,
    )


def toy_tasks(count: int) -> list[Task]:
    """Tasks of both templates in turn, each in both tool configurations."""
    names = sorted(TOY.templates)
    return [
        toy_task(names[i % len(names)], i, config) for i in range(count) for config in ("oracle", "plus5")
    ]
