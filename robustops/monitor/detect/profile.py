"""The healthy profile: what a signal is at each step of a healthy run, and how far runs stray from it.

A signal is a column on its even scale (`transforms`) or a pair (`pairs`). Centre and scale at a step are the
median and the median absolute deviation over runs, smoothed over neighbouring steps. What a run's own
learning rate and KL weight explain is taken out first, by a ridge regression over all rows of the profile
(`slopes`): a profile of many configurations is then nearly as sharp as one of a single configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustops.errors import ConfigError
from robustops.monitor import schema
from robustops.monitor.detect import groups, pairs, robust
from robustops.monitor.detect.files import read_versioned, write_versioned
from robustops.monitor.detect.transforms import transform_of
from robustops.monitor.panel import Panel, Series

VERSION = 1
KIND = "healthy profile"
#: Steps over which centre and scale are smoothed.
SMOOTHING = 5
#: A profile of fewer runs knows no scale.
LEAST_RUNS = 3
#: Settings of a run, not signals: what they explain is taken out.
SETTINGS = ("lr", "kl_coef")
#: Residuals are cut here: one value that is infinitely wrong must not hide how the others move.
CUT = 8.0
#: How far beyond the profile the regression is used, as a logarithm: a factor of 4.5, as rates decay.
_BEYOND = 1.5
#: Penalty of the regression on settings, in rows of the profile.
_RIDGE = 20.0
#: Share of the (not robust) standard deviation that a scale is at least: a quantity that is mostly 0 has
#: MAD 0.
_LEAST_SD = 0.5
#: Deviation of a healthy mean from zero that is rounding only (advantages, baselines).
_ROUNDING = 1e-6
_EXACT_ZERO = {"adv_mean", "adv_group_mean_absmax", "baseline_bias"}


@dataclass(frozen=True)
class Profile:
    """steps: (S,); signals: C names; centre, scale: (S, C), on the even scale; settings: (S, B) centre of the
    settings, reach: (2, B) least and largest deviation from it that count; slopes: (2 B, C) of
    setting and setting times progress; runs: how many it is made of.
    """

    signals: tuple[str, ...]
    steps: NDArray[np.int64]
    centre: Series
    scale: Series
    settings: Series
    reach: Series
    slopes: Series
    runs: int

    @classmethod
    def fit(cls, panels: Sequence[Panel], signals: Sequence[str] | None = None) -> Profile:
        """Of panels of healthy runs. signals: None: what at least half of the panels observe. ConfigError for
        fewer than three runs, or none of whose columns is known.
        """
        if len(panels) < LEAST_RUNS:
            raise ConfigError(
                f"a profile of {len(panels)} healthy runs has no scale; give {LEAST_RUNS}, better 20"
            )
        signals = _common_signals(panels) if signals is None else tuple(signals)
        steps = np.unique(np.concatenate([panel.steps for panel in panels]))
        values = np.stack([_aligned(panel, signals_of(panel, signals), steps) for panel in panels])
        given = np.stack([_aligned(panel, _settings(panel), steps) for panel in panels])
        centre, middle = robust.median(values), robust.median(given)
        centre = robust.smooth(centre, SMOOTHING)
        reach = _reach(given - middle)
        rows = _rows(np.nan_to_num(given - middle), steps / steps[-1])
        slopes = robust.ridge(rows, values - centre, _RIDGE)
        rest = values - centre - rows @ slopes
        centre = centre + robust.smooth(robust.median(rest), SMOOTHING)
        return cls(signals, steps, centre, _scale(rest, signals), middle, reach, slopes, len(panels))

    def residuals(self, panel: Panel) -> Series:
        """(T, C) healthy deviations of each step, cut at `CUT`; NaN: not observed. Steps beyond the profile's
        last are held against that one.
        """
        values = signals_of(panel, self.signals)
        place = self._places(panel)
        rest = values - self.expected(panel)
        found: Series = np.clip(rest / self.scale[place], -CUT, CUT)
        return np.where(np.isnan(values), np.nan, found)

    def expected(self, panel: Panel) -> Series:
        """(T, C) what healthy runs with the panel's settings have, on the even scale."""
        place = self._places(panel)
        given = np.nan_to_num(_settings(panel) - self.settings[place])
        given = np.clip(given, self.reach[0], self.reach[1])
        progress = np.minimum(panel.steps / self.steps[-1], 1.0)
        centre: Series = self.centre[place] + _rows(given, progress) @ self.slopes
        return centre

    def band(self, panel: Panel, signal: str, width: float = 3.0) -> tuple[Series, Series]:
        """(T,) lower and upper edge of `width` healthy deviations, in the signal's own unit."""
        column = self.signals.index(signal)
        middle = self.expected(panel)[:, column]
        half = width * self.scale[self._places(panel), column]
        back = _back(signal)
        return back(middle - half), back(middle + half)

    def _places(self, panel: Panel) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.searchsorted(self.steps, panel.steps, side="right") - 1
        return np.clip(found, 0, len(self.steps) - 1)

    def to_dict(self) -> dict[str, Any]:
        """In JSON values."""
        arrays = ("steps", "centre", "scale", "settings", "reach", "slopes")
        return {
            "signals": list(self.signals),
            "runs": self.runs,
            **{name: getattr(self, name).tolist() for name in arrays},
        }

    @classmethod
    def from_dict(cls, body: dict[str, Any]) -> Profile:
        """The inverse of `to_dict`."""
        count = len(body["signals"])
        return cls(
            tuple(body["signals"]),
            np.asarray(body["steps"], dtype=np.int64),
            np.asarray(body["centre"], dtype=np.float64).reshape(-1, count),
            np.asarray(body["scale"], dtype=np.float64).reshape(-1, count),
            np.asarray(body["settings"], dtype=np.float64),
            np.asarray(body["reach"], dtype=np.float64),
            np.asarray(body["slopes"], dtype=np.float64).reshape(-1, count),
            int(body["runs"]),
        )

    def save(self, path: Path | str) -> None:
        """Write as JSON; the file is whole or absent."""
        write_versioned(path, KIND, VERSION, self.to_dict())

    @classmethod
    def load(cls, path: Path | str) -> Profile:
        """ConfigError for a file that is no profile of this version."""
        return cls.from_dict(read_versioned(path, KIND, VERSION))


