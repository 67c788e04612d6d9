"""The calibrated judge: what was learned from healthy runs of one configuration, and a verdict by it.

A folder of files holds it: the detector, the scores of healthy runs that it is calibrated on, the
diagnoser where there is one, and of which runs all that is (`about.json`).

    detector    how unlike healthy runs a run is, and since when     `monitor.detect.own`
    calibration score -> share of healthy runs that look as bad       `monitor.detect.conformal`
    facts       what no healthy run of any trainer shows              `monitor.symptoms.facts`
    diagnoser   probabilities of the causes, and a set of labels      `monitor.diagnose`
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from robustops.monitor.detect.conformal import Calibration
from robustops.monitor.detect.files import read_versioned, write_versioned
from robustops.monitor.detect.own import OwnDetector
from robustops.monitor.diagnose.diagnosis import OwnDiagnosis
from robustops.monitor.panel import Panel
from robustops.monitor.symptoms.facts import facts
from robustops.monitor.symptoms.finding import Finding
from robustops.monitor.taxonomy import cause_of
from robustops.monitor.verdict import ALARM, Evidence, Verdict

VERSION = 1
KIND = "fitted run monitor"
ABOUT, DETECTOR, CALIBRATION, DIAGNOSER = "about.json", "detector.json", "calibration.json", "diagnoser.npz"
#: Share of healthy runs that may be called anomalous.
ALPHA = 0.05
#: Parts of the healthy runs that are scored by the others in turn, where no further runs are there to
#: calibrate on.
FOLDS = 5


class LabelSets(Protocol):
    """A diagnoser that knows how sure it is."""

    def labels(self, panel: Panel) -> Mapping[str, float]:
        """Types of the conformal label set with their probabilities, likeliest first; empty: unknown."""

    def save(self, path: Path) -> None:
        """As a file that `load` of its class reads."""


@dataclass(frozen=True)
class FittedMonitor:
    """shown: rules of `facts` that healthy runs have shown, which tell nothing; steps: that calibration runs
    have; about: of what the healthy runs are (settings by dotted key, how many), for people and to find the
    right one.
    """

    detector: OwnDetector
    calibration: Calibration
    shown: tuple[str, ...] = ()
    steps: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)
    diagnoser: LabelSets | None = None

    @classmethod
    def fit(
        cls,
        profile: Sequence[Panel],
        calibration: Sequence[Panel] = (),
        diagnoser: LabelSets | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> FittedMonitor:
        """Learn from panels of healthy runs.

        calibration: healthy runs that nothing else is learned from. Without any, those of the profile are
        scored by parts of it in turn: the false-alarm rate then is about what was asked for, and at most
        twice that (cross-conformal).

        Raises:
            ConfigError: too few runs to learn from.
        """
        given = calibration or profile
        detector = OwnDetector()
        detector.fit(profile)
        scores = [detector.score(panel) for panel in calibration] if calibration else _crossed(profile)
        shown = {finding.rule for panel in (*profile, *calibration) for finding in facts(panel)}
        steps = max(len(panel) for panel in given)
        kept = dict(about or {})
        return cls(detector, Calibration.of(scores), tuple(sorted(shown)), steps, kept, diagnoser)

    @property
    def level(self) -> float:
        """Share of healthy runs that are called anomalous: `ALPHA`, more where the calibration runs are too
        few.
        """
        return max(ALPHA, 1 / (1 + len(self.calibration.scores)))

    def severity(self, panel: Panel) -> float:
        """S(X) of a run (equation 8 of the RFT-FM paper): its score, not below 0."""
        return max(0.0, self.detector.score(panel))

    def judge(self, panel: Panel, *, growing: bool = False) -> Verdict:
        """What the telemetry of a run says, by these healthy runs."""
        score = self.detector.score(panel)
        if score == -math.inf:
            return Verdict("not_observed", missing=tuple(self.detector.fitted.model.profile.signals[:8]))
        found = [one for one in facts(panel, growing=growing) if one.rule not in self.shown]
        grave = [one for one in found if one.severity >= ALARM]
        p_value = self.calibration.p_value(score)
        if grave:  # no healthy run has shown it, as if its score were above theirs
            p_value = min(p_value, 1 / (1 + len(self.calibration.scores)))
        severity = max([self._share(score), *(one.severity for one in grave)])
        if p_value > self.level and growing:  # nobody asks why after every step
            return Verdict("healthy", severity=severity, p_value=p_value)
        explained = self.detector.explain(panel)
        evidence = _merged(explained.evidence, found)
        if p_value > self.level:
            return Verdict("healthy", severity=severity, p_value=p_value, evidence=evidence)
        starts = [one.evidence.step for one in grave]
        starts += [explained.onset] if explained.onset is not None else []
        onset = min(starts, default=int(panel.steps[-1]))
        labels = self.diagnoser.labels(panel) if self.diagnoser is not None else {}
        family, kind = cause_of(labels)
        return Verdict("anomalous", onset, family, kind, labels, severity, p_value, evidence)

    def _share(self, score: float) -> float:
        """0 .. 1; one half at the threshold of an alarm, so that severities of rules compare with it."""
        threshold = max(self.calibration.threshold(self.level), 1e-9)
        return max(score, 0.0) / (max(score, 0.0) + threshold)

    # files ----------------------------------------------------------------------------------------
    def save(self, folder: Path | str) -> None:
        """Write its files into a folder, the one that makes it whole last."""
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        (root / ABOUT).unlink(missing_ok=True)
        self.detector.save(root / DETECTOR)
        self.calibration.save(root / CALIBRATION)
        (root / DIAGNOSER).unlink(missing_ok=True)
        if self.diagnoser is not None:
            self.diagnoser.save(root / DIAGNOSER)
        body = {"shown": list(self.shown), "steps": self.steps, "about": dict(self.about)}
        write_versioned(root / ABOUT, KIND, VERSION, body)

    @classmethod
    def load(cls, folder: Path | str) -> FittedMonitor:
        """ConfigError for a folder that holds none of this version."""
        root = Path(folder)
        body = read_versioned(root / ABOUT, KIND, VERSION)
        detector, calibration = OwnDetector.load(root / DETECTOR), Calibration.load(root / CALIBRATION)
        saved = root / DIAGNOSER
        diagnoser = OwnDiagnosis.load(saved) if saved.is_file() else None
        return cls(detector, calibration, tuple(body["shown"]), body["steps"], body["about"], diagnoser)


def is_fitted(path: Path | str) -> bool:
    """Whether a folder holds a fitted monitor."""
    return (Path(path) / ABOUT).is_file()


def _crossed(profile: Sequence[Panel]) -> list[float]:
    """Each run's score by a detector that has learned from others only."""
    found = [0.0] * len(profile)
    for fold in range(FOLDS):
        detector = OwnDetector()
        detector.fit([panel for place, panel in enumerate(profile) if place % FOLDS != fold])
        for place in range(fold, len(profile), FOLDS):
            found[place] = detector.score(profile[place])
    return found


def _merged(evidence: Sequence[Evidence], found: Sequence[Finding]) -> tuple[Evidence, ...]:
    """Both in order of steps; of a column that a fact and the detector speak of, the fact."""
    said = {one.evidence.column for one in found}
    rest = [one for one in evidence if one.column not in said]
    return tuple(sorted([*(one.evidence for one in found), *rest], key=lambda one: (one.step, -one.score)))
