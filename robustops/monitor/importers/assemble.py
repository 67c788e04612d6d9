"""Rows of a log -> a panel: keys translated, steps put in order, a note for whatever was not as it should."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from robustops.errors import ConfigError
from robustops.monitor import schema
from robustops.monitor.importers.keymap import names_of, translate
from robustops.monitor.importers.log import Imported, Log, Row
from robustops.monitor.panel import Panel, Series

Columns = dict[str, float]

#: Columns of the update: NaN among them is a fact about the numbers, not a value that nobody took.
_NUMERIC = ("entropy", "kl_ref_k1", "kl_ref_k3", "kl_old", "policy_loss")
#: Keys that are no column, or not always, but whose NaN says the same.
_NUMERIC_KEYS = ("loss", "actor/kl_loss", "kl")
#: Room for rounding of a logged value beyond its bounds.
_SLACK = 1e-4


def assemble(
    log: Log, source: str, format: str, names: str | None = None, kl_estimator: str | None = None
) -> Imported:
    """The log as telemetry.

    names: whose keys it has, None: found out; kl_estimator: for a source that does not tell. ConfigError
    where no key is known.
    """
    kept = [row for row in log.rows if row.values]
    names = names or names_of({key for row in kept for key in row.values})
    table = Table(names, kl_estimator or log.kl_estimator)
    for row in kept:
        table.add(row)
    if not table:
        seen = ", ".join(list(table.unmapped)[:8]) or "no number"
        raise ConfigError(
            f"{source} has no metric that is known ({seen}); known are the keys of TRL, verl, OpenRLHF "
            "and ours"
        )
    return table.imported(source, format, log.notes)


class Table:
    """Translated rows, one by one as a run logs them. names: whose keys; kl_estimator: k1, k3 or None."""

    def __init__(self, names: str, kl_estimator: str | None = None) -> None:
        self.names = names
        self.kl_estimator = kl_estimator
        self.unmapped: dict[str, str] = {}
        self._known: list[tuple[Row, Columns]] = []

    def add(self, row: Row) -> None:
        """Take a row in; one without any known key is left out."""
        columns, rest = translate(self.names, row.values, self.kl_estimator)
        self.unmapped |= rest
        columns = _with_numeric_facts(columns, row.values)
        if columns:
            self._known.append((row, columns))

    def __len__(self) -> int:
        return len(self._known)

    def imported(self, source: str, format: str, notes: Sequence[str] = ()) -> Imported:
        """All rows so far, at least one."""
        told = [*notes]
        steps, rows = _in_order(self._known, told)
        columns = _columns(rows, told)
        unmapped = dict(self.unmapped)
        _spread(columns, rows, self._known, unmapped)
        panel = Panel(np.asarray(steps, dtype=np.int64), columns, source)
        return Imported(panel, format, self.names, unmapped, tuple(dict.fromkeys(told)))


def _with_numeric_facts(columns: Columns, values: Mapping[str, float]) -> Columns:
    """With what a logged NaN proves: a norm that is NaN has an entry that is, and a mean likewise. The counts
    are lower bounds.
    """
    broken = [name for name in _NUMERIC if name in columns and not math.isfinite(columns[name])]
    unmapped = [
        key for key in _NUMERIC_KEYS if key == "loss" or not {"kl_ref_k1", "kl_ref_k3"} & set(columns)
    ]
    broken += [key for key in unmapped if key in values and not math.isfinite(values[key])]
    norm = columns.get("grad_norm")
    if norm is not None and "grad_nonfinite" not in columns:
        columns["grad_nonfinite"] = 0.0 if math.isfinite(norm) else 1.0
    if broken and "nan_count" not in columns:
        columns["nan_count"] = float(len(set(broken)))
    return columns


def _in_order(known: Sequence[tuple[Row, Columns]], notes: list[str]) -> tuple[list[int], list[Columns]]:
    """(steps, columns): rows of one step joined, a restart from an earlier step replaces what it repeats."""
    named = sum(row.step is not None for row, _ in known)
    if named * 2 < len(known):
        notes.append(f"the {len(known)} rows carry no step: they are numbered from 1, a number is not a step")
        return list(range(1, len(known) + 1)), [columns for _, columns in known]
    if named < len(known):
        notes.append(f"{len(known) - named} rows without a step were passed over")
    steps: list[int] = []
    rows: list[Columns] = []
    for row, columns in known:
        step = row.step
        if step is None:
            continue
        if steps and step == steps[-1] and not (set(columns) & set(rows[-1]) - {"grad_nonfinite"}):
            rows[-1] |= columns
            continue
        if steps and step <= steps[-1]:
            again = sum(before >= step for before in steps)
            notes.append(f"step {step} comes again after step {steps[-1]}: {again} earlier rows are replaced")
            while steps and steps[-1] >= step:
                steps.pop()
                rows.pop()
        steps.append(step)
        rows.append(columns)
    _note_gaps(steps, notes)
    return steps, rows


def _note_gaps(steps: Sequence[int], notes: list[str]) -> None:
    if len(steps) < 3:
        return
    differences = np.diff(steps)
    usual = Counter(differences.tolist()).most_common(1)[0][0]
    if usual > 1:
        notes.append(f"one row in {usual} steps")
    wide = np.flatnonzero(differences > usual)
    if len(wide):
        first = int(wide[0])
        notes.append(
            f"{len(wide)} gaps between steps, the first between {steps[first]} and {steps[first + 1]}: "
            "nothing is filled in"
        )


def _columns(rows: Sequence[Columns], notes: list[str]) -> dict[str, Series]:
    """Arrays in the schema's order, without those whose values the quantity cannot have."""
    seen = {name for row in rows for name in row}
    order = [name for name in schema.names() if name in seen]
    arrays = {
        name: np.array([row.get(name, math.nan) for row in rows], dtype=np.float64)
        for name in (*order, *sorted(seen - set(order)))
    }
    for name in order:
        entry, values = schema.quantity(name), arrays[name]
        finite = values[np.isfinite(values)]
        slack = _SLACK * max(1.0, float(np.abs(finite).max(initial=0.0)))
        if finite.size and (finite.min() < entry.low - slack or finite.max() > entry.high + slack):
            notes.append(
                f"{name} is outside [{entry.low:g}, {entry.high:g}] ({finite.min():g} to {finite.max():g}): "
                "another quantity, left out"
            )
            del arrays[name]
    return arrays


