"""Who watches the runs of a campaign: a judge that has learned from other runs of it, and a severity.

Detector and diagnoser are those that stand first in the evaluation's registry, fitted and calibrated on the
same runs and by the same seeds as there. A judge is any function from a panel to a verdict that another
process can be sent; this is the one that is used where no other is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustops.bench.evaluation.protocol import Fold, Partition
from robustops.bench.evaluation.registry import (
    METHODS,
    REFERENCE_DETECTORS,
    REFERENCE_DIAGNOSERS,
    Method,
)
from robustops.bench.evaluation.runs import HORIZONS, Runs, family_of
from robustops.monitor.detect.conformal import Calibration
from robustops.monitor.diagnoser import Diagnoser, likeliest
from robustops.monitor.panel import Panel
from robustops.monitor.verdict import UNKNOWN, Evidence, Verdict
from robustops.seeding import child_seed

TIER = "P+I"
#: Run false-alarm rate of the judge.
ALPHA = 0.05
#: Steps after which a diagnoser is asked. One that has learned from whole runs knows nothing of short ones:
#: for each length there is one that has seen so many steps.
LENGTHS = (10, 15, 20, 30, 40)
#: Steps after its onset that a run needs to teach what its type looks like.
LEAST_SEEN = 3
#: A type is in the label set if it is at least so likely, relative to the likeliest.
IN_SET = 0.5


@dataclass(frozen=True)
class Learned:
    """detector: fitted; calibration: of its scores; diagnosers: by the steps that they have learned from."""

    detector: Any
    calibration: Calibration
    diagnosers: Mapping[int, Diagnoser] = dataclasses.field(default_factory=dict)

    def __call__(self, panel: Panel) -> Verdict:
        """What is known after the panel's last step."""
        score = float(self.detector.score(panel))
        if score == -np.inf:
            return Verdict("not_observed")
        p_value, severity = self.calibration.p_value(score), self._share(score)
        if p_value > ALPHA:
            return Verdict("healthy", severity=severity, p_value=p_value)
        onset, evidence = self._explained(panel)
        labels = self._labels(panel)
        kind = next(iter(labels), UNKNOWN)
        family = UNKNOWN if kind == UNKNOWN else family_of(kind)
        return Verdict("anomalous", onset, family, kind, labels, severity, p_value, evidence)

    def severity(self, panel: Panel) -> float:
        """S(X) of a whole run (the paper's equation 8), not below 0."""
        return max(0.0, float(self.detector.score(panel)))

    def _share(self, score: float) -> float:
        """0 .. 1, one half at the threshold of an alarm."""
        threshold = max(self.calibration.threshold(ALPHA), 1e-9)
        positive = max(score, 0.0)
        return positive / (positive + threshold)

    def _explained(self, panel: Panel) -> tuple[int, tuple[Evidence, ...]]:
        """Onset, which is the first alarm for a detector that cannot tell more, and evidence."""
        if hasattr(self.detector, "explain"):
            explained = self.detector.explain(panel)
            onset = explained.onset if explained.onset is not None else int(panel.steps[-1])
            return onset, tuple(explained.evidence)
        for step in panel.steps:
            if self.calibration.p_value(float(self.detector.score(panel.until(int(step))))) <= ALPHA:
                return int(step), ()
        return int(panel.steps[-1]), ()

    def _labels(self, panel: Panel) -> dict[str, float]:
        """Types that are about as likely as the likeliest, that first; none where it is none of them."""
        if not self.diagnosers:
            return {}
        length = min((n for n in self.diagnosers if n >= len(panel)), default=max(self.diagnosers))
        probabilities = self.diagnosers[length].probabilities(panel)
        best = likeliest(probabilities)
        if best == UNKNOWN or probabilities[best] <= probabilities.get(UNKNOWN, 0.0):
            return {}
        least = IN_SET * probabilities[best]
        kept = [name for name, value in probabilities.items() if value >= least and name != UNKNOWN]
        return {name: probabilities[name] for name in sorted(kept, key=lambda n: (-probabilities[n], n))}


def learn(runs: Runs, partition: Partition, fold: Fold, seed: int) -> Learned:
    """From the profile, calibration and faulty training runs alone."""
    detector = first_of(REFERENCE_DETECTORS).make(child_seed(seed, "evaluation", partition.number))
    length = max(HORIZONS)
    healthy = [runs.panel(name, length, TIER) for name in partition.profile]
    detector.fit(healthy)
    held = [runs.panel(name, length, TIER) for name in partition.calibration]
    calibration = Calibration.of([float(detector.score(panel)) for panel in held])
    return Learned(detector, calibration, _diagnosers(runs, partition, fold, seed))


def _diagnosers(runs: Runs, partition: Partition, fold: Fold, seed: int) -> dict[int, Diagnoser]:
    method, found = first_of(REFERENCE_DIAGNOSERS), {}
    for length in LENGTHS:
        seen = [name for name in fold.train if runs.labels[name].onset <= length - LEAST_SEEN]
        types = [runs.labels[name].fault for name in seen]
        if len(set(types)) < 2:
            continue
        diagnoser = method.make(child_seed(seed, "evaluation", partition.number, fold.number))
        healthy = [runs.panel(name, length, TIER) for name in partition.profile]
        diagnoser.fit([runs.panel(name, length, TIER) for name in seen], types, healthy)
        found[length] = diagnoser
    return found


def first_of(names: Sequence[str]) -> Method:
    """The first of these methods that there is and whose package is installed."""
    known = {method.name: method for method in METHODS}
    return next(known[name] for name in names if name in known and known[name].available)


def methods() -> dict[str, str]:
    """Names and digests of what judges."""
    return {
        method.name: method.digest() for method in map(first_of, (REFERENCE_DETECTORS, REFERENCE_DIAGNOSERS))
    }
