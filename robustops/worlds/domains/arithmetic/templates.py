"""Task templates of the arithmetic domain: a bare expression to be computed step by step and submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from robustops.records import StateCheck
from robustops.worlds.database import WorldDatabase
from robustops.worlds.domain import Draft, ExpertScript, TaskTemplate
from robustops.worlds.domains.arithmetic.expressions import Step, steps_of
from robustops.worlds.expert import Write, seen_row, write

DONE = "Done."
#: Sets of operands that are tried before a start state is given up.
ATTEMPTS = 100


class Expression(TaskTemplate):
    """A request that is an expression in one of `wordings`, the operands filled in."""

    tools = ("compute", "submit", "list_computations", "list_answers")
    wordings: ClassVar[tuple[str, ...]]
    operands: ClassVar[str]

    def draw(self, database: WorldDatabase, rng: Random) -> Draft | None:
        bounds = database.one("SELECT * FROM bounds")
        if bounds is None:
            return None
        known = {row["expression"] for row in database.query("SELECT expression FROM computations")}
        for _ in range(ATTEMPTS):
            numbers = {name: self._operand(rng, bounds["operand"]) for name in self.operands}
            expression = rng.choice(self.wordings).format(**numbers)
            steps = steps_of(expression)
            if _fits(steps, bounds["result"], known):
                checks, edges = state_checks(steps)
                return Draft(expression, {"expression": expression}, checks, edges)
        return None

    def expert(self, plan: Mapping[str, Any]) -> ExpertScript:
        results: list[int] = []
        for step in steps_of(plan["expression"]):
            reply = yield from compute(step.on(results).text)
            results.append(reply["value"])
        yield from submit(results[-1])
        return DONE

    @staticmethod
    def _operand(rng: Random, largest: int) -> int:
        """Half of the operands have one digit, or few products would stay within the bounds."""
        return rng.randint(2, rng.choice((9, largest)))


def _fits(steps: Sequence[Step], largest: int, known: set[str]) -> bool:
    """Whether a request may have these steps.

    Results in between are not negative: a sum with a negative number has two ways to be one operation.
    Steps differ from each other and from what was computed before, so that each leaves a row of its own.
    """
    texts = [text for step in steps for text in step.texts]
    between = all(0 <= step.value <= largest for step in steps[:-1])
    return between and abs(steps[-1].value) <= largest and len({*texts} - known) == len(texts)


def state_checks(steps: Sequence[Step]) -> tuple[tuple[StateCheck, ...], tuple[tuple[str, str], ...]]:
    """Every operation was computed, the answer is right, and there is one answer; with prerequisites.

    An operation needs those whose results it takes, the right answer the last operation.
    """
    names = [f"step_{place}" for place in range(1, len(steps) + 1)]
    checks, edges = [], []
    for name, step in zip(names, steps, strict=True):
        texts = ", ".join(f"'{text}'" for text in step.texts)
        query = f"SELECT COUNT(*) FROM computations WHERE expression IN ({texts})"
        checks.append(StateCheck(name, query, 0, "greater_than", world="arithmetic"))
        edges += [(names[used], name) for used in step.uses]
    right = f"SELECT COUNT(*) FROM answers WHERE value = {steps[-1].value}"
    checks.append(StateCheck("answer_right", right, 0, "greater_than", world="arithmetic"))
    checks.append(StateCheck("one_answer", "SELECT COUNT(*) FROM answers", 1, world="arithmetic"))
    edges += [(names[-1], "answer_right"), ("answer_right", "one_answer")]
    return tuple(checks), tuple(edges)


def compute(text: str) -> Write:
    """Compute one operation, once."""
    key = {"expression": text}
    landed = seen_row("list_computations", key, rows="computations", match=key)
    return write("compute", dict(key), landed=landed)


def submit(value: int) -> Write:
    """Submit the answer, once."""
    key = {"value": value}
    return write("submit", dict(key), landed=seen_row("list_answers", {}, rows="answers", match=key))


class ProductAndTerm(Expression):
    """A product, and a number added to it or subtracted."""

    name = "product_and_term"
    operands = "abc"
    wordings = (
        "{a} + {b} * {c}",
        "{a} - {b} * {c}",
        "{b} * {c} + {a}",
        "{b} * {c} - {a}",
        "{a} + ({b} * {c})",
        "{a} - ({b} * {c})",
    )


class SumTimes(Expression):
    """A bracket times a number: the sum comes first."""

    name = "sum_times"
    operands = "abc"
    wordings = (
        "({a} + {b}) * {c}",
        "({a} - {b}) * {c}",
        "{c} * ({a} + {b})",
        "{c} * ({a} - {b})",
        "({b} - {a}) * {c}",
        "{c} * ({b} - {a})",
    )


class Chain(Expression):
    """Operations of one rank: left to right, unless a bracket says otherwise."""

    name = "chain"
    operands = "abc"
    wordings = (
        "{a} + {b} - {c}",
        "{a} - {b} + {c}",
        "{a} - {b} - {c}",
        "{a} * {b} * {c}",
        "{a} - ({b} - {c})",
        "{a} - ({b} + {c})",
    )


class TwoPairs(Expression):
    """Two pairs of numbers, joined by a third operation."""

    name = "two_pairs"
    operands = "abcd"
    wordings = (
        "{a} * {b} + {c} * {d}",
        "{a} * {b} - {c} * {d}",
        "({a} + {b}) * ({c} + {d})",
        "({a} + {b}) * ({c} - {d})",
        "({a} - {b}) * ({c} + {d})",
        "({a} + {b}) - ({c} + {d})",
    )


class Nested(Expression):
    """Three operations, each on the result of the one before."""

    name = "nested"
    operands = "abcd"
    wordings = (
        "({a} + {b}) * {c} - {d}",
        "({a} - {b}) * {c} + {d}",
        "{d} - ({a} + {b}) * {c}",
        "{d} + {c} * ({a} - {b})",
        "{a} + {b} * {c} - {d}",
        "{a} - {b} * {c} + {d}",
    )


_ALL: tuple[type[Expression], ...] = (ProductAndTerm, SumTimes, Chain, TwoPairs, Nested)
TEMPLATES: Mapping[str, TaskTemplate] = {template.name: template() for template in _ALL}
