"""Diagnosis in numbers: rows of every quantity, for one diagnoser in one tier and at one horizon."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from robustops.bench.evaluation.detection import DIFFICULTIES, FAMILIES
from robustops.bench.evaluation.judged import Judged
from robustops.bench.evaluation.metrics import auroc, class_scores, confusion, macro, share
from robustops.bench.evaluation.protocol import LEVEL
from robustops.bench.evaluation.registry import DIAGNOSE
from robustops.bench.evaluation.resampling import Draws, Values, interval
from robustops.bench.evaluation.rows import Row
from robustops.bench.evaluation.runs import Label, family_of
from robustops.bench.evaluation.units import Done
from robustops.bench.run_faults.catalog import CATALOG
from robustops.monitor.verdict import UNKNOWN

#: What is said of a run without an alarm, and what a healthy run is.
NONE = "none"
TYPES, KNOWN_FAMILIES = (*CATALOG, UNKNOWN, NONE), (*FAMILIES, UNKNOWN, NONE)
_BINS = 10
Maker = Callable[..., Row]


@dataclass
class Answers:
    """What a diagnoser said, one entry a tested run and partition. said: likeliest type (UNKNOWN is none);
    among_three: whether the truth is among the three likeliest; sure: probability of the likeliest.
    """

    method: str
    tier: str
    horizon: int
    partition: np.ndarray
    labels: list[Label]
    said: list[str]
    among_three: np.ndarray
    sure: np.ndarray

    def places(self, difficulty: str = "", kind: str = "fault") -> np.ndarray:
        """Of the tested runs."""
        found = [
            at
            for at, label in enumerate(self.labels)
            if label.kind == kind and difficulty in ("", label.difficulty)
        ]
        return np.array(found, dtype=np.intp)


def answers(done: Sequence[Done], labels: Mapping[str, Label], key: str = "probabilities") -> Answers:
    """Of one diagnoser's partitions and folds. key: which array of a unit, those without it are left out."""
    numbers, told, said, three, sure = [], [], [], [], []
    for one in (one for one in done if key in one.arrays):
        types = np.array([str(name) for name in one.arrays["types"]])
        for name, row in zip(one.arrays["run_ids"], one.arrays[key], strict=True):
            known = np.where(types == UNKNOWN, -1.0, row)
            order = np.argsort(-known, kind="stable")
            label = labels[str(name)]
            numbers.append(one.unit.partition.number)
            told.append(label)
            said.append(str(types[order[0]]))
            three.append(label.fault in types[order[:3]])
            sure.append(float(known[order[0]]))
    unit = done[0].unit
    return Answers(
        *(unit.method, unit.tier, unit.horizon),
        np.array(numbers),
        told,
        said,
        np.array(three, dtype=bool),
        np.array(sure),
    )


def diagnosis_rows(
    done: Sequence[Done], labels: dict[str, Label], gate: Judged | None, draws: Draws
) -> Iterator[Row]:
    """Every number of a diagnoser. gate: the detector before it end to end, of the same tier and horizon."""
    found = answers(done, labels)
    make = _maker(found)
    for difficulty in DIFFICULTIES:
        places = found.places(difficulty)
        if not len(places):
            continue
        yield from _given(found, draws, make, places, difficulty)
        hits = found.among_three[places].astype(np.float64)
        groups = [found.labels[p].group for p in places]
        yield make("top_3", share(draws, groups, hits), difficulty, n=len(places))
        yield make("ece", np.full(1, calibration_error(found, places)), difficulty, n=len(places))
        if gate is not None:
            yield from _end_to_end(found, gate, draws, make, difficulty)
    yield from _novel(done, labels, draws, make)
    if any("from_main" in one.arrays for one in done):
        yield from _transferred(done, labels, draws, make)


def _given(found: Answers, draws: Draws, make: Maker, places: np.ndarray, difficulty: str) -> Iterator[Row]:
    """Types and families, given that the run is faulty."""
    truth = [found.labels[p].fault for p in places]
    said = [found.said[p] for p in places]
    groups = [found.labels[p].group for p in places]
    counts = confusion(draws, groups, truth, said, TYPES)
    for family in ("", *FAMILIES):
        classes = [at for at, name in enumerate(TYPES) if name in CATALOG and family in ("", family_of(name))]
        n = sum(TYPES.index(name) in classes for name in truth)
        if not n:
            continue
        for name, values in zip(("precision", "recall", "f1"), class_scores(counts, classes), strict=True):
            yield make(f"type_{name}", macro(values), difficulty, family, n=n)
    families = confusion(draws, groups, _families(truth), _families(said), KNOWN_FAMILIES)
    scores = class_scores(families, range(len(FAMILIES)))[2]
    yield make("family_f1", macro(scores), difficulty, n=len(places))


