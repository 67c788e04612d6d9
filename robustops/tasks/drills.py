"""Drills: explicit instructions over any domain's tools, for teaching a new model to call tools.

A drill spells out which calls to make and with which values, some of them to be taken from an earlier
reply. It is no task: no template, wording, name or id of train, val or test occurs in it by design. The
embedded model is pretrained on drills, so that it knows the format, copies values and chains calls, but
has not seen how a business request is worked on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from robustops.records import DatabaseSpec, Task, ToolCall, ToolResult
from robustops.seeding import child_seed, generator
from robustops.worlds.domain import Domain
from robustops.worlds.environment import LocalWorld
from robustops.worlds.toolset import ToolSpec

#: Drill worlds have seeds of their own, apart from those of every split.
WORLDS = 64
_JOINTS = (". Then ", "; then ", ". Next, ", ", and then ", ". After that ")
_REFERENCES = ("that {}", "its {}", "the {} found", "the {} returned")
_MENTIONS = ("{name} {value}", "{name} {value}", "{value} as {name}", "{value} ({name})")
_VALUES_FIRST = ("for {listed}: {title}", "given {listed}, {title}", "{listed}: {title}")
_NOUNS = ("printer", "server", "laptop", "router", "mail", "disk", "screen", "badge", "cable", "portal")
_STATES = ("slow", "broken", "offline", "late", "noisy", "full", "missing", "locked", "ready", "new")


@dataclass(frozen=True)
class Drill:
    """A conversation: the task row that carries prompt and tools, and the calls with their replies."""

    task: Task
    calls: tuple[tuple[ToolCall, ToolResult], ...]


@dataclass(frozen=True)
class _Source:
    """Where values of an argument come from: a column of a table."""

    table: str
    column: str


def argument_sources(domain: Domain) -> dict[str, _Source]:
    """For each argument that names rows or repeats a column: the column its values are drawn from."""
    database = domain.new_database()
    columns: dict[str, _Source] = {}
    for table in database.tables():
        for info in database.query(f'PRAGMA table_info("{table}")'):
            columns.setdefault(info["name"], _Source(table, info["name"]))
    database.close()
    sources: dict[str, _Source] = {}
    for spec in domain.toolset.specs().values():
        for argument in spec.arguments:
            if argument in columns:
                sources.setdefault(argument, columns[argument])
    for spec in domain.toolset.specs().values():
        for argument, target in spec.identity.items():
            sources[argument] = _Source(*target.split("."))
    return sources


class DrillMaker:
    """Draws drills of one domain. Drill `index` under `seed` is always the same."""

    def __init__(self, domain: Domain, seed: int) -> None:
        self.domain = domain
        self.seed = seed
        self.specs = domain.toolset.specs()
        self.sources = argument_sources(domain)
        self.world = LocalWorld(domain, tool_timeout_s=None)

    def draw(self, index: int) -> Drill:
        """One drill of two to five calls."""
        rng = generator(self.seed, "drill", self.domain.name, index)
        database = DatabaseSpec(seed=child_seed(self.seed, "drill world", rng.randrange(WORLDS)))
        names = rng.sample(sorted(self.specs), min(len(self.specs), rng.randint(3, 8)))
        self.world.reset(self._task(index, "", names, database))
        calls: list[tuple[ToolCall, ToolResult]] = []
        phrases: list[str] = []
        for _ in range(rng.choice((2, 3, 3, 4, 4, 5))):
            self._extend(rng, names, calls, phrases)
        prompt = phrases[0] if phrases else "do nothing"
        for phrase in phrases[1:]:
            prompt += rng.choice(_JOINTS) + phrase
        return Drill(self._task(index, prompt + ".", names, database), tuple(calls))

    def _extend(
        self, rng: Random, names: list[str], calls: list[tuple[ToolCall, ToolResult]], phrases: list[str]
    ) -> None:
        """Add one call that the world accepts (rarely one that it refuses)."""
        seen = _values(calls)
        for _ in range(12):
            spec = self.specs[rng.choice(names)]
            arguments, phrase = self._arguments(rng, spec, seen)
            before = self.world.snapshot()
            result = self.world.step(ToolCall(spec.name, arguments))
            if (result.is_error and rng.random() > 0.03) or len(result.text) > 420:
                self.world.restore(before)
                continue
            calls.append((ToolCall(spec.name, arguments), result))
            phrases.append(phrase)
            return

    def _arguments(self, rng: Random, spec: ToolSpec, seen: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        optional = [name for name in spec.arguments if name not in spec.required]
        extra = rng.sample(optional, min(len(optional), rng.choice((0, 1, 1, 2, 3))))
        if not spec.required and not extra and optional:
            extra = [rng.choice(optional)]
        arguments: dict[str, Any] = {}
        parts = []
        for name in spec.arguments:
            if name not in spec.required and name not in extra:
                continue
            words = name.replace("_", " ") if rng.random() < 0.7 else name
            if name in seen and rng.random() < 0.85:
                arguments[name] = seen[name]
                parts.append(rng.choice(_REFERENCES).format(words))
                continue
            arguments[name] = self._value(rng, spec, name)
            parts.append(rng.choice(_MENTIONS).format(name=words, value=_spoken(arguments[name])))
        title = spec.name.replace("_", " ") if rng.random() < 0.7 else spec.name
        if not parts:
            return arguments, title
        rng.shuffle(parts)
        listed = rng.choice((", ", " and ")).join(parts)
        if rng.random() < 0.3:
            return arguments, rng.choice(_VALUES_FIRST).format(title=title, listed=listed)
        return arguments, title + rng.choice((" with ", ": ", " for ")) + listed

    def _value(self, rng: Random, spec: ToolSpec, name: str) -> Any:
        schema = spec.input_schema["properties"][name]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        source = self.sources.get(name)
        if source is not None and rng.random() < 0.85:
            rows = self.world.tools.database.query(
                f'SELECT "{source.column}" AS value FROM "{source.table}" '
                f'WHERE "{source.column}" IS NOT NULL ORDER BY rowid'
            )
            if rows:
                return _typed(rng.choice(rows)["value"], schema)
        return _invented(rng, schema)

    def _task(self, index: int, prompt: str, names: list[str], database: DatabaseSpec) -> Task:
        return Task(
            id=f"{self.domain.name}-drill-{index}",
            domain=self.domain.name,
            template="drill",
            policy=self.domain.policy,
            prompt=prompt,
            tools=tuple(names),
            distractors=(),
            database=database,
            acting_user=None,
            checks=(),
            prerequisites=(),
            split="drill",
        )


def _values(calls: list[tuple[ToolCall, ToolResult]]) -> dict[str, Any]:
    """Values by name in the replies so far, where each name has one value in the latest reply with it."""
    seen: dict[str, Any] = {}
    for _, result in calls:
        data = result.data
        rows = [data] if isinstance(data, dict) else []
        if isinstance(data, dict):
            lists = [value for value in data.values() if isinstance(value, list)]
            rows += [row for row in (lists[0] if lists else []) if isinstance(row, dict)][:1]
        for row in rows:
            for name, value in row.items():
                if isinstance(value, str | int) and not isinstance(value, bool) and name != "error":
                    seen[name] = value
    return seen


def _spoken(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _typed(value: Any, schema: Mapping[str, Any]) -> Any:
    """A stored value in the type that the argument asks for."""
    match schema.get("type"):
        case "boolean":
            return bool(value)
        case "integer":
            return int(value) if str(value).isdigit() else 30
        case "number":
            return value if isinstance(value, int | float) else 10
        case "array":
            return [str(value)]
    return str(value)


def _invented(rng: Random, schema: Mapping[str, Any]) -> Any:
    """A value that is in no table: words, a number, a flag."""
    match schema.get("type"):
        case "boolean":
            return rng.random() < 0.5
        case "integer" | "number":
            return rng.choice((5, 10, 15, 20, 30, 45, 60, 90, 120, 240))
        case "array":
            return [rng.choice(_NOUNS)]
    noun = rng.choice(_NOUNS)
    return rng.choice((f"{noun} {rng.choice(_STATES)}", f"{noun} {rng.randrange(10, 9999)}", noun.title()))
