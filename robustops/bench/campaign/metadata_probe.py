"""Whether a run's label can be told from what is no telemetry: its name, path, length, missing columns.

A benchmark that tells its labels this way measures nothing. A ridge classifier on the levels of such metadata
is trained to tell runs with a fault from those without, in cross-validation that splits no seed group. On an
honest data set its AUROC is 0.5 but for chance; the chance is that of the same classifier on shuffled labels.

AUROC is the mean over folds, each weighted by its pairs of a faulty and another run: scores of different
folds are not compared, since a fold with more faults was trained on fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustops.bench.campaign.dataset import Dataset
from robustops.bench.campaign.extras import require
from robustops.errors import DatasetError
from robustops.monitor import schema
from robustops.seeding import array_generator, child_seed

FOLDS, RIDGE = 5, 1.0
#: A number with more different values than this is cut into tenths.
_LEVELS = 40
#: A label is told where so few of the shuffled ones are told as well.
LEAK = 0.01
_CHARACTERS = 24


@dataclass(frozen=True)
class Probe:
    """auroc: see the module; low, high: 95 % interval, from the deviation over shuffled labels, which that of
    training is part of (drawing the tested runs anew would leave it out); p_value: of a permutation test, one
    sided; importances: of the kinds of metadata, by the size of weights, summing to 1.
    """

    auroc: float
    low: float
    high: float
    p_value: float
    runs: int
    faulty: int
    permutations: int
    importances: Mapping[str, float]

    @property
    def leaks(self) -> bool:
        """Whether the label can be told."""
        return self.p_value <= LEAK

    def report(self) -> dict[str, Any]:
        """In JSON values."""
        return {**vars(self), "importances": dict(self.importances), "leaks": self.leaks}


def probe(dataset: Dataset, *, timing: bool = False, permutations: int = 199, seed: int = 0) -> Probe:
    """Train and test the classifier on a data set. timing: on seconds and CPU seconds alone instead, which
    are no part of the telemetry; they may well tell (a long answer takes longer).

    Raises:
        DatasetError: too few runs or seed groups for a test.
    """
    features = (timing_features if timing else metadata_features)(dataset)
    faulty = np.array([row["kind"] in ("fault", "double") for row in dataset.rows])
    groups = np.array([row["seed_group"] for row in dataset.rows])
    return probe_features(features, faulty, groups, permutations, seed)


def probe_features(
    features: Mapping[str, np.ndarray],
    faulty: np.ndarray,
    groups: np.ndarray,
    permutations: int,
    seed: int,
) -> Probe:
    """`probe` of given features: name -> (runs,) numbers; faulty: (runs,) bool; groups: (runs,) numbers of
    the seed groups.
    """
    values, kinds = levels(features)
    folds = _folds(faulty, groups, seed)
    rng = array_generator(seed, "metadata probe")
    shuffled = [rng.permutation(faulty) for _ in range(permutations)]
    labels = np.stack([faulty, *shuffled], axis=1)
    scores, weights = _scores(values, kinds, labels, folds)
    found = [pooled_auroc(scores[:, i], labels[:, i], folds) for i in range(permutations + 1)]
    auroc, as_good = found[0], sum(other >= found[0] for other in found[1:])
    half = 1.96 * float(np.std(found[1:])) if permutations else float("nan")
    low, high = auroc - half, auroc + half
    total = weights.sum() or 1.0
    importances = {k: float(weights[kinds == k].sum() / total) for k in dict.fromkeys(kinds.tolist())}
    p_value = (1 + as_good) / (1 + permutations)
    return Probe(auroc, low, high, p_value, len(faulty), int(faulty.sum()), permutations, importances)


def metadata_features(dataset: Dataset) -> dict[str, np.ndarray]:
    """What the data set tells of a run besides its telemetry, (runs,) numbers by `kind:name`."""
    ids = [row["run_id"] for row in dataset.rows]
    features = dict(_text_features("run_id", ids))
    features |= _text_features("path", [f"runs/{name}" for name in ids])
    features["place:row"] = np.arange(len(ids), dtype=np.float64)
    lengths = [len(dataset.series(name, schema.names()[0])) for name in ids]
    features["length:steps"] = np.array(lengths, dtype=np.float64)
    for column in schema.names():
        empty = [bool(np.isnan(dataset.series(name, column)).all()) for name in ids]
        features[f"missing:{column}"] = np.array(empty, dtype=np.float64)
    for name in ("commit", "versions"):
        features[f"{name}:code"] = _codes([row[name] for row in dataset.rows])
    return features


def timing_features(dataset: Dataset) -> dict[str, np.ndarray]:
    """Wall and CPU time of each run, -1 where they were not measured."""
    names = ("seconds", "cpu_seconds")
    return {f"timing:{n}": np.array([-1.0 if r[n] is None else r[n] for r in dataset.rows]) for n in names}


def pooled_auroc(scores: np.ndarray, faulty: np.ndarray, folds: np.ndarray) -> float:
    """Mean over folds of P(score of a faulty run > of another) + P(equal) / 2, by pairs; NaN without any."""
    won, pairs = 0.0, 0
    for fold in np.unique(folds):
        own = folds == fold
        ups, downs = scores[own & faulty], np.sort(scores[own & ~faulty])
        below, not_above = np.searchsorted(downs, ups, "left"), np.searchsorted(downs, ups, "right")
        won += float((below + not_above).sum()) / 2
        pairs += len(ups) * len(downs)
    return won / pairs if pairs else float("nan")


def _folds(faulty: np.ndarray, groups: np.ndarray, seed: int) -> np.ndarray:
    """(runs,) number of the fold in which a run is tested."""
    mixed = len(np.unique(groups))
    if mixed < 2 or faulty.all() or not faulty.any():
        raise DatasetError(
            f"{len(faulty)} runs of {mixed} seed groups, {int(faulty.sum())} faulty, are too few to probe; "
            "take runs with and without faults of two groups at least"
        )
    splitter = require("sklearn.model_selection").StratifiedGroupKFold(
        min(FOLDS, mixed), shuffle=True, random_state=child_seed(seed, "probe folds") % 2**32
    )
    folds = np.zeros(len(faulty), dtype=int)
    for number, (_, held) in enumerate(splitter.split(faulty, faulty, groups)):
        folds[held] = number
    return folds


def levels(features: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(runs, levels) 0 or 1 for each value of each feature that varies, and the (levels,) kinds of these."""
    columns, kinds = [], []
    for name, values in features.items():
        if len(np.unique(values)) > _LEVELS:
            values = np.searchsorted(np.quantile(values, np.linspace(0.1, 0.9, 9)), values)
        known = np.unique(values)
        if len(known) > 1:
            columns.append((values[:, None] == known).astype(np.float64))
            kinds += [name.partition(":")[0]] * len(known)
    if not columns:  # nothing varies, so nothing can be told
        return np.zeros((len(next(iter(features.values()))), 1)), np.array(["none"])
    return np.concatenate(columns, axis=1), np.array(kinds)


