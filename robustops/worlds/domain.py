"""What a domain brings: schema, seed data, tools, policy, task templates with a scripted expert.

A new domain is one folder under `worlds/domains/` with a subclass of `Domain` that the registry finds by
the folder's name (`robustops.worlds.domains.<name>.DOMAIN`).
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

from robustops.errors import ConfigError, unknown_name
from robustops.records import DatabaseSpec, StateCheck, ToolCall, ToolResult
from robustops.worlds.database import DatabaseSnapshot, WorldDatabase
from robustops.worlds.toolset import Toolset

DETAILS = ("brief", "full")
#: An expert yields calls and is sent their results; its return value is its final answer.
ExpertScript = Generator[ToolCall, ToolResult, str]


@dataclass(frozen=True)
class Draft:
    """What a template makes of a start database: the varying half of a `Task`.

    plan: the facts that the prompt states, for the scripted expert (names and values, never ids that
    have to be looked up); acting_user: on whose behalf the agent works.
    """

    prompt: str
    plan: dict[str, Any]
    checks: tuple[StateCheck, ...]
    prerequisites: tuple[tuple[str, str], ...]
    acting_user: str | None = None


class TaskTemplate(ABC):
    """One family of requests. `tools` are the names the expert may call, recovery included."""

    name: str
    tools: tuple[str, ...]

    @abstractmethod
    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        """Choose rows of this start database and word the request; None where it has no fitting rows."""

    @abstractmethod
    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        """Solve the request from what can be seen, and recover from every tool fault."""


class Domain(ABC):
    """One kind of world. Subclasses are stateless apart from the image cache.

    schema: SQL that makes the empty tables; detail: level of the replies, see `Toolset`; path: overrides the
    start database of every task.
    """

    name: str
    schema: str
    policy: str
    toolset: type[Toolset]
    templates: Mapping[str, TaskTemplate]

    def __init__(self, *, detail: str = "brief", path: str | None = None, clock_step: int = 1) -> None:
        if detail not in DETAILS:
            raise unknown_name("domain.detail", detail, DETAILS)
        self.detail = detail
        self.path = path
        self.clock_step = clock_step
        self._images: dict[DatabaseSpec, DatabaseSnapshot] = {}

    def new_database(self) -> WorldDatabase:
        """An empty in-memory database with the domain's schema."""
        database = WorldDatabase(clock_step=self.clock_step)
        database.script(self.schema)
        return database

    @abstractmethod
    def fill(self, database: WorldDatabase, seed: int, size: str) -> None:
        """Write the generated seed world; the same seed and size give the same rows."""

    @abstractmethod
    def load(self, database: WorldDatabase, path: str) -> None:
        """Write the rows of a database file (JSON tables or SQLite); ConfigError where it does not fit."""

    def start_image(self, spec: DatabaseSpec) -> DatabaseSnapshot:
        """The start state that a spec names, built once and cached."""
        if spec not in self._images:
            database = self.new_database()
            with database.atomic():
                if spec.path is not None:
                    self.load(database, spec.path)
                else:
                    self.fill(database, spec.seed, spec.size)
            database.seconds, database.counters = 0, dict(database.counters)
            self._images[spec] = database.snapshot()
            database.close()
        return self._images[spec]

    def open(self, spec: DatabaseSpec) -> WorldDatabase:
        """A private database in the start state."""
        database = self.new_database()
        database.restore(self.start_image(spec))
        return database

    def empty_toolset(self) -> Toolset:
        """Tools over a private, still empty database."""
        return self.toolset(self.new_database(), detail=self.detail)


def domain_names() -> list[str]:
    """The domains that exist, found by folder."""
    import robustops.worlds.domains as package

    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg)


@lru_cache(maxsize=32)
def get_domain(name: str, detail: str = "brief", path: str | None = None) -> Domain:
    """The domain of that name; ConfigError lists the known ones."""
    if name not in domain_names():
        raise unknown_name("domain", name, domain_names())
    module = importlib.import_module(f"robustops.worlds.domains.{name}")
    domain = module.DOMAIN(detail=detail, path=path)
    if not isinstance(domain, Domain):
        raise ConfigError(f"robustops.worlds.domains.{name}.DOMAIN is not a Domain")
    return domain
