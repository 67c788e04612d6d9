"""Which runs are kept together when a part of them is held out: those that began alike.

Runs of one seed and configuration share their first steps to the byte until a fault strikes. If some of them
were learned from and others held out, the held-out ones would look more familiar than a new run does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from robustops.monitor.panel import Panel
from robustops.seeding import array_generator


def beginnings(panels: Sequence[Panel]) -> NDArray[np.int64]:
    """(n,) a number that runs with the same first row share."""
    known: dict[bytes, int] = {}
    found = []
    for panel in panels:
        names = sorted(panel.columns)
        first = panel.matrix(names)[:1] + 0.0  # -0.0 is 0.0
        key = "\n".join(names).encode() + first.tobytes()
        found.append(known.setdefault(key, len(known)))
    return np.array(found, dtype=np.int64)


def deal(groups: NDArray[np.int64], folds: int, seed: int = 0) -> NDArray[np.int64]:
    """(n,) fold of each run, groups whole: the largest groups first, each to the fold with fewest runs; equal
    ones in random order. Fewer groups than folds make fewer folds.
    """
    names, sizes = np.unique(groups, return_counts=True)
    order = array_generator(seed, "diagnosis", "folds").permutation(len(names))
    order = order[np.argsort(-sizes[order], kind="stable")]
    load = np.zeros(min(folds, len(names)), dtype=np.int64)
    fold_of = np.zeros(len(names), dtype=np.int64)
    for name in order:
        fold_of[name] = int(load.argmin())
        load[fold_of[name]] += sizes[name]
    found: NDArray[np.int64] = fold_of[np.searchsorted(names, groups)]
    return found