def _spread(
    columns: dict[str, Series],
    rows: Sequence[Columns],
    known: Iterable[tuple[Row, Columns]],
    unmapped: dict[str, str],
) -> None:
    """TRL's `reward_std`: over the batch in newer versions, the mean over groups in older ones. With a single
    reward of weight 1 the log tells: its own deviation is over the batch in both.
    """
    parts = [name for name in columns if name.startswith("rewards.") and name.endswith(".std")]
    given = [(row.values.get("reward_std", row.values.get("train/reward_std")), own) for row, own in known]
    pairs = [
        (value, own[parts[0]]) for value, own in given if parts and value is not None and parts[0] in own
    ]
    means = [n for n in columns if n.startswith("rewards.") and n.endswith(".mean")]
    if len(parts) != 1 or len(means) != 1 or len(pairs) != len(rows) or "reward_mean" not in columns:
        return
    if not np.allclose(columns["reward_mean"], columns[means[0]], rtol=1e-4, atol=1e-8, equal_nan=True):
        return
    stated = np.array([value for value, _ in pairs], dtype=np.float64)
    own = np.array([value for _, value in pairs], dtype=np.float64)
    same = bool(np.allclose(stated, own, rtol=1e-3, atol=1e-6, equal_nan=True))
    columns["reward_std" if same else "group_reward_std_mean"] = stated
    unmapped.pop("reward_std", None)
    unmapped.pop("train/reward_std", None)
