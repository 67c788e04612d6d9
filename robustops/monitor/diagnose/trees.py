"""Extremely randomised trees as plain arrays: scikit-learn grows them, numpy walks them.

Geurts, Ernst and Wehenkel (2006), "Extremely randomized trees".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robustops.extras import require
from robustops.monitor.panel import Series

#: Trees; runs in a leaf at least; entries that a split chooses from (more than the usual root of their
#: number, since most entries tell nothing of most types).
TREES, LEAST_LEAF, TRIED = 200, 2, 150
_LEAF = -1


@dataclass(frozen=True)
class Trees:
    """Nodes of all trees one after the other. feature: (N,) column that decides, -1 for a leaf; threshold:
    (N,) left where the value is at most that; left, right: (N,) the next node, of a leaf its row in `shares`;
    shares: (L, K) of the classes in a leaf; roots: (trees,) first nodes.
    """

    feature: NDArray[np.int32]
    threshold: Series
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    shares: NDArray[np.float32]
    roots: NDArray[np.int32]

    @classmethod
    def fit(cls, rows: Series, labels: Sequence[str], seed: int, trees: int = TREES) -> Trees:
        """rows: (n, F), labels: n; classes are the labels in order. Classes weigh the same, however many runs
        they have. ConfigError without scikit-learn.
        """
        grown = require("sklearn.ensemble", "faultbench").ExtraTreesClassifier(
            trees,
            max_features=min(TRIED, rows.shape[1]),
            min_samples_leaf=LEAST_LEAF,
            class_weight="balanced",
            random_state=seed % 2**32,
        )
        grown.fit(rows.astype(np.float32), list(labels))
        parts, shares = [], []
        nodes, leaves = 0, 0
        for tree in (one.tree_ for one in grown.estimators_):
            leaf = tree.children_left == _LEAF
            number = leaves + np.cumsum(leaf) - 1
            left = np.where(leaf, number, tree.children_left + nodes)
            right = np.where(leaf, number, tree.children_right + nodes)
            parts.append((np.where(leaf, _LEAF, tree.feature), tree.threshold, left, right))
            counts = tree.value[leaf, 0, :]
            shares.append(counts / counts.sum(axis=1, keepdims=True))
            nodes, leaves = nodes + len(leaf), leaves + int(leaf.sum())
        sizes = [len(part[0]) for part in parts]
        feature, threshold, left, right = (np.concatenate(found) for found in zip(*parts, strict=True))
        roots = np.cumsum([0, *sizes[:-1]])
        integers = (array.astype(np.int32) for array in (feature, left, right, roots))
        feature, left, right, roots = integers
        return cls(feature, threshold, left, right, np.concatenate(shares).astype(np.float32), roots)

    def probabilities(self, rows: Series) -> Series:
        """(n, F) -> (n, K) mean share over the trees."""
        single = rows.astype(np.float32)
        at = np.broadcast_to(self.roots, (len(rows), len(self.roots))).copy()
        inner = self.feature[at] != _LEAF
        while inner.any():
            where, node = np.nonzero(inner)[0], at[inner]
            low = single[where, self.feature[node]] <= self.threshold[node]
            at[inner] = np.where(low, self.left[node], self.right[node])
            inner = self.feature[at] != _LEAF
        found: Series = self.shares[self.left[at]].astype(np.float64).mean(axis=1)
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """By name, for a file."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Trees:
        """The inverse of `arrays`."""
        return cls(**{name: arrays[name] for name in cls.__dataclass_fields__})
