"""Expressions over integers: how they are written, and the single operations that their value takes."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from robustops.errors import TaskError, ToolError

SYMBOLS = ("+", "-", "*")
_ONE_OPERATION = re.compile(r"\s*(-?[0-9]{1,9})\s*([+*-])\s*(-?[0-9]{1,9})\s*", re.ASCII)
_OPERATOR = re.compile(r"(?<=[0-9)])\s*[-+*/]")
_AST_SYMBOLS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}


@dataclass(frozen=True)
class Step:
    """One operation of an expression.

    left, symbol, right: its operands, earlier results filled in; left_from, right_from: place of the
    earlier step whose result the operand is, None for a number of the expression.
    """

    left: int
    symbol: str
    right: int
    left_from: int | None = None
    right_from: int | None = None

    @property
    def value(self) -> int:
        """Its result."""
        return _apply(self.left, self.symbol, self.right)

    @property
    def uses(self) -> tuple[int, ...]:
        """Places of the steps whose results it takes."""
        return tuple(place for place in (self.left_from, self.right_from) if place is not None)

    def on(self, results: Sequence[int]) -> Step:
        """The step with its operands taken from these results of the earlier steps."""
        left = self.left if self.left_from is None else results[self.left_from]
        right = self.right if self.right_from is None else results[self.right_from]
        return replace(self, left=left, right=right)

    @property
    def text(self) -> str:
        """The operation as `compute` stores it: `7*3`."""
        return f"{self.left}{self.symbol}{self.right}"

    @property
    def texts(self) -> tuple[str, ...]:
        """The ways to write it: a sum or product also the other way round."""
        turned = f"{self.right}{self.symbol}{self.left}"
        return (self.text,) if self.symbol == "-" or turned == self.text else (self.text, turned)


def _apply(left: int, symbol: str, right: int) -> int:
    if symbol == "*":
        return left * right
    return left + right if symbol == "+" else left - right


def parse_operation(text: str) -> Step:
    """The one operation on two integers of at most nine digits that a text spells.

    Raises ToolError (INVALID_ARGUMENT) for anything else; the message says what was found.
    """
    found = _ONE_OPERATION.fullmatch(text)
    if found is None:
        operators = len(_OPERATOR.findall(text.strip()))
        what = f"has {operators} operators" if operators > 1 else "is no operation on two integers"
        shown = text if len(text) <= 40 else text[:40] + "..."
        raise ToolError("INVALID_ARGUMENT", f"'{shown}' {what}; give one, such as 7*3", "expression")
    return Step(int(found[1]), found[2], int(found[3]))


def steps_of(expression: str) -> tuple[Step, ...]:
    """The operations of an expression in the order of the rules: brackets, products, left to right.

    The last step's value is that of the expression. TaskError for what is no expression of integers with
    at least one of + - *.
    """
    steps: list[Step] = []
    try:
        _visit(ast.parse(expression.strip(), mode="eval").body, steps)
    except (SyntaxError, ValueError) as error:
        raise TaskError(f"'{expression}' is no expression of integers with + - *: {error}") from error
    if not steps:
        raise TaskError(f"'{expression}' has no operation; join integers by + - *")
    return tuple(steps)


def _visit(node: ast.expr, steps: list[Step]) -> tuple[int, int | None]:
    """The value of a node, and the place of the step that gave it (None for a number)."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value, None
    if not isinstance(node, ast.BinOp) or type(node.op) not in _AST_SYMBOLS:
        raise ValueError(f"{type(node).__name__} is not allowed")
    left, left_from = _visit(node.left, steps)
    right, right_from = _visit(node.right, steps)
    steps.append(Step(left, _AST_SYMBOLS[type(node.op)], right, left_from, right_from))
    return steps[-1].value, len(steps) - 1
