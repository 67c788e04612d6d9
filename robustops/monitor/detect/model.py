"""What is learned from healthy runs, and the running statistics of a run by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustops.monitor.detect import statistics
from robustops.monitor.detect.groups import STAGES
from robustops.monitor.detect.profile import Profile, stage_of
from robustops.monitor.detect.residuals import Relations
from robustops.monitor.panel import Panel, Series

#: Kinds of statistics that each signal has of its own.
BY_SIGNAL = ("level", "partial", "across", "spread", "cusum")
#: Windows of squares: a single one says what its level says.
SPREAD_WINDOWS = (5, 10, 20, 0)


@dataclass(frozen=True)
class Model:
    """profile and relations of the same healthy runs."""

    profile: Profile
    relations: Relations

    @classmethod
    def fit(cls, panels: Sequence[Panel], signals: Sequence[str] | None = None) -> Model:
        """signals, ConfigError: as of `Profile.fit`."""
        profile = Profile.fit(panels, signals)
        levels = np.concatenate([profile.residuals(panel) for panel in panels])
        return cls(profile, Relations.fit(levels, [STAGES.index(stage_of(s)) for s in profile.signals]))

    @property
    def signals(self) -> tuple[str, ...]:
        """Columns and pairs, in the order of the last axis of residuals."""
        return self.profile.signals

    def residuals(self, panel: Panel) -> dict[str, Series]:
        """(T, C) each: level, partial, across."""
        levels = self.profile.residuals(panel)
        return {
            "level": levels,
            "partial": self.relations.partial(levels),
            "across": self.relations.across(levels),
        }

    def statistics(self, panel: Panel) -> dict[str, Series]:
        """(T, K) each, never NaN, larger: less healthy. Of a kind in `BY_SIGNAL`, K is windows x signals."""
        found = self.residuals(panel)
        made = {kind: _scans(values, statistics.WINDOWS) for kind, values in found.items()}
        level = found["level"]
        squares = [statistics.spread(np.clip(level, -4, 4), length) for length in SPREAD_WINDOWS]
        made["spread"] = np.concatenate(squares, axis=1)
        made["cusum"] = np.maximum(*statistics.cusum(level))
        whole = np.stack(self.relations.distances(level), axis=1)
        parts = [statistics.scan(whole, length) for length in statistics.WINDOWS]
        made["whole"] = np.concatenate([*parts, statistics.criticism(level)[:, None]], axis=1)
        return made

    def to_dict(self) -> dict[str, Any]:
        """In JSON values."""
        return {"profile": self.profile.to_dict(), "relations": self.relations.to_dict()}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Model:
        """The inverse of `to_dict`."""
        return cls(Profile.from_dict(body["profile"]), Relations.from_dict(body["relations"]))


def _scans(values: Series, windows: Sequence[int]) -> Series:
    return np.concatenate([np.abs(statistics.scan(values, length)) for length in windows], axis=1)
