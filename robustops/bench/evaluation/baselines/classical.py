"""Classical one-class detectors of scikit-learn on the statistics of whole runs (the paper, VI-C)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustops.bench.campaign.extras import require
from robustops.bench.evaluation.baselines.features import RunFeatures
from robustops.monitor.panel import Panel
from robustops.seeding import child_seed

Values = NDArray[np.float64]
_NEIGHBOURS, _LOF_NEIGHBOURS, _TREES = 5, 20, 200


class _Classical:
    """A scikit-learn estimator that tells how normal a vector is."""

    name = ""

    def __init__(self, seed: int = 0) -> None:
        self.seed = child_seed(seed, self.name) % 2**32
        self.features = RunFeatures()
        self._model: Any = None

    def fit(self, profile: Sequence[Panel]) -> None:
        values = self.features.fit(profile)
        self._model = self._estimator(len(profile)).fit(values)

    def score(self, panel: Panel) -> float:
        return float(self.scores([panel])[0])

    def scores(self, panels: Sequence[Panel]) -> Values:
        """(panels,) of `score`, in one call of the estimator."""
        found = self._anomaly(np.stack([self.features.transform(panel) for panel in panels]))
        known = [any(panel.observed(name) for name in self.features.columns) for panel in panels]
        return np.where(known, found, -np.inf)

    def _estimator(self, runs: int) -> Any:
        raise NotImplementedError

    def _anomaly(self, rows: Values) -> Values:
        return -np.asarray(self._model.score_samples(rows), dtype=np.float64)


class IsolationForest(_Classical):
    """How few random cuts isolate a run (Liu et al. 2008)."""

    name = "isolation_forest"

    def _estimator(self, runs: int) -> Any:
        forest = require("sklearn.ensemble").IsolationForest
        return forest(n_estimators=_TREES, random_state=self.seed)


class LocalOutlierFactor(_Classical):
    """How much thinner the neighbourhood of a run is than those of its neighbours (Breunig et al. 2000)."""

    name = "lof"

    def _estimator(self, runs: int) -> Any:
        factor = require("sklearn.neighbors").LocalOutlierFactor
        return factor(n_neighbors=min(_LOF_NEIGHBOURS, runs - 1), novelty=True)


class NearestNeighbours(_Classical):
    """Mean distance to the five nearest healthy runs (Ramaswamy et al. 2000)."""

    name = "knn"

    def _estimator(self, runs: int) -> Any:
        return require("sklearn.neighbors").NearestNeighbors(n_neighbors=min(_NEIGHBOURS, runs))

    def _anomaly(self, rows: Values) -> Values:
        return np.asarray(self._model.kneighbors(rows)[0].mean(axis=1), dtype=np.float64)


class OneClassSVM(_Classical):
    """Distance to the boundary around nine tenths of the healthy runs (Schölkopf et al. 2001)."""

    name = "ocsvm"

    def _estimator(self, runs: int) -> Any:
        return require("sklearn.svm").OneClassSVM(nu=0.1, gamma="scale")
