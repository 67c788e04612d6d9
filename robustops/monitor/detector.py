"""What every detector offers, ours and the baselines alike, so that all are calibrated and compared alike.

    detector.fit(profile)                  panels of healthy runs, the profile set
    detector.score(panel)                  one number a run, larger: less like a healthy run
    detector.step_scores(panel)            the same after each step, from what was known by then

Thresholds are not a detector's business: `monitor.detect.conformal` takes scores of healthy runs that the
detector has not seen, the calibration set, and turns a score into a p-value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from robustops.monitor.panel import Panel, Series


class Detector(Protocol):
    """name: as in tables."""

    name: str

    def fit(self, profile: Sequence[Panel]) -> None:
        """Learn what is healthy. ConfigError for too few panels or none of the wanted columns."""

    def score(self, panel: Panel) -> float:
        """Of a whole run. Never NaN: a panel of which nothing is known has the lowest score, -inf."""


class OnlineDetector(Detector, Protocol):
    """A detector that gives an alarm at the step at which something happens."""

    def step_scores(self, panel: Panel) -> Series:
        """(T,) scores; the one of a step depends on no later row."""
