"""What every diagnoser offers, ours and the baselines alike: from a faulty run to what probably causes it.

    diagnoser.fit(panels, labels, profile)   faulty runs, their fault types, and healthy runs to compare with
    diagnoser.probabilities(panel)           {"kl_explosion": 0.7, "reward_spike": 0.2, ...}

Whether a run is faulty at all is a detector's business (`monitor.detector`). The labels are the fault types
of `bench.run_faults.catalog`, never mechanisms, strengths or onsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from robustops.monitor.panel import Panel
from robustops.monitor.verdict import UNKNOWN


class Diagnoser(Protocol):
    """name: as in tables."""

    name: str

    def fit(self, panels: Sequence[Panel], labels: Sequence[str], profile: Sequence[Panel] = ()) -> None:
        """Learn what each type looks like. panels, labels: a faulty run each, and its type; profile: healthy
        runs, of which none is among the panels. ConfigError for too few panels, or a number of labels that
        is not theirs.
        """

    def probabilities(self, panel: Panel) -> dict[str, float]:
        """Of each type that was learned, summing to 1 at most: what is missing to 1, or stands under
        `verdict.UNKNOWN`, is the probability that it is none of them.
        """


def likeliest(probabilities: Mapping[str, float]) -> str:
    """The most probable type, the first by name among equals; `UNKNOWN` without any."""
    known = {name: value for name, value in probabilities.items() if name != UNKNOWN}
    return min(known, key=lambda name: (-known[name], name)) if known else UNKNOWN


def novelty(probabilities: Mapping[str, float]) -> float:
    """How little a run looks like any learned type, 0 .. 1: one minus the largest probability of one."""
    return 1.0 - max((value for name, value in probabilities.items() if name != UNKNOWN), default=0.0)
