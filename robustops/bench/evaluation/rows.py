"""Results as plain rows: one number with its interval, and what it is of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from robustops.tracking.statistics import Interval


@dataclass(frozen=True)
class Row:
    """metric: name, `@` and the false-alarm rate where it has one; difficulty: easy, hard, or "" for both or
    neither; of: family, type, mode or what else the runs were narrowed to, "" for all; estimate, low, high:
    with a 95 % interval, NaN where there is none; n: runs behind it.
    """

    method: str
    task: str
    tier: str
    horizon: int
    metric: str
    estimate: float
    low: float = math.nan
    high: float = math.nan
    difficulty: str = ""
    of: str = ""
    n: int = 0

    def to_dict(self) -> dict[str, Any]:
        """In JSON values; NaN is None."""
        body = asdict(self)
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in body.items()}


class Rows:
    """Rows that can be asked for."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows = list(rows)

    def get(self, **wanted: Any) -> Row | None:
        """The one row with these fields (`difficulty` and `of` are "" unless given), or None."""
        wanted = {"difficulty": "", "of": ""} | wanted
        found = self._index.get(_key(wanted))
        return found

    @property
    def _index(self) -> dict[tuple[Any, ...], Row]:
        if getattr(self, "_size", -1) != len(self.rows):
            self._known = {_key(vars(row)): row for row in self.rows}
            self._size = len(self.rows)
        return self._known

    def value(self, **wanted: Any) -> Interval | None:
        """Its number and interval."""
        found = self.get(**wanted)
        return None if found is None else Interval(found.estimate, found.low, found.high)


_KEYS = ("method", "tier", "horizon", "metric", "difficulty", "of")


def _key(fields: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(fields[name] for name in _KEYS)
