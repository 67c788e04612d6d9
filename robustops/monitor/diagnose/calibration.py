"""How sure a diagnosis may be: temperature, label sets and the threshold of `unknown`.

All of it is learned from runs that the classifier that scored them had not seen (cross-fitting).

temperature  Guo et al. (2017), "On calibration of modern neural networks": the one number that scores are
             divided by so that the probabilities of held-out runs are likeliest
label sets   conformal (Vovk, Gammerman and Shafer 2005; Sadinle, Lei and Wasserman 2019): a type is in the
             set unless at most a share alpha of the held-out runs of that type (of all types, where these are
             too few) gave their own type as little probability. A run that is exchangeable with them has its
             type in the set with a probability of about 1 - alpha; since several classifiers scored them in
             turn, 1 - 2 alpha is what can be proven (Barber et al. 2021, jackknife+)
unknown      how strange a run is (`openset`) among the held-out runs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from robustops.errors import ConfigError
from robustops.monitor.detect.conformal import Calibration, least_runs
from robustops.monitor.diagnose.classifier import softmax
from robustops.monitor.diagnose.openset import strangeness
from robustops.monitor.panel import Series

#: Range of temperatures, and how many are tried.
_RANGE, _TRIED = (0.1, 10.0), 121
_OF_TYPE = "oddities."


def best_temperature(scores: Series, truth: np.ndarray) -> float:
    """scores: (n, K), truth: (n,) places of the true types. The one of least negative log-likelihood, types
    weighing the same; 1 for no runs.
    """
    if not len(scores):
        return 1.0
    weights = 1.0 / np.bincount(truth, minlength=scores.shape[1])[truth]
    tried = np.geomspace(*_RANGE, _TRIED)
    rows = np.arange(len(truth))
    losses = [-(weights * np.log(softmax(scores / t)[rows, truth] + 1e-12)).sum() for t in tried]
    return float(tried[int(np.argmin(losses))])


@dataclass(frozen=True)
class Confidence:
    """temperature; oddities: conformal scores of held-out runs, 1 - the probability of their own type: all of
    them, and by type; strange: strangeness of held-out runs.
    """

    temperature: float
    oddities: Calibration
    by_type: Mapping[str, Calibration]
    strange: Calibration

    @classmethod
    def fit(
        cls, types: Sequence[str], scores: Series, labels: Sequence[str], distances: Series
    ) -> Confidence:
        """scores: (n, K) of held-out runs, -inf for a type that was not learned there; labels: n; distances:
        (n,) of `Neighbours`. Runs whose own type was not learned do not count; ConfigError for none left.
        """
        truth = np.array([types.index(label) for label in labels], dtype=np.intp)
        kept = np.flatnonzero(np.isfinite(scores[np.arange(len(truth)), truth]))
        if not len(kept):
            raise ConfigError(
                "each type has runs of one seed only; give runs of each type from several seeds"
            )
        scores, truth, distances = scores[kept], truth[kept], distances[kept]
        temperature = best_temperature(scores, truth)
        known = softmax(scores / temperature)
        own = 1.0 - known[np.arange(len(kept)), truth]
        by_type = {
            name: Calibration.of(own[truth == k]) for k, name in enumerate(types) if (truth == k).any()
        }
        strange = [strangeness(float(far), row) for far, row in zip(distances, known, strict=True)]
        return cls(temperature, Calibration.of(own), by_type, Calibration.of(strange))

    def probabilities(self, scores: Series) -> Series:
        """(..., K) calibrated."""
        return softmax(scores / self.temperature)

    def label_set(self, types: Sequence[str], probabilities: Series, alpha: float) -> dict[str, float]:
        """Types that cannot be excluded, likeliest first, with their probabilities; the likeliest one never
        is. ConfigError unless 0 < alpha < 1.
        """
        enough = least_runs(alpha)
        order = np.argsort(-probabilities, kind="stable")
        found = {types[order[0]]: float(probabilities[order[0]])}
        for at in order[1:]:
            own = self.by_type.get(types[at])
            known = own if own is not None and len(own.scores) >= enough else self.oddities
            if known.p_value(1.0 - float(probabilities[at])) > alpha:
                found[types[at]] = float(probabilities[at])
        return found

    def familiarity(self, distance: float, known: Series) -> float:
        """Share of held-out runs that are at least as strange, the run itself counted."""
        return self.strange.p_value(strangeness(distance, known))

    def arrays(self) -> dict[str, np.ndarray]:
        """By name, for a file."""
        return {
            "temperature": np.array(self.temperature),
            "oddities": self.oddities.scores,
            "strange": self.strange.scores,
            **{f"{_OF_TYPE}{name}": own.scores for name, own in self.by_type.items()},
        }

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Confidence:
        """The inverse of `arrays`."""
        own = {n.removeprefix(_OF_TYPE): Calibration(v) for n, v in arrays.items() if n.startswith(_OF_TYPE)}
        temperature, (oddities, strange) = (
            float(arrays["temperature"]),
            (arrays[n] for n in ("oddities", "strange")),
        )
        return cls(temperature, Calibration(oddities), own, Calibration(strange))
