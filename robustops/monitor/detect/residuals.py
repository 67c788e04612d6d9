"""What remains of a step's signals when everything that healthy runs explain is taken out.

level      deviation from the profile, in healthy deviations (`Profile.residuals`)
partial    the same, less what the step's other signals tell of it: who broke a relation stands out, however
           usual its own value is. With the inverse P of the healthy covariance of levels r, the partial
           residual of signal j is (P r)_j / sqrt(P_jj), which has variance 1 for a normal distribution
across     the same, less what signals of the step's other stages (`groups.STAGES`) tell of it: what a
           fault does to a whole stage (all rewards at once) stays visible
own start  the same as level, but against the run's own first steps: for runs of a configuration that the
           profile does not know
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustops.monitor.detect.profile import CUT
from robustops.monitor.panel import Series

#: Steps at a run's start that stand for its healthy state.
OWN_START = 5
#: Levels are cut here before relations between them are learned or used: they hold for usual values.
_USUAL = 6.0
#: Share of independent noise in the covariance: exact relations would make it singular.
_NOISE = 1e-2


def ledoit_wolf(rows: Series) -> tuple[Series, float]:
    """Covariance of rows (n, C) about 0, shrunk towards a multiple of the unit matrix; and by how much.

    Ledoit and Wolf (2004), "A well-conditioned estimator for large-dimensional covariance matrices".
    """
    count, width = rows.shape
    sample = rows.T @ rows / count
    mean = float(np.trace(sample)) / width
    distance = float(((sample - mean * np.eye(width)) ** 2).sum())
    squares = float(((rows**2).T @ rows**2 / count - sample**2).sum()) / count
    weight = min(squares / distance, 1.0) if distance > 0 else 1.0
    return (1 - weight) * sample + weight * mean * np.eye(width), weight


@dataclass(frozen=True)
class Relations:
    """covariance: (C, C) of healthy levels; factors: how many first eigenvectors count as common factors;
    blocks: (C,) number of each signal's stage.
    """

    covariance: Series
    factors: int
    blocks: NDArray[np.int64]
    #: What follows from the covariance of the signals that a step observes, by them: most steps observe the
    #: same.
    _solved: dict[tuple[str, bytes], Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def fit(cls, levels: Series, blocks: Sequence[int], share: float = 0.9) -> Relations:
        """levels: (rows, C), NaN counts as 0. share: of the variance that common factors explain."""
        rows = usual(levels)
        covariance, _ = ledoit_wolf(rows)
        covariance = covariance + _NOISE * np.eye(len(covariance))
        spectrum = np.linalg.eigvalsh(covariance)[::-1]
        factors = int(np.searchsorted(np.cumsum(spectrum) / spectrum.sum(), share)) + 1
        return cls(covariance, factors, np.asarray(blocks, dtype=np.int64))

    def partial(self, levels: Series) -> Series:
        """(T, C) levels -> (T, C) partial residuals, NaN where the level is: what a step does not observe is
        left out of its relations.
        """
        out = np.full(levels.shape, np.nan)
        for rows, seen in _patterns(levels):
            precision = self._of("precision", seen, self._precision)
            values = usual(levels[np.ix_(rows, seen)])
            out[np.ix_(rows, seen)] = values @ precision / np.sqrt(np.diag(precision))
        found: Series = np.clip(out, -CUT, CUT)
        return found

    def across(self, levels: Series) -> Series:
        """(T, C) levels -> (T, C) of variance 1 for a normal distribution; NaN as in `partial`."""
        out = np.full(levels.shape, np.nan)
        for rows, seen in _patterns(levels):
            for own, other, slopes, left in self._of("across", seen, self._told_across):
                told = usual(levels[np.ix_(rows, other)]) @ slopes
                out[np.ix_(rows, own)] = (usual(levels[np.ix_(rows, own)]) - told) / np.sqrt(left)
        found: Series = np.clip(out, -CUT, CUT)
        return found

    def distances(self, levels: Series) -> Series:
        """(T, 2) Hotelling's T2 of the common factors and Q of the rest, each in healthy deviations of its
        own (cube root of Wilson and Hilferty: about normal). NaN where nothing was observed.
        """
        out = np.full((len(levels), 2), np.nan)
        for rows, seen in _patterns(levels):
            values, vectors = self._of(
                "factors", seen, lambda own: np.linalg.eigh(self.covariance[np.ix_(own, own)])
            )
            scores = (usual(levels[np.ix_(rows, seen)]) @ vectors) ** 2 / values
            count = min(self.factors, len(values))
            out[rows, 0], out[rows, 1] = _normal(scores[:, -count:]), _normal(scores[:, :-count])
        return out

    def _precision(self, seen: NDArray[np.int64]) -> Series:
        return np.asarray(np.linalg.inv(self.covariance[np.ix_(seen, seen)]), dtype=np.float64)

    def _told_across(self, seen: NDArray[np.int64]) -> list[tuple[NDArray[Any], ...]]:
        """For each block: its signals, the others, slopes of the former on the latter, variance left."""
        found: list[tuple[NDArray[Any], ...]] = []
        for block in np.unique(self.blocks[seen]):
            own, other = seen[self.blocks[seen] == block], seen[self.blocks[seen] != block]
            mixed = self.covariance[np.ix_(own, other)]
            slopes = np.linalg.solve(self.covariance[np.ix_(other, other)], mixed.T)
            left = np.diag(self.covariance[np.ix_(own, own)]) - (mixed.T * slopes).sum(axis=0)
            found.append((own, other, slopes, left))
        return found

    def _of(self, what: str, seen: NDArray[np.int64], solve: Callable[[NDArray[np.int64]], Any]) -> Any:
        key = (what, seen.tobytes())
        if key not in self._solved:
            self._solved[key] = solve(seen)
        return self._solved[key]

    def to_dict(self) -> dict[str, Any]:
        """In JSON values."""
        return {
            "covariance": self.covariance.tolist(),
            "factors": self.factors,
            "blocks": self.blocks.tolist(),
        }

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Relations:
        """The inverse of `to_dict`."""
        return cls(np.asarray(body["covariance"]), int(body["factors"]), np.asarray(body["blocks"]))


def usual(levels: Series) -> Series:
    """Cut levels; 0 where nothing was observed."""
    return np.clip(np.nan_to_num(levels), -_USUAL, _USUAL)


def _patterns(levels: Series) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Steps that observe the same signals, and these signals; steps that observe none are left out."""
    rows: dict[bytes, list[int]] = {}
    observed = ~np.isnan(levels)
    for row, pattern in enumerate(observed):
        rows.setdefault(pattern.tobytes(), []).append(row)
    for alike in rows.values():
        if (pattern := observed[alike[0]]).any():
            yield np.asarray(alike), np.flatnonzero(pattern)


def _normal(squares: Series) -> Series:
    """(T, K) squares of mean 1 -> (T,) about normal."""
    count = squares.shape[1]
    if count == 0:
        return np.zeros(len(squares))
    spread = 2 / (9 * count)
    found: Series = ((squares.mean(axis=1)) ** (1 / 3) - (1 - spread)) / np.sqrt(spread)
    return found


def own_start(levels: Series, first: int = OWN_START) -> Series:
    """(T, C) levels against the mean of the run's own first steps; NaN in these, and where they are not
    observed. Of independent steps the variance is that of a level again.
    """
    out = np.full(levels.shape, np.nan)
    seen = ~np.isnan(levels[:first])
    count = seen.sum(axis=0)
    known = count > 0
    start = np.nan_to_num(levels[:first]).sum(axis=0)[known] / count[known]
    spread = np.sqrt(1 + 1 / count[known])
    out[first:, known] = (levels[first:, known] - start) / spread
    return out
