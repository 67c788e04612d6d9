"""From fingerprints to scores of the types: the weighted log-probabilities of a linear model and trees.

linear   multinomial logistic regression with an L2 penalty: sums many weak signs, and tells which
trees    extremely randomised trees: conditions, such as a move without its usual consequence

Compared on the benchmark's pilot, by seed (macro-F1 of types in easy / hard runs, standard error about 3;
in brackets the negative log-likelihood after temperature): linear 82.5 / 80.3 (0.67), trees 84.5 / 83.1
(0.52), both alike 84.0 / 82.0 (0.55), trees counted twice 84.0 / 82.3 (0.53); random forest 83.5 / 81.3,
shrunk linear discriminants 86.0 / 81.5; a family first and then its types: linear 83.8 / 79.8, trees 82.7 /
82.0. Few of these differences are beyond chance. The linear model is kept for what trees cannot tell: what
speaks for a type.

An entry of a fingerprint that was not observed counts as the mean of the runs that were learned from: it
speaks for no type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from robustops.extras import require
from robustops.monitor.diagnose.trees import Trees
from robustops.monitor.panel import Series

#: Inverse of the penalty on the weights of standardised entries.
STRENGTH = 0.003
#: Steps of the solver, which stops earlier where it has converged.
_ITERATIONS = 300
#: Standardised entries are cut here: one that is infinitely far out must not outweigh all others.
_CUT = 5.0
#: Weight of the trees; that of the linear model is the rest.
_TREES = 2 / 3
#: Added to probabilities before logarithms: no model alone excludes a type.
_FLOOR = 1e-3


@dataclass(frozen=True)
class Classifier:
    """types: K names in order; mean, scale: (F,) of entries; weights: (K, F), bias: (K,) of the linear
    model.
    """

    types: tuple[str, ...]
    mean: Series
    scale: Series
    weights: Series
    bias: Series
    trees: Trees

    @classmethod
    def fit(cls, rows: Series, labels: Sequence[str], seed: int = 0) -> Classifier:
        """rows: (n, F) fingerprints, NaN: not observed; labels: n. ConfigError without scikit-learn."""
        seen = ~np.isnan(rows)
        count = np.maximum(seen.sum(axis=0), 1)
        mean = np.where(seen, rows, 0.0).sum(axis=0) / count
        spread = np.sqrt((np.where(seen, rows - mean, 0.0) ** 2).sum(axis=0) / count)
        scale = np.where(spread > 1e-9, spread, np.inf)  # what never varied tells nothing
        scaled = _scaled(rows, mean, scale)
        logistic = require("sklearn.linear_model", "faultbench").LogisticRegression(
            C=STRENGTH, max_iter=_ITERATIONS, class_weight="balanced"
        )
        fitted = logistic.fit(scaled, list(labels))
        weights, bias = fitted.coef_, fitted.intercept_
        if len(fitted.classes_) == 2:  # scikit-learn keeps the second class's weights alone
            weights, bias = np.concatenate([-weights, weights]) / 2, np.concatenate([-bias, bias]) / 2
        trees = Trees.fit(scaled, labels, seed)
        return cls(tuple(map(str, fitted.classes_)), mean, scale, weights, bias, trees)

    def scaled(self, rows: Series) -> Series:
        """(n, F) standardised entries, 0 where not observed."""
        return _scaled(rows, self.mean, self.scale)

    def scores(self, rows: Series) -> Series:
        """(n, K): larger is likelier. Their softmax is a probability, which `calibration` makes honest."""
        scaled = self.scaled(rows)
        # einsum, not a matrix product: a run's score does not depend on which others are asked about.
        linear = softmax(np.einsum("nf,kf->nk", scaled, self.weights) + self.bias)
        walked = self.trees.probabilities(scaled)
        found: Series = (1 - _TREES) * np.log(linear + _FLOOR) + _TREES * np.log(walked + _FLOOR)
        return found

    def contributions(self, row: Series, kind: str) -> Series:
        """(F,) what each entry adds to the linear score of a type, against the mean of all types."""
        place = self.types.index(kind)
        found: Series = (self.weights[place] - self.weights.mean(axis=0)) * self.scaled(row[None])[0]
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """By name, for a file."""
        own = {name: getattr(self, name) for name in ("mean", "scale", "weights", "bias")}
        return {"types": np.array(self.types), **own, **self.trees.arrays()}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Classifier:
        """The inverse of `arrays`."""
        mean, scale, weights, bias = (arrays[name] for name in ("mean", "scale", "weights", "bias"))
        return cls(tuple(map(str, arrays["types"])), mean, scale, weights, bias, Trees.of(arrays))


def softmax(scores: Series) -> Series:
    """Over the last axis; stable."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    found: Series = powers / powers.sum(axis=-1, keepdims=True)
    return found


def _scaled(rows: Series, mean: Series, scale: Series) -> Series:
    found: Series = np.nan_to_num(np.clip((rows - mean) / scale, -_CUT, _CUT))
    return found
