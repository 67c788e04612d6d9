"""What the data set keeps of a run's verification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Verdict:
    """verified: exposure and mechanical effect are as planned; reason: why not, "" if they are; numbers:
    what was measured for it.
    """

    verified: bool
    reason: str = ""
    numbers: Mapping[str, float | int | str | bool | None] = field(default_factory=dict)
