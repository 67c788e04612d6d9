"""Root-cause rankings of metrics, made into fault types as the paper does (section VI-C).

The originals (RUN, CausalRCA, CIRCA) rank the metrics of a system by how likely each is the root cause. The
paper derives a graph of metrics from lagged dependencies, ranks them on it, and attributes a run to the type
whose runs are ranked alike. So do these: a ridge regression of each step on the one before is the graph, the
vector of ranks is the run, and the nearest mean vector of a type is the answer. The collection RCAEval holds
the originals, but needs numpy below 2, and its neural ones train a network a run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from robustops.bench.campaign.extras import require
from robustops.bench.evaluation.baselines.classifiers import check_labels, softmax
from robustops.bench.evaluation.baselines.features import observed_columns
from robustops.monitor.panel import Panel

Matrix = NDArray[np.float64]
#: Standardised values are cut here.
_CLIP = 10.0
_RIDGE, _DAMPING, _ROUNDS = 1.0, 0.85, 100


def lagged_ridge(values: Matrix, ridge: float = _RIDGE) -> Matrix:
    """(C, C) weights: entry (i, j) is what a unit of metric i adds to metric j one step later.

    values: (T, C) standardised; fewer than two steps give zeros.
    """
    before, after = values[:-1], values[1:]
    gram = before.T @ before + ridge * max(1, len(before)) * np.eye(values.shape[1])
    return np.asarray(np.linalg.solve(gram, before.T @ after), dtype=np.float64)


def page_rank(weights: Matrix, start: Matrix) -> Matrix:
    """(C,) stationary visits of a walk from effects back to causes, which begins anew as `start` (C,) says.

    weights: (C, C) >= 0, cause to effect.
    """
    start = start / start.sum() if start.sum() > 0 else np.full(len(start), 1 / len(start))
    totals = weights.sum(axis=0)
    # A metric that nothing explains sends the walk to a new start.
    back = np.where(totals > 0, weights / np.where(totals > 0, totals, 1.0), start[:, None])
    visits = start
    for _ in range(_ROUNDS):
        visits = _DAMPING * back @ visits + (1 - _DAMPING) * start
    return visits


class _Ranking:
    """Nearest type by the ranks of its metrics."""

    name = ""

    def fit(self, panels: Sequence[Panel], labels: Sequence[str], profile: Sequence[Panel] = ()) -> None:
        check_labels(panels, labels)
        healthy = list(profile) or list(panels)
        self._columns = observed_columns([*panels, *profile])
        rows = np.concatenate([_finite(panel.matrix(self._columns)) for panel in healthy])
        self._mean = np.array([_mean(column) for column in rows.T])
        deviation = np.array([_mean((column - _mean(column)) ** 2) for column in rows.T]) ** 0.5
        self._scale = np.where(deviation > 1e-12, deviation, 1.0)
        self._learn([self._values(panel) for panel in healthy])
        ranks, names = np.stack([self._ranks(panel) for panel in panels]), np.array(labels)
        self._types = sorted(set(labels))
        self._centres = np.stack([ranks[names == name].mean(axis=0) for name in self._types])
        own = self._centres[np.searchsorted(self._types, names)]
        self._spread = max(float(((ranks - own) ** 2).sum(axis=1).mean()), 1e-9)

    def probabilities(self, panel: Panel) -> dict[str, float]:
        distances = ((self._centres - self._ranks(panel)) ** 2).sum(axis=1)
        shares = softmax(-distances / self._spread)
        return dict(zip(self._types, shares.tolist(), strict=True))

    def _values(self, panel: Panel) -> Matrix:
        """(T, C) in healthy deviations; what is not observed is the healthy mean."""
        scaled = (_finite(panel.matrix(self._columns)) - self._mean) / self._scale
        return np.asarray(np.nan_to_num(np.clip(scaled, -_CLIP, _CLIP), nan=0.0))

    def _ranks(self, panel: Panel) -> Matrix:
        """(C,) ranks of the metrics as causes, 1 / C to 1; equal ones share their mean rank."""
        causes = self._causes(self._values(panel))
        ranks: Matrix = require("scipy.stats").rankdata(causes) / len(causes)
        return ranks

    def _learn(self, healthy: Sequence[Matrix]) -> None:
        """What a ranking needs of healthy runs."""

    def _causes(self, values: Matrix) -> Matrix:
        """(C,) how much each metric looks like the cause in a run's (T, C) values."""
        raise NotImplementedError


class Run(_Ranking):
    """Graph centrality (after RUN, Lin et al., AAAI 2024): page rank from deviations to causes."""

    name = "run"

    def _causes(self, values: Matrix) -> Matrix:
        return page_rank(np.abs(lagged_ridge(values)), np.abs(values).mean(axis=0))


class CausalRCA(_Ranking):
    """Causal strength (after CausalRCA, Xin et al., JSS 2023): what a metric adds to all others a step later,
    as far as it varies.
    """

    name = "causal_rca"

    def _causes(self, values: Matrix) -> Matrix:
        strength = np.abs(lagged_ridge(values)) * values.std(axis=0)[:, None]
        np.fill_diagonal(strength, 0.0)
        return np.asarray(strength.sum(axis=1), dtype=np.float64)


class CIRCA(_Ranking):
    """Regression-based hypothesis test (after CIRCA, Li et al., KDD 2022): how far a metric is from what its
    parents one step before foretell, by the graph of healthy runs.
    """

    name = "circa"

    def _learn(self, healthy: Sequence[Matrix]) -> None:
        before = np.concatenate([values[:-1] for values in healthy])
        after = np.concatenate([values[1:] for values in healthy])
        gram = before.T @ before + _RIDGE * np.eye(before.shape[1])
        self._weights = np.linalg.solve(gram, before.T @ after)
        residuals = after - before @ self._weights
        self._noise = np.maximum(residuals.std(axis=0), 1e-3)

    def _causes(self, values: Matrix) -> Matrix:
        residuals = np.abs(values[1:] - values[:-1] @ self._weights) / self._noise
        return np.asarray(residuals.max(axis=0, initial=0.0), dtype=np.float64)


def _finite(values: Matrix) -> Matrix:
    return np.where(np.isnan(values), np.nan, np.clip(values, -1e12, 1e12))


def _mean(values: Matrix) -> float:
    seen = values[~np.isnan(values)]
    return float(seen.mean()) if len(seen) else 0.0
