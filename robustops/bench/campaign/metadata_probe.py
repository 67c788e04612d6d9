"""Whether a run's label can be told from what is no telemetry: its name, path, length, missing columns.

A benchmark that tells its labels this way measures nothing. A classifier of trees is trained to tell runs
with a fault from those without on such metadata alone, in cross-validation that splits no seed group. On an
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

FOLDS, TREES = 5, 20
#: A label is told where so few of the shuffled ones are told as well.
LEAK = 0.01
_CHARACTERS = 24


@dataclass(frozen=True)
class Probe:
    """auroc: see the module; low, high: 95 % interval over seed groups; p_value: of a permutation test, one
    sided; importances: of the kinds of metadata, summing to 1.
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


def probe(
    dataset: Dataset, *, timing: bool = False, permutations: int = 199, resamples: int = 500, seed: int = 0
) -> Probe:
    """Train and test the classifier on a data set. timing: on seconds and CPU seconds alone instead, which
    are no part of the telemetry; they may well tell (a long answer takes longer).

    Raises:
        DatasetError: too few runs or seed groups for a test.
    """
    features = (timing_features if timing else metadata_features)(dataset)
    faulty = np.array([row["kind"] in ("fault", "double") for row in dataset.rows])
    groups = np.array([row["seed_group"] for row in dataset.rows])
    return probe_features(features, faulty, groups, permutations, resamples, seed)


def probe_features(
    features: Mapping[str, np.ndarray],
    faulty: np.ndarray,
    groups: np.ndarray,
    permutations: int,
    resamples: int,
    seed: int,
) -> Probe:
    """`probe` of given features: name -> (runs,) numbers; faulty: (runs,) bool; groups: (runs,) numbers of the
    seed groups.
    """
    values = np.stack(list(features.values()), axis=1)
    folds = _folds(faulty, groups, seed)
    scores, importances = _scores(values, faulty, folds, child_seed(seed, "trees"))
    auroc = pooled_auroc(scores, faulty, folds)
    rng = array_generator(seed, "metadata probe")
    as_good = 0
    for number in range(permutations):
        shuffled = rng.permutation(faulty)
        told, _ = _scores(values, shuffled, folds, child_seed(seed, "trees", number))
        as_good += pooled_auroc(told, shuffled, folds) >= auroc
    low, high = _interval(scores, faulty, folds, groups, resamples, rng)
    kinds: dict[str, float] = {}
    for name, share in zip(features, importances, strict=True):
        kind = name.partition(":")[0]
        kinds[kind] = kinds.get(kind, 0.0) + float(share)
    p_value = (1 + as_good) / (1 + permutations)
    return Probe(auroc, low, high, p_value, len(faulty), int(faulty.sum()), permutations, kinds)


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


def _scores(
    values: np.ndarray, faulty: np.ndarray, folds: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(runs,) scores of runs in the fold in which they are tested, and (features,) mean importances."""
    trees = require("sklearn.ensemble").ExtraTreesClassifier
    scores, importances = np.full(len(faulty), 0.5), []
    for fold in np.unique(folds):
        learned = folds != fold
        if faulty[learned].all() or not faulty[learned].any():
            continue
        model = trees(TREES, min_samples_leaf=2, class_weight="balanced", random_state=seed % 2**32)
        model.fit(values[learned], faulty[learned])
        scores[~learned] = model.predict_proba(values[~learned])[:, 1]
        importances.append(model.feature_importances_)
    mean = np.mean(importances, axis=0) if importances else np.zeros(values.shape[1])
    return scores, mean


def _interval(
    scores: np.ndarray,
    faulty: np.ndarray,
    folds: np.ndarray,
    groups: np.ndarray,
    resamples: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """95 % of the AUROC when seed groups are drawn anew, with replacement."""
    places = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    found = []
    for _ in range(resamples):
        drawn = np.concatenate([places[i] for i in rng.integers(len(places), size=len(places))])
        found.append(pooled_auroc(scores[drawn], faulty[drawn], folds[drawn]))
    low, high = np.nanpercentile(found, [2.5, 97.5]) if found else (np.nan, np.nan)
    return float(low), float(high)


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
