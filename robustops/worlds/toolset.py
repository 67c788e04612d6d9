"""Typed tools over a database: JSON schemas from type hints and docstrings, argument check, calls.

A domain subclasses `Toolset` and marks methods with `@tool`. The method's type hints become a pydantic
model (so the JSON schema and the argument check cannot disagree), the docstring's first paragraph its
description and the `Args:` section the descriptions of the arguments.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from robustops.errors import ToolError
from robustops.records import ToolCall, ToolResult
from robustops.worlds.database import Row, WorldDatabase

Kind = Literal["read", "write"]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class ToolSpec:
    """What is known of one tool without calling it.

    identity: argument name -> "table.column" that it names, for reads that ask about ONE object and
    whose reply echoes that column; it lets a reader notice a reply about another object.
    """

    name: str
    description: str
    kind: Kind
    model: type[BaseModel]
    identity: dict[str, str] = field(default_factory=dict)

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        """JSON schema of the arguments: plain types, no titles, `null` never offered."""
        schema = self.model.model_json_schema()
        properties = {name: _plain(value) for name, value in schema.get("properties", {}).items()}
        return {"type": "object", "properties": properties, "required": schema.get("required", [])}

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(self.model.model_fields)

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(n for n, f in self.model.model_fields.items() if f.is_required())


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Drop titles, null alternatives and null defaults: some clients refuse union types."""
    schema = {key: value for key, value in schema.items() if key != "title"}
    if "anyOf" in schema:
        first = next(option for option in schema.pop("anyOf") if option.get("type") != "null")
        schema = {**_plain(first), **schema}
    if schema.get("default", 0) is None:
        del schema["default"]
    return schema


def tool(kind: Kind, *, identity: dict[str, str] | None = None) -> Callable[[F], F]:
    """Mark a method as a tool; see `ToolSpec` for `identity`."""

    def mark(method: F) -> F:
        method.tool_kind = kind  # type: ignore[attr-defined]
        method.tool_identity = identity or {}  # type: ignore[attr-defined]
        return method

    return mark


_ARGUMENT = re.compile(r"^\s+(\w+):\s*(.+)$")


def _describe(method: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Description and argument descriptions from a docstring with an `Args:` section."""
    text = inspect.getdoc(method) or ""
    head, _, rest = text.partition("Args:")
    found = (_ARGUMENT.match(line) for line in rest.splitlines())
    arguments = {m.group(1): m.group(2) for m in found if m}
    return " ".join(head.split()), arguments


def build_spec(method: Callable[..., Any]) -> ToolSpec:
    """The spec of one marked method."""
    description, descriptions = _describe(method)
    hints = get_type_hints(method, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(method).parameters.items())[1:]:
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[name] = (hints[name], Field(default, description=descriptions.get(name)))
    name = method.__name__
    model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    return ToolSpec(name, description, method.tool_kind, model, method.tool_identity)  # type: ignore[attr-defined]


class Toolset:
    """The tools of one domain over one database.

    acting_user: id of the user on whose behalf calls are made, or None.
    detail: `full` replies with whole rows; `brief` keeps the columns in `brief_columns` of the row's
    table (all columns where a table is not listed) and drops nulls, for models with a short context.
    """

    brief_columns: ClassVar[dict[str, tuple[str, ...]]] = {}
    _specs: ClassVar[dict[str, ToolSpec]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        methods = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}
        cls._specs = {n: build_spec(m) for n, m in methods.items() if hasattr(m, "tool_kind")}

    def __init__(
        self, database: WorldDatabase, *, acting_user: str | None = None, detail: str = "full"
    ) -> None:
        self.database = database
        self.acting_user = acting_user
        self.detail = detail

    @classmethod
    def specs(cls) -> dict[str, ToolSpec]:
        """All tools by name."""
        return cls._specs

    def show(self, table: str, row: Row) -> Row:
        """A row as it appears in a reply, by the level of detail. Tools reply through this."""
        if self.detail == "full":
            return row
        keep = self.brief_columns.get(table)
        return {k: v for k, v in row.items() if v is not None and (keep is None or k in keep)}

    def unknown(self, name: str, known: Iterable[str]) -> ToolResult:
        """The refusal of a tool that does not exist or that the task does not allow."""
        return refusal(ToolError("UNKNOWN_TOOL", f"no tool named '{name}'", "name", known))

    def call(self, call: ToolCall) -> ToolResult:
        """Check the arguments and run the tool; refusals come back as structured error results."""
        spec = self._specs.get(call.name)
        if spec is None:
            return self.unknown(call.name, self._specs)
        try:
            checked = spec.model.model_validate(call.arguments)
        except ValidationError as error:
            return refusal(_argument_error(spec, error))
        arguments = {name: getattr(checked, name) for name in checked.model_fields_set}
        method = getattr(self, call.name)
        try:
            if spec.kind == "write":
                with self.database.atomic():
                    reply = method(**arguments)
            else:
                reply = method(**arguments)
        except ToolError as error:
            return refusal(error)
        except OverflowError:
            return refusal(ToolError("INVALID_ARGUMENT", f"{spec.name} takes integers of at most 64 bits"))
        return ToolResult(reply_text(reply))


def reply_text(reply: Any) -> str:
    """The text form of a tool's reply: compact JSON in the reply's own key order."""
    return json.dumps(reply, separators=(",", ":"), ensure_ascii=False)


def refusal(error: ToolError) -> ToolResult:
    """The result an agent sees of a refused call."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.field is not None:
        body["field"] = error.field
    if error.allowed is not None:
        body["allowed"] = error.allowed
    return ToolResult(reply_text({"error": body}), is_error=True)


def _argument_error(spec: ToolSpec, error: ValidationError) -> ToolError:
    """The first pydantic complaint as a structured refusal that names what is allowed."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "missing":
        return ToolError("MISSING_ARGUMENT", f"{spec.name} needs '{name}'", name)
    if first["type"] == "extra_forbidden":
        return ToolError("UNKNOWN_ARGUMENT", f"{spec.name} has no argument '{name}'", name, spec.arguments)
    if first["type"] == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(first["ctx"]["expected"]))
        return ToolError("INVALID_ENUM_VALUE", f"'{first['input']}' is no value of '{name}'", name, allowed)
    return ToolError("INVALID_ARGUMENT", f"'{name}': {first['msg']}", name)


def require(rows: Iterable[Row] | Row | None, what: str, given: Any, field: str) -> Row:
    """The row that was asked for, or a NOT_FOUND refusal."""
    row = rows if isinstance(rows, dict) or rows is None else next(iter(rows), None)
    if row is None:
        raise ToolError("NOT_FOUND", f"{what} '{given}' not found", field)
    return row
