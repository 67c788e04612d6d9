"""State checks and the graph of their prerequisites."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.errors import TaskError, WorldError
from robustops.records import StateCheck
from robustops.worlds.checks import ancestors, compare, gated_count, run_check, run_checks, validate_graph
from robustops.worlds.database import WorldDatabase


@pytest.fixture()
def database() -> Iterator[WorldDatabase]:
    made = WorldDatabase()
    made.script("CREATE TABLE thing (id TEXT, size INTEGER); INSERT INTO thing VALUES ('a', 1), ('b', NULL);")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("actual", "expected", "comparison", "holds"),
    [
        (3, 3, "equals", True),
        (3, 3.0, "equals", True),
        ("3", 3, "equals", False),
        (None, None, "equals", True),
        (4, 3, "greater_than", True),
        (3, 3, "greater_than", False),
        (None, 3, "greater_than", False),
        (2, 3, "less_than", True),
        (3, 3, "less_than", False),
        (None, 3, "less_than", False),
        ("disk full", "full", "contains", True),
        ("disk full", "Full", "contains", False),
        (1234, 23, "contains", True),
        (None, "None", "contains", False),
    ],
)
def test_comparisons(actual: Any, expected: Any, comparison: str, holds: bool) -> None:
    assert compare(actual, expected, comparison) is holds


def test_what_cannot_be_compared_is_a_task_error() -> None:
    with pytest.raises(TaskError, match="cannot compare 'x' with 3"):
        compare("x", 3, "greater_than")
    with pytest.raises(TaskError, match=r"unknown comparison 'like'.*contains, equals"):
        compare(1, 1, "like")


def test_checks_read_one_value(database: WorldDatabase) -> None:
    checks = [
        StateCheck("two", "SELECT count(*) FROM thing", 2),
        StateCheck("null", "SELECT size FROM thing WHERE id = 'b'", None),
        StateCheck("no row", "SELECT size FROM thing WHERE id = 'z'", None),
        StateCheck("big", "SELECT size FROM thing WHERE id = 'a'", 1, "greater_than"),
    ]
    assert run_checks(database, checks) == (True, True, True, False)


def test_a_check_that_fails_or_writes_is_a_world_error_and_changes_nothing(database: WorldDatabase) -> None:
    before = database.snapshot()
    for query, complaint in (
        ("SELECT 1 FROM nowhere", "nowhere"),
        ("SELEC", "syntax error"),
        ("DELETE FROM thing", "not authorized"),
        ("DROP TABLE thing", "not authorized"),
        ("SELECT 1; DELETE FROM thing", "one statement"),
    ):
        with pytest.raises(WorldError, match=complaint):
            run_check(database, StateCheck("odd", query, 1))
    assert database.snapshot() == before
    database.delete("thing", {"id": "a"})  # writing works again afterwards


# prerequisites ----------------------------------------------------------------------------------
Graph = tuple[list[str], list[tuple[str, str]], list[bool]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A random DAG in a shuffled naming order, with a random verdict a node."""
    count = draw(st.integers(1, 7))
    order = draw(st.permutations([f"c{i}" for i in range(count)]))
    pairs = list(itertools.combinations(order, 2))
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    passed = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return sorted(order), edges, passed


def slow_ancestors(name: str, edges: list[tuple[str, str]]) -> set[str]:
    """By the definition: everything from which a path leads here."""
    direct = {before for before, after in edges if after == name}
    return direct.union(*(slow_ancestors(before, edges) for before in direct))


def slow_gated_count(names: list[str], passed: list[bool], edges: list[tuple[str, str]]) -> int:
    state = dict(zip(names, passed, strict=True))
    return len([n for n in names if state[n] and not any(not state[a] for a in slow_ancestors(n, edges))])


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_gated_count_agrees_with_the_slow_reference(graph: Graph) -> None:
    names, edges, passed = graph
    assert ancestors(names, edges) == {name: slow_ancestors(name, edges) for name in names}
    assert gated_count(names, passed, edges) == slow_gated_count(names, passed, edges)


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_full_credit_if_and_only_if_all_pass(graph: Graph) -> None:
    names, edges, passed = graph
    assert (gated_count(names, passed, edges) == len(names)) == all(passed)
    assert gated_count(names, passed, edges) <= sum(passed)
    assert gated_count(names, passed, []) == sum(passed)


@settings(max_examples=100, deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_a_closed_path_is_refused(graph: Graph, rng: Any) -> None:
    names, edges, passed = graph
    if len(names) < 2:
        return
    one, other = rng.sample(names, 2)
    closed = [*edges, (one, other), (other, one)]
    for refused in (lambda: validate_graph(names, closed), lambda: gated_count(names, passed, closed)):
        with pytest.raises(TaskError, match="cycle"):
            refused()


def test_credit_by_hand() -> None:
    names, edges = ["found", "written", "notified", "tidy"], [("found", "written"), ("written", "notified")]
    assert gated_count(names, [True, True, True, True], edges) == 4
    assert gated_count(names, [False, True, True, True], edges) == 1
    assert gated_count(names, [True, False, True, True], edges) == 2
    assert gated_count(names, [True, True, False, False], edges) == 2
    assert ancestors(names, edges)["notified"] == {"found", "written"}


def test_bad_graphs_are_refused() -> None:
    validate_graph(["a", "b"], [("a", "b")])
    with pytest.raises(TaskError, match="not unique"):
        validate_graph(["a", "a"], [])
    with pytest.raises(TaskError, match="a -> z"):
        validate_graph(["a"], [("a", "z")])
    with pytest.raises(TaskError, match="cycle"):
        validate_graph(["a"], [("a", "a")])
