"""Runs with two faults at once: which types go together."""

from __future__ import annotations

from collections.abc import Sequence

from robustops.bench.run_faults.catalog import CATALOG
from robustops.bench.run_faults.entries import FaultType

#: Rounds of a tournament in which every type meets one other; 16 types: 40 runs, five of each type.
ROUNDS = 5


def fault_pairs() -> list[tuple[str, str]]:
    """Pairs of types, no pair twice and every type equally often; main mechanisms do not undo each other.

    Chosen are the rounds that pair most types of different families.
    """
    rounds = [found for found in _tournament(list(CATALOG.values())) if all(_fit(*pair) for pair in found)]
    rounds.sort(key=lambda found: sum(one.family == other.family for one, other in found))
    if len(rounds) < ROUNDS:
        raise ValueError(f"{len(rounds)} rounds of pairs fit, {ROUNDS} are needed")
    return [(one.name, other.name) for found in rounds[:ROUNDS] for one, other in found]


def _tournament(types: Sequence[FaultType]) -> list[list[tuple[FaultType, FaultType]]]:
    """Rounds in which each meets another, until all have met (circle method); an even number of types."""
    fixed, *others = types
    rounds = []
    for turn in range(len(others)):
        circle = [fixed, *others[turn:], *others[:turn]]
        half = len(circle) // 2
        rounds.append(list(zip(circle[:half], reversed(circle[half:]), strict=True)))
    return rounds


def _fit(one: FaultType, other: FaultType) -> bool:
    """Whether both can be seen: the main mechanisms do not push one quantity in opposite directions."""
    first, second = one.mechanisms[0], other.mechanisms[0]
    return first.quantity != second.quantity or first.direction == second.direction
