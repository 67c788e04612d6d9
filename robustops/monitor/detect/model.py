"""What is learned from healthy runs, and the running statistics of a run by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustops.monitor.detect import statistics
from robustops.monitor.detect.groups import STAGES
from robustops.monitor.detect.profile import Profile, stage_of
from robustops.monitor.detect.residuals import Relations, own_start
from robustops.monitor.panel import Panel, Series

#: Residuals of each signal, see `residuals`.
VIEWS = ("level", "partial", "across")
#: Kinds of statistics: two of each view, and T2 and Q of whole steps.
KINDS = (*(f"{view} {kind}" for view in VIEWS for kind in ("scan", "cusum")), "whole")


@dataclass(frozen=True)
class Model:
    """profile and relations of the same healthy runs; own: steps at a run's start that its levels are held
    against (`residuals.own_start`), 0: against the profile.
    """

    profile: Profile
    relations: Relations
    own: int = 0

    @classmethod
    def fit(cls, panels: Sequence[Panel], signals: Sequence[str] | None = None, own: int = 0) -> Model:
        """signals, ConfigError: as of `Profile.fit`."""
        profile = Profile.fit(panels, signals)
        levels = np.concatenate([_levels(profile, panel, own) for panel in panels])
        relations = Relations.fit(levels, [STAGES.index(stage_of(s)) for s in profile.signals])
        return cls(profile, relations, own)

    @property
    def signals(self) -> tuple[str, ...]:
        """Columns and pairs, in the order of the last axis of residuals."""
        return self.profile.signals

    def residuals(self, panel: Panel) -> dict[str, Series]:
        """(T, C) of each view."""
        levels = _levels(self.profile, panel, self.own)
        return {
            "level": levels,
            "partial": self.relations.partial(levels),
            "across": self.relations.across(levels),
        }

    def statistics(self, panel: Panel) -> dict[str, Series]:
        """(T, K) of each kind, never NaN, larger: less healthy. K: (windows x) signals of a view."""
        made: dict[str, Series] = {}
        found = self.residuals(panel)
        for view, values in found.items():
            scans = [np.abs(statistics.scan(values, length)) for length in statistics.WINDOWS]
            made[f"{view} scan"] = np.concatenate(scans, axis=1)
            made[f"{view} cusum"] = np.maximum(*statistics.cusum(values))
        whole = self.relations.distances(found["level"])
        scans = [statistics.scan(whole, length) for length in statistics.WINDOWS]
        made["whole"] = np.concatenate(scans, axis=1)
        return made

    def to_dict(self) -> dict[str, Any]:
        """In JSON values."""
        return {
            "profile": self.profile.to_dict(),
            "relations": self.relations.to_dict(),
            "own": self.own,
        }

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Model:
        """The inverse of `to_dict`."""
        relations = Relations.from_dict(body["relations"])
        return cls(Profile.from_dict(body["profile"]), relations, int(body["own"]))


def _levels(profile: Profile, panel: Panel, own: int) -> Series:
    levels = profile.residuals(panel)
    return own_start(levels, own) if own else levels
