"""The least that can be done: one signal and one threshold, an alarm for every run, and chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robustops.errors import ConfigError
from robustops.monitor.panel import Panel, Series
from robustops.seeding import array_generator


class _OneSignal:
    """Scores of a step from one column; a run's score is its largest. Steps that do not observe the column
    score -inf.
    """

    name = ""
    column = ""

    def fit(self, profile: Sequence[Panel]) -> None:
        seen = [panel for panel in profile if panel.observed(self.column)]
        if len(seen) < 2:
            raise ConfigError(
                f"{self.name} needs two healthy runs with {self.column}; "
                f"{len(seen)} of {len(profile)} have it"
            )
        self._learn(seen)

    def score(self, panel: Panel) -> float:
        return float(self.step_scores(panel).max(initial=-np.inf))

    def step_scores(self, panel: Panel) -> Series:
        values = self._levels(panel[self.column])
        return np.where(np.isnan(values), -np.inf, values)

    def _learn(self, profile: Sequence[Panel]) -> None:
        """Nothing to learn."""

    def _levels(self, values: Series) -> Series:
        return values


class RewardZ(_OneSignal):
    """|z| of the mean reward at its step, against healthy runs."""

    name = "reward_z"
    column = "reward_mean"

    def _learn(self, profile: Sequence[Panel]) -> None:
        length = max(map(len, profile))
        rows = np.full((len(profile), length), np.nan)
        for row, panel in zip(rows, profile, strict=True):
            row[: len(panel)] = panel[self.column]
        known = ~np.isnan(rows).all(axis=0)
        self._mean = np.full(length, np.nanmean(rows))
        self._std = np.full(length, np.nanstd(rows))
        self._mean[known] = np.nanmean(rows[:, known], axis=0)
        self._std[known] = np.nanstd(rows[:, known], axis=0)
        # A step at which few runs happen to agree must not make every other run abnormal.
        self._std = np.maximum(self._std, max(1e-9, 0.05 * float(np.nanstd(rows))))

    def _levels(self, values: Series) -> Series:
        at = np.minimum(np.arange(len(values)), len(self._mean) - 1)
        return np.asarray(np.abs(values - self._mean[at]) / self._std[at], dtype=np.float64)


class KLThreshold(_OneSignal):
    """The KL to the reference itself."""

    name = "kl_threshold"
    column = "kl_ref_k3"


class AlwaysFault:
    """An alarm for every run. threshold: its own, which every score exceeds; none can be calibrated."""

    name = "always_fault"
    threshold = float("-inf")

    def fit(self, profile: Sequence[Panel]) -> None:
        """Nothing to learn."""

    def score(self, panel: Panel) -> float:
        return 0.0


class Chance:
    """A random number a run, drawn by the run's name and not by its telemetry."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, profile: Sequence[Panel]) -> None:
        """Nothing to learn."""

    def score(self, panel: Panel) -> float:
        return float(array_generator(self.seed, "random detector", panel.source).random())