def signals_of(panel: Panel, signals: Sequence[str]) -> Series:
    """(T, signals) on the even scale; infinite values are very large ones."""
    made = pairs.of(panel)
    with np.errstate(over="ignore", invalid="ignore"):
        found = [made[n] if n in made else transform_of(n).forward(panel[n]) for n in signals]
    values = np.stack(found, axis=1) if found else np.empty((len(panel), 0))
    return np.where(np.isinf(values), np.sign(values) * 1e6, values)


def invariant_of(signal: str) -> str:
    """Of a column or a pair."""
    return pairs.BY_NAME[signal].invariant if signal in pairs.BY_NAME else groups.invariant_of(signal)


def stage_of(signal: str) -> str:
    """Of a column, or of the first column of a pair."""
    return groups.stage_of(pairs.BY_NAME[signal].columns[0] if signal in pairs.BY_NAME else signal)


def _back(signal: str) -> Any:
    return (lambda values: values) if signal in pairs.BY_NAME else transform_of(signal).back


def _floor(signal: str) -> float:
    if signal in _EXACT_ZERO:
        return _ROUNDING
    return pairs.BY_NAME[signal].floor if signal in pairs.BY_NAME else transform_of(signal).floor


def _common_signals(panels: Sequence[Panel]) -> tuple[str, ...]:
    """What at least half of the panels observe, columns in the order of the schema, then pairs."""
    names = dict.fromkeys([*schema.names(), *(name for panel in panels for name in panel.columns)])
    found = [
        name
        for name in names
        if name not in SETTINGS and 2 * sum(panel.observed(name) for panel in panels) >= len(panels)
    ]
    if not found:
        raise ConfigError("the panels of the profile have no telemetry column; see monitor.schema.names()")
    made = [pairs.of(panel) for panel in panels]
    named = [p.name for p in pairs.PAIRS if 2 * sum(p.name in own for own in made) >= len(panels)]
    if "update_size" in named:  # says the same, and holds while the learning rate decays
        found.remove("update_norm_rel")
    return (*found, *named)


def _settings(panel: Panel) -> Series:
    """(T, 3) logarithms of learning rate, of its mean so far, and of the KL weight."""
    rate, weight = panel["lr"], panel["kl_coef"]
    known = np.cumsum(~np.isnan(rate))
    so_far = np.cumsum(np.nan_to_num(rate)) / np.maximum(known, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(np.stack([rate, np.where(known > 0, so_far, np.nan), weight], axis=1))
    return np.where(np.isneginf(found), -30.0, found)


def _rows(given: Series, progress: Series) -> Series:
    """(..., S, 2 B) regressors: each setting alone and times progress, which is 0 .. 1."""
    return np.concatenate([given, given * (progress[:, None] - 0.5)], axis=-1)


def _aligned(panel: Panel, values: Series, steps: NDArray[np.int64]) -> Series:
    """(S, ...) rows at the places of their steps, NaN elsewhere."""
    out = np.full((len(steps), values.shape[1]), np.nan)
    out[np.searchsorted(steps, panel.steps)] = values
    return out


def _reach(deviations: Series) -> Series:
    """(2, B) least and largest deviation of a setting up to which the regression is used."""
    flat = np.nan_to_num(deviations.reshape(-1, deviations.shape[-1]))
    return np.stack([flat.min(axis=0) - _BEYOND, flat.max(axis=0) + _BEYOND])


def _scale(rest: Series, signals: Sequence[str]) -> Series:
    """(R, S, C) -> (S, C), never below a signal's floor."""
    inner = robust.MAD * robust.smooth(robust.median(np.abs(rest)), SMOOTHING)
    outer = robust.smooth(robust.deviation(rest), SMOOTHING)
    floors = np.array([_floor(name) for name in signals])
    found: Series = np.maximum(np.maximum(inner, _LEAST_SD * outer), floors)
    return found
