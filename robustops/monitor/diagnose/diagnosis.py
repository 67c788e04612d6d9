"""Our diagnoser: fingerprint, classifier, and how far to believe them.

    1. fingerprint  of a run against healthy runs: what moved, which way, when, how       `fingerprint`
    2. classifier   linear model and trees, together                                     `classifier`
    3. confidence   temperature, label sets, `unknown`, from held-out runs    `calibration`, `openset`

All types compete at once: to choose the family first, and then a type within it, was no better on the
benchmark's pilot. Learning takes scikit-learn (extra `faultbench`), all else numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robustops.errors import ConfigError
from robustops.monitor import schema
from robustops.monitor.detect.own import LEAST_RUNS, OwnDetector
from robustops.monitor.diagnose.evidence import evidence_for
from robustops.monitor.diagnose.folds import beginnings, deal
from robustops.monitor.diagnose.learned import Learned, Reading
from robustops.monitor.panel import Panel
from robustops.monitor.taxonomy import cause_of, family_of
from robustops.monitor.verdict import UNKNOWN, Evidence

#: Share of the runs of a type whose label set lacks it; of the runs of known types that are called unknown.
ALPHA, ALPHA_UNKNOWN = 0.1, 0.05
#: Parts of the faulty runs that are held out in turn.
FOLDS = 4
#: Familiarity below which probability goes to `unknown`, and the power of it that is left to the types.
_FAMILIAR, _POWER = 0.2, 0.5


@dataclass(frozen=True)
class Diagnosis:
    """onset: estimated first abnormal step; probabilities: of the types and `unknown`, summing to 1; labels:
    conformal label set with their probabilities, likeliest first, empty for `unknown`; family, type: of the
    likeliest label; familiarity: share of known faulty runs that are as unlike all types; evidence: in order
    of steps.
    """

    onset: int
    probabilities: dict[str, float]
    labels: dict[str, float]
    family: str
    type: str
    familiarity: float
    evidence: tuple[Evidence, ...]


class OwnDiagnosis:
    """A `monitor.diagnoser.Diagnoser`.

    alpha: share of the runs of a type whose label set may lack it; alpha_unknown: share of the runs of known
    types that may be called unknown; prefixes: runs are learned from as they are, and as they were after so
    many steps, for growing logs; portable: and as a trainer would log them that has the columns of tier P
    alone; seed: of trees and folds.

    Raises:
        ConfigError: a share that is not between 0 and 1, a prefix below 1.
    """

    name = "own_diagnosis"

    def __init__(
        self,
        alpha: float = ALPHA,
        alpha_unknown: float = ALPHA_UNKNOWN,
        prefixes: Sequence[int] = (),
        portable: bool = False,
        seed: int = 0,
    ) -> None:
        for name, value in (("alpha", alpha), ("alpha_unknown", alpha_unknown)):
            if not 0 < value < 1:
                raise ConfigError(f"{name} is {value}; it is a share of runs between 0 and 1, such as 0.1")
        if any(steps < 1 for steps in prefixes):
            raise ConfigError(f"prefixes are {list(prefixes)}; each is a number of steps, at least 1")
        self.alpha, self.alpha_unknown = alpha, alpha_unknown
        self.prefixes, self.portable, self.seed = tuple(prefixes), portable, seed
        self._learned: Learned | None = None

    @property
    def learned(self) -> Learned:
        """ConfigError before `fit`."""
        if self._learned is None:
            raise ConfigError("the diagnoser has learned nothing yet; call fit with faulty and healthy runs")
        return self._learned

    def fit(self, panels: Sequence[Panel], labels: Sequence[str], profile: Sequence[Panel] = ()) -> None:
        """See `Diagnoser`. ConfigError too for a label that is no type, fewer than six healthy runs, and
        without scikit-learn.
        """
        folds = deal(beginnings(panels), FOLDS, self.seed)
        _check(panels, labels, profile, folds)
        detector = OwnDetector()
        detector.fit(profile)
        copies = [list(self._copies(panel)) for panel in panels]
        sizes = [len(own) for own in copies]
        repeated = [label for label, size in zip(labels, sizes, strict=True) for _ in range(size)]
        shown = [panel for own in copies for panel in own]
        self._learned = Learned.fit(detector, shown, repeated, np.repeat(folds, sizes), self.seed)

    def probabilities(self, panel: Panel) -> dict[str, float]:
        """Of the types and `unknown`, summing to 1."""
        return self._shared(self.learned.read(panel))

    def labels(self, panel: Panel) -> dict[str, float]:
        """The conformal label set, likeliest first, with probabilities; empty: unknown."""
        return self._labels(self.learned.read(panel))

    def diagnose(self, panel: Panel) -> Diagnosis:
        """All that can be said of a run that is known to be faulty."""
        reading = self.learned.read(panel)
        labels = self._labels(reading)
        family, kind = cause_of(labels)
        likeliest = self.learned.classifier.types[int(reading.known.argmax())]
        onset = int(panel.steps[reading.fingerprint.onset])
        evidence = evidence_for(self.learned, panel, reading, likeliest)
        return Diagnosis(onset, self._shared(reading), labels, family, kind, reading.familiarity, evidence)

    def evidence(self, panel: Panel) -> tuple[Evidence, ...]:
        """What broke, what moved, and what speaks for the likeliest type, in order of steps."""
        return self.diagnose(panel).evidence

    def save(self, path: Path | str) -> None:
        """Write what was learned; the file is whole or absent."""
        names = ("alpha", "alpha_unknown", "prefixes", "portable", "seed")
        self.learned.save(path, {name: getattr(self, name) for name in names})

    @classmethod
    def load(cls, path: Path | str) -> OwnDiagnosis:
        """ConfigError for a file that cannot be read, or is no diagnoser of this version."""
        learned, settings = Learned.load(path)
        made = cls(**settings)
        made._learned = learned
        return made

    def _copies(self, panel: Panel) -> Iterator[Panel]:
        cut = (panel.rows(np.arange(len(panel)) < n) for n in self.prefixes if n < len(panel))
        for own in (panel, *cut):
            yield own
            if self.portable:
                yield own.only(schema.names("P"))

    def _shared(self, reading: Reading) -> dict[str, float]:
        kept = min(1.0, reading.familiarity / _FAMILIAR) ** _POWER
        types = self.learned.classifier.types
        found = {name: kept * float(share) for name, share in zip(types, reading.known, strict=True)}
        return {**found, UNKNOWN: 1.0 - kept}

    def _labels(self, reading: Reading) -> dict[str, float]:
        if reading.familiarity <= self.alpha_unknown:
            return {}
        types = self.learned.classifier.types
        return self.learned.confidence.label_set(types, reading.known, self.alpha)


def _check(
    panels: Sequence[Panel], labels: Sequence[str], profile: Sequence[Panel], folds: np.ndarray
) -> None:
    """ConfigError where nothing can be learned from these."""
    if len(panels) != len(labels):
        raise ConfigError(f"{len(panels)} faulty runs have {len(labels)} labels; give a label a run")
    if any(not len(panel) for panel in panels):
        raise ConfigError("a faulty run has no step; leave it out")
    kinds = sorted(set(labels))
    for kind in kinds:
        family_of(kind)
    if len(kinds) < 2:
        raise ConfigError(f"{len(panels)} faulty runs are of {len(kinds)} type; give two types at least")
    if len(profile) < LEAST_RUNS:
        raise ConfigError(
            f"{len(profile)} healthy runs are too few to compare with; give {LEAST_RUNS}, better 50"
        )
    for fold in np.unique(folds):
        left = {label for label, own in zip(labels, folds, strict=True) if own != fold}
        if len(left) < 2:
            raise ConfigError(
                f"{len(panels)} faulty runs that began in {len(np.unique(folds))} ways cannot be held out in "
                "turn; give runs of two types at least from each of several seeds"
            )
