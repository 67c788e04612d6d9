"""Tools of the calculator: one operation a call, an answer to submit, and reads of what was stored."""

from __future__ import annotations

from typing import Any

from robustops.worlds.database import Row
from robustops.worlds.domains.arithmetic.expressions import parse_operation
from robustops.worlds.domains.arithmetic.schema import BRIEF_COLUMNS, store
from robustops.worlds.toolset import Toolset, require, tool

Reply = dict[str, Any]


class ArithmeticToolset(Toolset):
    """A calculator that keeps what it computed, and a tray for answers."""

    brief_columns = BRIEF_COLUMNS

    @tool("write")
    def compute(self, expression: str) -> Reply:
        """Compute one operation on two integers.

        Args:
            expression: such as 7*3
        """
        step = parse_operation(expression)
        number = store(self.database, step)
        if self.detail == "full":
            return {"number": number, "expression": step.text, "value": step.value}
        return {"value": step.value}

    @tool("write")
    def submit(self, value: int) -> Reply:
        """Submit the answer.

        Args:
            value: the answer
        """
        number = 1 + int(self.database.scalar("SELECT COALESCE(MAX(number), 0) FROM answers"))
        self.database.insert("answers", {"number": number, "value": value})
        if self.detail == "full":
            return {"number": number, "submitted": value}
        return {"submitted": value}

    @tool("read")
    def list_computations(self, expression: str | None = None) -> Reply:
        """List stored computations.

        Args:
            expression: such as 7*3
        """
        if expression is None:
            return self._computations("1 = 1")
        return self._computations("expression = ?", parse_operation(expression).text)

    @tool("read")
    def list_answers(self) -> Reply:
        """List submitted answers."""
        rows = self.database.query("SELECT * FROM answers ORDER BY number")
        return {"answers": [self.show("answers", row) for row in rows]}

    @tool("read", identity={"number": "computations.number"})
    def get_computation(self, number: int) -> Reply:
        """Show one computation.

        Args:
            number: its place, from 1
        """
        row = self.database.one("SELECT * FROM computations WHERE number = ?", (number,))
        # With its number at any level of detail: it tells a reply about another computation.
        return {"number": number, **self.show("computations", require(row, "computation", number, "number"))}

    @tool("read")
    def find_value(self, value: int) -> Reply:
        """List computations with a value.

        Args:
            value: the value
        """
        return self._computations("value = ?", value)

    @tool("read")
    def last_computation(self) -> Reply:
        """Show the latest computation."""
        row = self.database.one("SELECT * FROM computations ORDER BY number DESC LIMIT 1")
        return self.show("computations", require(row, "computation", "latest", "number"))

    @tool("read")
    def count_computations(self) -> Reply:
        """Count stored computations."""
        return {"count": self.database.scalar("SELECT COUNT(*) FROM computations")}

    @tool("read")
    def get_bounds(self) -> Reply:
        """Show the largest operand and result of requests."""
        rows: list[Row] = self.database.query("SELECT * FROM bounds")
        return require(rows, "bounds", "of requests", "operand")

    def _computations(self, condition: str, *parameters: Any) -> Reply:
        sql = f"SELECT * FROM computations WHERE {condition} ORDER BY number"
        rows = self.database.query(sql, parameters)
        return {"computations": [self.show("computations", row) for row in rows]}