def _scores(
    values: np.ndarray, kinds: np.ndarray, labels: np.ndarray, folds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(runs, labellings) scores of runs in the fold in which they are tested, one column for each column of
    labels, and the (levels,) mean sizes of the first one's weights.

    Ridge regression in its dual form, w = X' (X X' + ridge I)^-1 y: one inverse serves all labellings. Each
    kind of metadata has the same weight in X X', however many levels it has: the one column that leaks is not
    lost among hundreds of characters.
    """
    sizes = np.array([(kinds == kind).sum() for kind in kinds])
    scores, weights = np.zeros(labels.shape), np.zeros(values.shape[1])
    for fold in np.unique(folds):
        learned = folds != fold
        scale = np.maximum(values[learned].std(axis=0), 1e-12)
        seen = (values - values[learned].mean(axis=0)) / scale * (scale > 1e-12) / np.sqrt(sizes)
        own = seen[learned]
        wanted = labels[learned] - labels[learned].mean(axis=0)
        dual = np.linalg.solve(own @ own.T + RIDGE * np.eye(len(own)), wanted)
        scores[~learned] = seen[~learned] @ (own.T @ dual)
        weights += np.abs(own.T @ dual[:, 0]) / len(np.unique(folds))
    return scores, weights


def _text_features(kind: str, texts: Sequence[str]) -> Iterable[tuple[str, np.ndarray]]:
    """Length, the first characters by place, and how often each character occurs."""
    yield f"{kind}:length", np.array([len(text) for text in texts], dtype=np.float64)
    for place in range(min(_CHARACTERS, max(map(len, texts)))):
        codes = [ord(text[place]) if place < len(text) else -1 for text in texts]
        yield f"{kind}:at {place}", np.array(codes, dtype=np.float64)
    for character in sorted(set("".join(texts))):
        yield f"{kind}:count {character}", np.array([t.count(character) for t in texts], dtype=np.float64)


def _codes(values: Sequence[Any]) -> np.ndarray:
    known = {value: number for number, value in enumerate(sorted({str(value) for value in values}))}
    return np.array([known[str(value)] for value in values], dtype=np.float64)
