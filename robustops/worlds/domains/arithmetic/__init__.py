"""The arithmetic domain: a calculator for one operation a call. The lightest domain, for many short runs."""

from __future__ import annotations

from robustops.worlds.database import WorldDatabase
from robustops.worlds.domain import Domain
from robustops.worlds.domains.arithmetic.loading import load_tables
from robustops.worlds.domains.arithmetic.schema import SCHEMA, fill_world
from robustops.worlds.domains.arithmetic.templates import TEMPLATES
from robustops.worlds.domains.arithmetic.toolset import ArithmeticToolset

POLICY = "Compute step by step: brackets, products, left to right. Submit the value once."


class ArithmeticDomain(Domain):
    """A calculator and a tray for answers."""

    name = "arithmetic"
    schema = SCHEMA
    policy = POLICY
    toolset = ArithmeticToolset
    templates = TEMPLATES

    def fill(self, database: WorldDatabase, seed: int, size: str) -> None:
        fill_world(database, seed, size)

    def load(self, database: WorldDatabase, path: str) -> None:
        load_tables(database, path)


DOMAIN = ArithmeticDomain
