"""Off-the-shelf classifiers on the statistics of whole runs (the paper's section VI-C), and chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustops.bench.campaign.extras import require
from robustops.bench.evaluation.baselines.features import RunFeatures
from robustops.errors import ConfigError
from robustops.monitor.panel import Panel

_NEIGHBOURS = 5


def check_labels(panels: Sequence[Panel], labels: Sequence[str]) -> None:
    """ConfigError where runs and labels do not go together, or there are fewer than two types."""
    if len(panels) != len(labels) or len(set(labels)) < 2:
        raise ConfigError(
            f"{len(panels)} runs with {len(labels)} labels of {len(set(labels))} types; give a label a run, "
            "and runs of two types at least"
        )


class _Classifier:
    """A scikit-learn classifier on the features of a run."""

    name = ""

    def __init__(self) -> None:
        self.features = RunFeatures()
        self._model: Any = None

    def fit(self, panels: Sequence[Panel], labels: Sequence[str], profile: Sequence[Panel] = ()) -> None:
        check_labels(panels, labels)
        self.features.fit([*panels, *profile])
        values = np.stack([self.features.transform(panel) for panel in panels])
        self._model = self._estimator(len(panels)).fit(values, list(labels))

    def probabilities(self, panel: Panel) -> dict[str, float]:
        shares = self._shares(self.features.transform(panel)[None])
        return {str(name): float(share) for name, share in zip(self._model.classes_, shares, strict=True)}

    def _estimator(self, runs: int) -> Any:
        raise NotImplementedError

    def _shares(self, row: NDArray[np.float64]) -> NDArray[np.float64]:
        shares: NDArray[np.float64] = self._model.predict_proba(row)[0]
        return shares


class NearestNeighbourClassifier(_Classifier):
    """The five nearest runs, weighted by nearness."""

    name = "knn_classifier"

    def _estimator(self, runs: int) -> Any:
        neighbours = require("sklearn.neighbors").KNeighborsClassifier
        return neighbours(n_neighbors=min(_NEIGHBOURS, runs), weights="distance")


class SupportVectorClassifier(_Classifier):
    """Radial support vectors. Its shares are the softmax of the decision values: an order, not calibrated."""

    name = "svm_classifier"

    def _estimator(self, runs: int) -> Any:
        return require("sklearn.svm").SVC(C=10.0, gamma="scale", class_weight="balanced")

    def _shares(self, row: NDArray[np.float64]) -> NDArray[np.float64]:
        margins = np.atleast_1d(self._model.decision_function(row)[0])
        if len(self._model.classes_) == 2:  # scikit-learn gives one number for two classes
            margins = np.array([-margins[0], margins[0]])
        return softmax(margins)


class ChanceClassifier:
    """Each type as often as it was seen in training, whatever the run."""

    name = "chance"

    def fit(self, panels: Sequence[Panel], labels: Sequence[str], profile: Sequence[Panel] = ()) -> None:
        check_labels(panels, labels)
        counts = Counter(labels)
        self._shares = {name: counts[name] / len(labels) for name in sorted(counts)}

    def probabilities(self, panel: Panel) -> dict[str, float]:
        return dict(self._shares)


def softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of a vector; stable."""
    powers = np.exp(values - values.max())
    return np.asarray(powers / powers.sum(), dtype=np.float64)
