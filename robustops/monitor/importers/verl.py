"""verl: console lines `step:N - key:value - ...`, with or without colours, or JSON lines."""

from __future__ import annotations

import re

from robustops.monitor.importers import jsonl
from robustops.monitor.importers.keymap import names_of
from robustops.monitor.importers.log import Log, Row, Source, number, step_of

_ANSI = re.compile(r"\x1b?\[[0-9;]*m")
_LINE = re.compile(r"\bstep:(\d+) - (\S+:.*)$")
#: As verl prints its configuration, at the start of its log.
_ESTIMATOR = re.compile(r"['\"]?kl_loss_type['\"]?\s*[:=]\s*['\"]?([\w+]+)")
_ESTIMATORS = {"kl": "k1", "k1": "k1", "low_var_kl": "k3", "k3": "k3"}


def matches(source: Source) -> bool:
    """Console lines of verl, or JSON lines with its keys."""
    if source.is_folder:
        return False
    if jsonl.matches(source):
        return names_of({key for row in jsonl.read(source).rows[:20] for key in row.values}) == "verl"
    return any(_LINE.search(_ANSI.sub("", line)) for _, line in source.lines())


def read(source: Source) -> Log:
    """Rows of steps; one step printed in several lines (training, validation) is joined later."""
    if jsonl.matches(source):
        return jsonl.read(source)
    found = [match for _, line in source.lines() if (match := _LINE.search(_ANSI.sub("", line)))]
    torn = not source.text.endswith(("\n", "\r"))
    rows, notes = [], []
    for place, match in enumerate(found):
        fields = match.group(2).split(" - ")
        if torn and place == len(found) - 1 and source.text.rstrip().endswith(fields[-1].strip()):
            # Half of a number reads as a number.
            notes.append(f"the last line does not end: its last value ({fields[-1].strip()}) is passed over")
            fields = fields[:-1]
        rows.append(_row(int(match.group(1)), fields))
    return Log(tuple(rows), tuple(notes), _estimator(source.text))


def _row(step: int, fields: list[str]) -> Row:
    values = {}
    for text in fields:
        key, colon, value = text.strip().partition(":")
        if colon and (found := number(value)) is not None:
            values[key.strip()] = found
    return Row(step_of({"step": step}), {k: v for k, v in values.items() if k != "training/global_step"})


def _estimator(text: str) -> str | None:
    """k1 or k3 where the printed configuration says so, once."""
    named = {_ESTIMATORS.get(name.rstrip("+")) for name in _ESTIMATOR.findall(text)}
    return named.pop() if len(named) == 1 else None
