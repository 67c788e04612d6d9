"""Tables of a calculator, and its generated start states."""

from __future__ import annotations

from robustops.errors import unknown_name
from robustops.seeding import generator
from robustops.worlds.database import WorldDatabase
from robustops.worlds.domains.arithmetic.expressions import SYMBOLS, Step

#: Pages of 512 bytes: an image of the whole database is then 2 kB, where the default takes 16.
SCHEMA = """
PRAGMA page_size = 512;
CREATE TABLE bounds (operand INTEGER NOT NULL, result INTEGER NOT NULL);
CREATE TABLE computations (number INTEGER PRIMARY KEY, expression TEXT NOT NULL, value INTEGER NOT NULL);
CREATE TABLE answers (number INTEGER PRIMARY KEY, value INTEGER NOT NULL);
"""
TABLES = ("answers", "bounds", "computations")
BRIEF_COLUMNS = {"computations": ("expression", "value"), "answers": ("value",)}
#: Largest operand and largest result of the requests, and computations that the calculator still shows.
SIZES = {"tiny": (9, 99, 2), "small": (99, 999, 2), "medium": (999, 9_999, 8), "large": (9_999, 999_999, 32)}


def fill_world(database: WorldDatabase, seed: int, size: str) -> None:
    """Write a start state: the bounds of a size, and a few computations that someone made before."""
    if size not in SIZES:
        raise unknown_name("size of the arithmetic world", size, SIZES)
    operand, result, earlier = SIZES[size]
    database.insert("bounds", {"operand": operand, "result": result})
    rng = generator(seed, "arithmetic", size)
    for _ in range(earlier):
        store(database, Step(rng.randint(2, operand), rng.choice(SYMBOLS), rng.randint(2, 9)))


def store(database: WorldDatabase, step: Step) -> int:
    """Write one computation; its number."""
    number = 1 + int(database.scalar("SELECT COALESCE(MAX(number), 0) FROM computations"))
    database.insert("computations", {"number": number, "expression": step.text, "value": step.value})
    return number
