"""State checks over the final database and the graph of their prerequisites."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from robustops.errors import TaskError, WorldError
from robustops.records import StateCheck
from robustops.worlds.database import WorldDatabase

Edges = Sequence[tuple[str, str]]


def compare(actual: Any, expected: Any, comparison: str) -> bool:
    """The four comparisons of the EnterpriseOps-Gym verifier.

    Like the peer: `equals` is Python's ==; `contains` looks for the expected text in the actual one.
    """
    try:
        return _compare(actual, expected, comparison)
    except TypeError as error:
        raise TaskError(f"cannot compare {actual!r} with {expected!r} by {comparison}: {error}") from error


def _compare(actual: Any, expected: Any, comparison: str) -> bool:
    match comparison:
        case "equals":
            return bool(actual == expected)
        case "greater_than":
            return actual is not None and bool(actual > expected)
        case "less_than":
            return actual is not None and bool(actual < expected)
        case "contains":
            return actual is not None and str(expected) in str(actual)
    raise TaskError(
        f"unknown comparison '{comparison}'; choose one of: contains, equals, greater_than, less_than"
    )


def run_check(database: WorldDatabase, check: StateCheck) -> bool:
    """Whether one check holds now; WorldError where its query fails or would write."""
    try:
        with database.read_only():
            value = database.scalar(check.query)
    except sqlite3.Error as error:
        raise WorldError(f"state check '{check.name}' cannot run: {error}; query: {check.query}") from error
    return compare(value, check.expected, check.comparison)


def run_checks(database: WorldDatabase, checks: Sequence[StateCheck]) -> tuple[bool, ...]:
    """One bool a check, in order."""
    return tuple(run_check(database, check) for check in checks)


def ancestors(names: Sequence[str], edges: Edges) -> dict[str, set[str]]:
    """All direct and indirect prerequisites of each check; refuses unknown names and cycles."""
    parents: dict[str, set[str]] = {name: set() for name in names}
    for before, after in edges:
        if before not in parents or after not in parents:
            raise TaskError(f"edge {before} -> {after} names a check that the task does not have")
        parents[after].add(before)
    try:
        order = list(TopologicalSorter(parents).static_order())
    except CycleError as error:
        raise TaskError(f"prerequisites form a cycle: {' -> '.join(error.args[1])}") from error
    closed: dict[str, set[str]] = {}
    for name in order:
        closed[name] = parents[name].union(*(closed[parent] for parent in parents[name]))
    return closed


def gated_count(names: Sequence[str], passed: Sequence[bool], edges: Edges) -> int:
    """How many checks pass with all their prerequisites passed (RobustOps: N_passed^dep)."""
    state = dict(zip(names, passed, strict=True))
    closed = ancestors(names, edges)
    return sum(state[name] and all(state[before] for before in closed[name]) for name in names)


def validate_graph(names: Sequence[str], edges: Edges) -> None:
    """Refuse duplicate names, unknown names and cycles.

    Full graph credit if and only if all checks pass follows: gating only takes credit away, and a
    check's prerequisites are checks too. The test suite states it as a property.
    """
    if len(set(names)) != len(names):
        raise TaskError(f"state check names are not unique: {sorted(names)}")
    ancestors(names, edges)
