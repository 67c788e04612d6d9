"""Runs of another kind as if they were of the kind that a diagnoser knows, by healthy runs of both.

Each column is moved so that healthy runs of the new kind have, at each step, the centre and the scale that
healthy runs of the known kind have, on the column's even scale (`detect.transforms`): matching the first two
moments, as is usual where labels exist on one side only. The diagnoser itself stays as it is, and no faulty
run of the new kind is looked at.

    x' = f^-1(centre + scale (f(x) - new_centre) / new_scale)

Centre and scale are those of a healthy profile (`detect.profile`): robust, smoothed over steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustops.errors import ConfigError
from robustops.monitor import schema
from robustops.monitor.detect.profile import SETTINGS, Profile
from robustops.monitor.detect.transforms import transform_of
from robustops.monitor.panel import Panel, Series

#: Deviations beyond which a value is as far out as it can be: exp of more has no meaning.
_FURTHEST = 20.0


def common_columns(known: Sequence[Panel], new: Sequence[Panel]) -> tuple[str, ...]:
    """Schema columns that at least half of the runs on either side observe; ConfigError for none."""
    found = tuple(
        name
        for name in schema.names()
        if all(2 * sum(panel.observed(name) for panel in side) >= len(side) for side in (known, new))
    )
    if not found:
        raise ConfigError("the runs have no telemetry column in common; are they of one schema?")
    return found


@dataclass(frozen=True)
class Alignment:
    """known, new: profiles of healthy runs of either kind, of the same columns."""

    known: Profile
    new: Profile

    @classmethod
    def fit(cls, known: Sequence[Panel], new: Sequence[Panel]) -> Alignment:
        """Of healthy runs; ConfigError for fewer than three on a side, or no common column."""
        columns = [name for name in common_columns(known, new) if name not in SETTINGS]
        return cls(Profile.fit(known, columns), Profile.fit(new, columns))

    def __call__(self, panel: Panel) -> Panel:
        """A run of the new kind in terms of the known one; columns that are not common are left out."""
        columns = {name: self._moved(panel, name, place) for place, name in enumerate(self.known.signals)}
        for place, name in enumerate(SETTINGS):
            if panel.observed(name):
                columns[name] = self._set(panel, name, place)
        return Panel(panel.steps, columns, panel.source)

    def _moved(self, panel: Panel, name: str, place: int) -> Series:
        """(T,) one column; NaN stays NaN."""
        transform = transform_of(name)
        with np.errstate(over="ignore", invalid="ignore"):
            values = transform.forward(panel[name])
        here, there = _rows(self.new, panel), _rows(self.known, panel)
        centre = self.new.centre[here, place]
        out = np.clip((values - centre) / self.new.scale[here, place], -_FURTHEST, _FURTHEST)
        moved: Series = transform.back(self.known.centre[there, place] + out * self.known.scale[there, place])
        return moved

    def _set(self, panel: Panel, name: str, place: int) -> Series:
        """(T,) a setting such as the learning rate: as far from the usual one, as a factor."""
        transform = transform_of(name)
        off = transform.forward(panel[name]) - self.new.settings[_rows(self.new, panel), place]
        usual = self.known.settings[_rows(self.known, panel), place]
        found: Series = transform.back(usual + np.clip(off, -_FURTHEST, _FURTHEST))
        return found


def _rows(profile: Profile, panel: Panel) -> np.ndarray:
    """(T,) the profile's row of each step; beyond its last step that one."""
    return np.clip(np.searchsorted(profile.steps, panel.steps, side="right") - 1, 0, len(profile.steps) - 1)
