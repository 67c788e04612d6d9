"""Tasks and calls made up from a start database: for free play, and for checks of a world's contract."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from robustops.errors import unknown_name
from robustops.records import DatabaseSpec, Task, ToolCall
from robustops.seeding import generator
from robustops.worlds.database import WorldDatabase
from robustops.worlds.domain import Domain
from robustops.worlds.toolset import ToolSpec

#: How often an optional argument is given.
OPTIONAL = 0.4
_WORDS = ("printer", "late", "request", "note", "2026-01-05")


def free_task(domain: Domain, *, seed: int = 0, size: str = "small", acting_user: str | None = None) -> Task:
    """A task without a request: every tool is allowed, nothing is checked."""
    return Task(
        id=f"{domain.name}-free-{seed}",
        domain=domain.name,
        template="free",
        policy=domain.policy,
        prompt="",
        tools=tuple(domain.toolset.specs()),
        distractors=(),
        database=DatabaseSpec(seed=seed, size=size, path=domain.path),
        acting_user=acting_user,
        checks=(),
        prerequisites=(),
    )


def draw_task(domain: Domain, template: str, spec: DatabaseSpec, *, attempts: int = 20) -> Task | None:
    """A template's first task on a start database, or None where no attempt finds fitting rows."""
    if template not in domain.templates:
        raise unknown_name(f"template of domain {domain.name}", template, domain.templates)
    chosen, database = domain.templates[template], domain.open(spec)
    try:
        for attempt in range(attempts):
            draft = chosen.draw(database, generator(spec.seed, "probe", template, attempt))
            if draft is not None:
                return Task(
                    id=f"{domain.name}-{template}-{spec.seed}",
                    domain=domain.name,
                    template=template,
                    policy=domain.policy,
                    prompt=draft.prompt,
                    tools=tuple(chosen.tools),
                    distractors=(),
                    database=spec,
                    acting_user=draft.acting_user,
                    checks=draft.checks,
                    prerequisites=draft.prerequisites,
                    plan=draft.plan,
                )
    finally:
        database.close()
    return None


class Prober:
    """Makes calls whose arguments are drawn from a database, so that many of them find rows."""

    def __init__(self, domain: Domain, database: WorldDatabase) -> None:
        self._values: dict[str, list[Any]] = {}
        for table in database.tables():
            for name in (info["name"] for info in database.query(f'PRAGMA table_info("{table}")')):
                found = self._column(database, table, name)
                self._values.setdefault(name, []).extend(found)
        for spec in domain.toolset.specs().values():
            for argument, target in spec.identity.items():
                table, _, column = target.partition(".")
                if table in database.tables():
                    self._values[argument] = self._column(database, table, column)

    @staticmethod
    def _column(database: WorldDatabase, table: str, column: str) -> list[Any]:
        rows = database.query(
            f'SELECT DISTINCT "{column}" AS value FROM "{table}" WHERE "{column}" IS NOT NULL LIMIT 50'
        )
        return [row["value"] for row in rows]

    def call(self, spec: ToolSpec, rng: Random) -> ToolCall:
        """A call with all required and some optional arguments."""
        schema = spec.input_schema
        given = {
            name: self._value(name, rules, rng)
            for name, rules in schema["properties"].items()
            if name in schema["required"] or rng.random() < OPTIONAL
        }
        return ToolCall(spec.name, given)

    def calls(self, specs: Sequence[ToolSpec], rng: Random, each: int) -> list[ToolCall]:
        """`each` calls a tool, the tools in turn."""
        return [self.call(spec, rng) for _ in range(each) for spec in specs]

    def _value(self, name: str, rules: dict[str, Any], rng: Random) -> Any:
        if "enum" in rules:
            return rng.choice(rules["enum"])
        if "const" in rules:
            return rules["const"]
        kind = rules.get("type")
        fitting = [value for value in self._values.get(name, ()) if _fits(value, kind)]
        if fitting:
            return rng.choice(fitting)
        match kind:
            case "integer":
                return rng.randrange(1, 6)
            case "number":
                return float(rng.randrange(1, 6))
            case "boolean":
                return rng.random() < 0.5
            case "array":
                return [self._value(name, rules.get("items", {}), rng)]
            case "object":
                return {}
        return rng.choice(_WORDS)


def _fits(value: Any, kind: str | None) -> bool:
    """Whether a stored value can be given for an argument of a JSON type."""
    match kind:
        case "integer":
            return isinstance(value, int)
        case "number":
            return isinstance(value, int | float)
        case "string" | None:
            return isinstance(value, str)
    return False
