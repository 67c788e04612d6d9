"""Cases that gave no signal wait here until the policy has changed (RobustOps: delayed return).

A group without a relative signal at step k makes its case eligible again at step k + wait. It returns only
when a filtered group has to be replaced, in a slot of its own kind, and not into a batch that holds the case
already. Whoever returns is sampled anew with the current policy: clean cases from the start, fault cases
from the saved state after their fault.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from robustops.errors import ConfigError
from robustops.rollout.episode import Prefix


@dataclass(frozen=True)
class WaitingCase:
    """due: the first step at which it may return; packed: its compressed prefix (fault cases)."""

    case_id: str
    condition: str
    due: int
    packed: bytes | None = None

    @property
    def prefix(self) -> Prefix | None:
        if self.packed is None:
            return None
        prefix: Prefix = pickle.loads(zlib.decompress(self.packed))
        return prefix


class ZeroSignalQueue:
    """First in, first out among the cases that are due.

    wait: steps until a case may return, None: cases never return; capacity: most cases that wait, since a
    fault case keeps a whole database; the one that has waited longest goes when another one comes.
    """

    def __init__(self, wait: int | None, capacity: int = 256) -> None:
        if capacity < 1:
            raise ConfigError(
                f"grpo.zero_signal_capacity is {capacity}; give 1 or more, or zero_signal_wait=null"
            )
        self.wait = wait
        self.capacity = capacity
        self.waiting: list[WaitingCase] = []

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, case_id: str, condition: str, step: int, prefix: Prefix | None = None) -> None:
        """A group of this case was silent at `step`; the wait starts anew for a case that waits already."""
        if self.wait is None:
            return
        self.waiting = [c for c in self.waiting if (c.case_id, c.condition) != (case_id, condition)]
        packed = None if prefix is None else zlib.compress(pickle.dumps(prefix))
        self.waiting.append(WaitingCase(case_id, condition, step + self.wait, packed))
        del self.waiting[: -self.capacity]

    def take(self, condition: str, step: int, used: Collection[str]) -> WaitingCase | None:
        """The longest waiting case of this kind that is due and not among `used`; it leaves the queue."""
        for place, case in enumerate(self.waiting):
            if case.condition == condition and case.due <= step and case.case_id not in used:
                return self.waiting.pop(place)
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"waiting": [(c.case_id, c.condition, c.due, c.packed) for c in self.waiting]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waiting = [WaitingCase(*fields) for fields in state["waiting"]]