def _end_to_end(found: Answers, gate: Judged, draws: Draws, make: Maker, difficulty: str) -> Iterator[Row]:
    """A run without an alarm is said to have no fault; a falsely alarmed healthy run is said to have one."""
    alarms = {
        (int(number), label.run_id): bool(alarm)
        for number, label, alarm in zip(gate.partition, gate.labels, gate.alarms[LEVEL], strict=True)
    }
    places = np.concatenate([found.places(difficulty), found.places(kind="healthy")])
    own = [found.labels[p] for p in places]
    truth = [label.fault for label in own]
    said = [
        found.said[p] if alarms[int(found.partition[p]), found.labels[p].run_id] else NONE for p in places
    ]
    groups = [label.group for label in own]
    counts = confusion(draws, groups, truth, said, TYPES)
    types = macro(class_scores(counts, range(len(CATALOG)))[2])
    yield make("end_to_end_type_f1", types, difficulty, n=len(places))
    counts = confusion(draws, groups, _families(truth), _families(said), KNOWN_FAMILIES)
    scores = macro(class_scores(counts, range(len(FAMILIES)))[2])
    yield make("end_to_end_family_f1", scores, difficulty, n=len(places))


def _families(names: Sequence[str]) -> list[str]:
    return [name if name == UNKNOWN else family_of(name) for name in names]


def _novel(done: Sequence[Done], labels: Mapping[str, Label], draws: Draws, make: Maker) -> Iterator[Row]:
    """Open set: can runs of a type that was left out of training be told from those of learned types? Within
    each fit, averaged over the types.
    """
    parts, runs = [], 0
    for one in (one for one in done if "novelty" in one.arrays):
        tested = [labels[name] for name in one.unit.fold.test] if one.unit.fold else []
        for name, row in zip(one.arrays["left_out"], one.arrays["novelty"], strict=True):
            unknown = np.array([label.fault == str(name) for label in tested])
            groups = np.array([label.group for label in tested])
            runs += int(unknown.sum())
            parts.append(auroc(draws, groups[unknown], row[unknown], groups[~unknown], row[~unknown]))
    if parts:
        yield make("open_set_auroc", macro(np.stack(parts, axis=1)), n=runs)


def _transferred(
    done: Sequence[Done], labels: Mapping[str, Label], draws: Draws, make: Maker
) -> Iterator[Row]:
    """Learned from the main mechanisms alone: macro-F1 over types on runs of main and of other mechanisms."""
    found = answers(done, labels, "from_main")
    for difficulty in DIFFICULTIES:
        for name, main in (("main mechanism", True), ("other mechanisms", False)):
            places = [p for p in found.places(difficulty) if found.labels[p].main == main]
            truth, said = [found.labels[p].fault for p in places], [found.said[p] for p in places]
            counts = confusion(draws, [found.labels[p].group for p in places], truth, said, TYPES)
            values = macro(class_scores(counts, range(len(CATALOG)))[2])
            yield make("from_main_type_f1", values, difficulty, name, n=len(places))


def calibration_error(found: Answers, places: np.ndarray) -> float:
    """Expected calibration error over ten equal bins (Naeini et al. 2015): how far the probability of the
    likeliest type is from how often it is right.
    """
    right = np.array([found.said[p] == found.labels[p].fault for p in places], dtype=np.float64)
    sure = found.sure[places]
    bins = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    gaps = [abs(float((right - sure)[bins == one].sum())) for one in np.unique(bins)]
    return sum(gaps) / len(places) if len(places) else float("nan")


def _maker(found: Answers) -> Maker:
    def make(metric: str, values: Values, difficulty: str = "", of: str = "", n: int = 0) -> Row:
        facts = (found.method, DIAGNOSE, found.tier, found.horizon, metric)
        return Row(*facts, *interval(values), difficulty=difficulty, of=of, n=n)

    return make
