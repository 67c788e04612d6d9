"""The tables that a person reads at the end of a run, from the content of `summary.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

COLUMNS = (
    "policy",
    "condition",
    "success_rate",
    "ci95_low",
    "ci95_high",
    "n",
    "pass_at_k",
    "hit_rate",
    "tool_calls_mean",
    "completion_tokens_mean",
)


def evaluation_cells(summary: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of the evaluation table, for loggers: one row a policy and condition.

    pass_at_k is text such as `1: 0.50, 4: 0.81`.
    """
    rows: list[list[Any]] = []
    for policy, conditions in summary["evaluations"].items():
        for condition, cell in conditions.items():
            low, high = cell["ci95"] or (None, None)
            passes = ", ".join(f"{k}: {value:.2f}" for k, value in cell["pass_at_k"].items())
            row = [policy, condition, cell["success_rate"], low, high, cell["n"], passes]
            rows.append(row + [cell[name] for name in COLUMNS[7:]])
    return list(COLUMNS), rows


def results_table(summary: Mapping[str, Any]) -> Table:
    """Success of every policy under every condition, conditions one after the other (in percent)."""
    evaluations = summary["evaluations"]
    cells = [cell for conditions in evaluations.values() for cell in conditions.values()]
    attempts = max((int(k) for cell in cells for k in cell["pass_at_k"]), default=1)
    names = ["success, 95 % interval", "cases", f"pass@{attempts}", "hit", "calls", "tokens"]
    if attempts == 1:
        names.remove("pass@1")
    table = plain_table("Evaluation (percent)", ("condition", "policy"), names)
    conditions = list(dict.fromkeys(name for cells in evaluations.values() for name in cells))
    for condition in conditions:
        for policy, found in evaluations.items():
            if condition in found:
                table.add_row(condition, policy, *_cell_texts(found[condition], condition, attempts))
        table.add_section()
    return table


def differences_table(summary: Mapping[str, Any]) -> Table:
    """Paired differences in points, over all cases and over the common hits."""
    names = ("all cases, 95 %", "n", "common hits, 95 %", "n")
    table = plain_table("Paired differences (points)", ("pair", "condition"), names)
    for pair, conditions in summary["differences"].items():
        for condition, cell in conditions.items():
            hits = summary["common_hits"].get(condition, {}).get("differences", {}).get(pair)
            table.add_row(pair, condition, *_difference_texts(cell), *_difference_texts(hits))
        table.add_section()
    return table


def plain_table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    """A table without rules between cells: names on the left, figures on the right."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_results(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """Both tables, and how many episodes were invalid, if any were."""
    console = console or Console()
    console.print(results_table(summary))
    if summary.get("differences"):
        console.print(differences_table(summary))
    for policy, conditions in summary.get("invalid", {}).items():
        for condition, count in conditions.items():
            console.print(f"{count} invalid episodes of {policy} under {condition} are left out")


def _cell_texts(cell: Mapping[str, Any], condition: str, attempts: int) -> list[str]:
    passes = [_percent(cell["pass_at_k"].get(str(attempts)))] if attempts > 1 else []
    return [
        f"{_percent(cell['success_rate'])} {_interval(cell['ci95'])}",
        str(cell["n"]),
        *passes,
        "-" if condition == "clean" else _percent(cell["hit_rate"]),
        _number(cell["tool_calls_mean"]),
        _number(cell["completion_tokens_mean"]),
    ]


def _difference_texts(cell: Mapping[str, Any] | None) -> list[str]:
    if cell is None or cell["difference"] is None:
        return ["-", "0" if cell else "-"]
    return [f"{100 * cell['difference']:+.1f} {_interval(cell['ci95'], sign='+')}", str(cell["n"])]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _interval(bounds: Sequence[float] | None, sign: str = "") -> str:
    return "" if bounds is None else f"[{100 * bounds[0]:{sign}.1f}, {100 * bounds[1]:{sign}.1f}]"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
