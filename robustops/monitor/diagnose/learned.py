"""What the diagnoser has learned, how it reads a run by that, and its file.

A file is a compressed numpy archive of plain arrays and JSON text, never of Python objects: it can be read
from anywhere without being trusted.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustops.errors import ConfigError
from robustops.files import atomic_write_bytes
from robustops.monitor.detect.files import checked
from robustops.monitor.detect.own import OwnDetector
from robustops.monitor.diagnose.calibration import Confidence
from robustops.monitor.diagnose.classifier import Classifier
from robustops.monitor.diagnose.fingerprint import Fingerprint, fingerprint
from robustops.monitor.diagnose.openset import Neighbours
from robustops.monitor.panel import Panel, Series

VERSION = 1
KIND = "fitted diagnoser"


@dataclass(frozen=True)
class Reading:
    """What a run looks like: fingerprint and its vector (F,); known: (K,) calibrated probabilities of the
    types, as if it were one of them; familiarity: share of known faulty runs that are as unlike all types.
    """

    fingerprint: Fingerprint
    row: Series
    known: Series
    familiarity: float


@dataclass(frozen=True)
class Learned:
    """detector: of the healthy runs that fingerprints are taken against."""

    detector: OwnDetector
    classifier: Classifier
    neighbours: Neighbours
    confidence: Confidence

    @classmethod
    def fit(
        cls,
        detector: OwnDetector,
        panels: Sequence[Panel],
        labels: Sequence[str],
        folds: NDArray[np.int64],
        seed: int,
    ) -> Learned:
        """detector: fitted; folds: (n,) part that each run is held out with. ConfigError without
        scikit-learn.
        """
        rows = np.stack([fingerprint_of(detector, panel).vector() for panel in panels])
        classifier = Classifier.fit(rows, labels, seed)
        scores, distances = _held_out(rows, labels, folds, classifier.types, seed)
        confidence = Confidence.fit(classifier.types, scores, labels, distances)
        return cls(detector, classifier, Neighbours.fit(classifier.scaled(rows)), confidence)

    def read(self, panel: Panel) -> Reading:
        """ConfigError for a run without a step."""
        if not len(panel):
            raise ConfigError(f"{panel.source or 'the panel'} has no step to diagnose")
        found = fingerprint_of(self.detector, panel)
        row = found.vector()
        known = self.confidence.probabilities(self.classifier.scores(row[None])[0])
        apart = self.neighbours.distance(self.classifier.scaled(row[None])[0])
        return Reading(found, row, known, self.confidence.familiarity(apart, known))

    def save(self, path: Path | str, settings: Mapping[str, Any]) -> None:
        """Write it with the settings (JSON values) of the diagnoser; the file is whole or absent."""
        detector = json.dumps(self.detector.to_dict(), separators=(",", ":"))
        head = {"kind": KIND, "version": VERSION, "profile": _digest(detector), "settings": dict(settings)}
        arrays = {
            "head": np.array(json.dumps(head)),
            "detector": np.array(detector),
            "directions": self.neighbours.directions,
            **{f"classifier.{name}": array for name, array in self.classifier.arrays().items()},
            **{f"confidence.{name}": array for name, array in self.confidence.arrays().items()},
        }
        buffer = BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        atomic_write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path | str) -> tuple[Learned, dict[str, Any]]:
        """With the settings; ConfigError for a file that cannot be read, or is none of this version."""
        arrays, head = _read(path)
        detector = str(arrays["detector"])
        if _digest(detector) != head["profile"]:
            raise ConfigError(f"{path} holds another profile than it was learned with; fit it again")
        found = cls(
            OwnDetector.from_dict(json.loads(detector)),
            Classifier.of(_part(arrays, "classifier.")),
            Neighbours(arrays["directions"]),
            Confidence.of(_part(arrays, "confidence.")),
        )
        return found, head["settings"]


def fingerprint_of(detector: OwnDetector, panel: Panel) -> Fingerprint:
    """Of a run against the healthy runs of a fitted detector."""
    return fingerprint(detector.fitted.model, detector.fitted.armed, panel)


def _held_out(
    rows: Series, labels: Sequence[str], folds: NDArray[np.int64], types: Sequence[str], seed: int
) -> tuple[Series, Series]:
    """((n, K) scores, (n,) distances) of each run by classifiers that had not seen its fold; -inf for a type
    that only that fold has.
    """
    scores = np.full((len(rows), len(types)), -np.inf)
    distances = np.zeros(len(rows))
    for fold in np.unique(folds):
        out = np.flatnonzero(folds == fold)
        kept = np.flatnonzero(folds != fold)
        classifier = Classifier.fit(rows[kept], [labels[int(at)] for at in kept], seed)
        places = np.array([types.index(name) for name in classifier.types])
        scores[np.ix_(out, places)] = classifier.scores(rows[out])
        neighbours = Neighbours.fit(classifier.scaled(rows[kept]))
        distances[out] = [neighbours.distance(row) for row in classifier.scaled(rows[out])]
    return scores, distances


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _part(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _read(path: Path | str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        head = json.loads(str(arrays["head"]))
    except FileNotFoundError as error:
        raise ConfigError(f"there is no {KIND} {path}; check the path") from error
    except (OSError, ValueError, KeyError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path} is no {KIND} ({error}); name a file that was saved as one") from error
    return arrays, checked(head, path, KIND, VERSION)
