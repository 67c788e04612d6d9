"""The sets in numbers: what was learned on the campaign's data set, on each set, in each tier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robustops.bench.evaluation.detection import FAMILIES, at
from robustops.bench.evaluation.metrics import class_scores, confusion, macro, pairs_won, share
from robustops.bench.evaluation.protocol import partitions
from robustops.bench.evaluation.registry import DETECT, DIAGNOSE, Method
from robustops.bench.evaluation.resampling import DRAWS, Draws, Values, draw_groups, interval
from robustops.bench.evaluation.rows import Row, Rows
from robustops.bench.evaluation.runs import TIERS, Runs, family_of
from robustops.bench.run_faults.catalog import CATALOG
from robustops.bench.transfer.scored import Detected, Diagnosed, Known, RunSet, detected, diagnosed
from robustops.bench.transfer.tried import Tried
from robustops.errors import ConfigError
from robustops.monitor.verdict import UNKNOWN
from robustops.tracking.statistics import wilson

#: Of those that are registered, what is tried unless methods are named.
METHODS = (
    *("own", "ivs_paper", "isolation_forest", "random"),
    *("own_diagnosis", "svm_classifier", "knn_classifier", "chance"),
)
#: TRL logs little of tier I: what it shares with ours is looked at as tier P.
TIERS_OF = {"itsm": ("P", "P+I"), "trl": ("P",)}
_TYPES, _FAMILIES = (*CATALOG, UNKNOWN), (*FAMILIES, UNKNOWN)


@dataclass
class Found:
    """rows: all numbers; tested: the sets by name and tier; detectors, diagnosers: their answers, in the same
    keys; absent, refused: method -> package, or why it could not learn; facts: what is behind it.
    """

    rows: list[Row] = field(default_factory=list)
    tested: dict[tuple[str, str], RunSet] = field(default_factory=dict)
    detectors: dict[tuple[str, str], list[Detected]] = field(default_factory=dict)
    diagnosers: dict[tuple[str, str], list[Diagnosed]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def numbers(self) -> Rows:
        """To be asked."""
        return Rows(self.rows)


def evaluate(
    dataset: Path,
    sets: Mapping[str, Sequence[Tried]],
    methods: Sequence[Method],
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> Found:
    """Try the methods on the sets.

    Args:
        dataset: folder of the campaign's data set. Nothing of its final groups is looked at.
        sets: runs by name of the set. The campaign's runs are looked at as far as those of a set go.
        methods: detectors and diagnosers.
        seed: of methods that draw, and of the bootstrap.
        draws: of the bootstrap.

    Raises:
        DatasetError: the data set is not there, or has too few runs.
        ConfigError: a set has too few runs.
    """
    runs = Runs.read(dataset)
    partition = partitions(runs.dataset.splits.to_pylist(), runs.labels, 1)[0]
    faulty = sorted({name for fold in partition.folds for name in (*fold.train, *fold.test)})
    found = Found(absent={m.name: m.package for m in methods if not m.available})
    found.facts = {
        "profile_runs": len(partition.profile),
        "calibration_runs": len(partition.calibration),
        "faulty_runs": len(faulty),
        "horizon": {name: _horizon(tried) for name, tried in sets.items()},
        "bootstrap_draws": draws,
    }
    for name, tried in sets.items():
        horizon = _horizon(tried)
        for tier in TIERS_OF[name]:
            known = Known(
                [runs.panel(n, horizon, tier) for n in partition.profile],
                [runs.panel(n, horizon, tier) for n in partition.calibration],
                [runs.panel(n, horizon, tier) for n in faulty],
                [runs.labels[n].fault for n in faulty],
            )
            tested = RunSet.of(name, tier, TIERS[tier], tried, known)
            present = [method for method in methods if method.available]
            _try(found, tested, known, present, horizon, seed, draws)
    return found


def _horizon(tried: Sequence[Tried]) -> int:
    """The last step that any of a set's runs has."""
    return max((int(run.panel.steps[-1]) for run in tried), default=0)


def _try(
    found: Found,
    tested: RunSet,
    known: Known,
    methods: Sequence[Method],
    horizon: int,
    seed: int,
    draws: int,
) -> None:
    key = tested.name, tested.tier
    found.tested[key] = tested
    weights = _draws(tested, seed, draws)
    found.detectors[key], found.diagnosers[key] = [], []
    for method in methods:
        try:
            if method.task == DETECT:
                found.detectors[key] += detected(method, known, tested, seed)
            else:
                found.diagnosers[key] += diagnosed(method, known, tested, seed)
        except ConfigError as error:
            found.refused[method.name] = str(error)
    for one in found.detectors[key]:
        found.rows += detection_rows(one, tested, weights, horizon)
    for other in found.diagnosers[key]:
        found.rows += diagnosis_rows(other, tested, weights, horizon)


def _draws(tested: RunSet, seed: int, draws: int) -> Draws:
    """Runs are drawn one by one, healthy ones apart from faulty ones: no two of a set share their first
    steps but faulty runs of a repeat.
    """
    strata = dict.fromkeys(_healthy_groups(tested), "healthy") | dict.fromkeys(
        _faulty_groups(tested), "fault"
    )
    return draw_groups(strata, seed, draws)


def _healthy_groups(tested: RunSet) -> list[int]:
    return list(range(len(tested.healthy)))


def _faulty_groups(tested: RunSet) -> list[int]:
    first = len(tested.healthy)
    return list(range(first, first + len(tested.faulty)))


def detection_rows(one: Detected, tested: RunSet, draws: Draws, horizon: int) -> list[Row]:
    """AUROC, recall, false alarms, and the level that recall stands for. Intervals of shares are Wilson's:
    with so few runs a bootstrap of a share near 0 or 1 tells nothing.
    """
    area = interval(pairs_won(draws, _faulty_groups(tested), _healthy_groups(tested), one.won))
    shares = {
        at("recall"): wilson(int(one.alarms.sum()), len(one.alarms)),
        at("false_alarms"): wilson(int(one.false_alarms.sum()), len(one.false_alarms)),
    }
    counts = {at("recall"): len(tested.faulty), at("false_alarms"): len(tested.healthy)}
    facts = (one.method, DETECT, tested.tier, horizon)
    where = f"{tested.name}, {one.basis}"
    rows = [Row(*facts, "auroc", *area, of=where, n=one.won.size)]
    rows += [Row(*facts, name, *value, of=where, n=counts[name]) for name, value in shares.items()]
    rows.append(Row(*facts, at("level"), one.level, of=where, n=len(tested.healthy)))
    return rows


def diagnosis_rows(one: Diagnosed, tested: RunSet, draws: Draws, horizon: int) -> list[Row]:
    """Macro-F1 over types and families given the fault, and whether the truth is among three."""
    truth, said = [run.planned.fault for run in tested.faulty], list(one.said)
    groups = _faulty_groups(tested)
    values = {
        "type_f1": _macro_f1(draws, groups, truth, said, _TYPES),
        "family_f1": _macro_f1(draws, groups, [*map(_family, truth)], [*map(_family, said)], _FAMILIES),
        "top_3": share(draws, groups, one.three.astype(np.float64)),
    }
    facts = (one.method, DIAGNOSE, tested.tier, horizon)
    where = f"{tested.name}, {one.basis}"
    return [Row(*facts, name, *interval(found), of=where, n=len(truth)) for name, found in values.items()]


def _macro_f1(
    draws: Draws, groups: Sequence[int], truth: Sequence[str], said: Sequence[str], names: Sequence[str]
) -> Values:
    counts = confusion(draws, groups, truth, said, names)
    known = [place for place, name in enumerate(names) if name != UNKNOWN]
    return macro(class_scores(counts, known)[2])


def _family(name: str) -> str:
    return name if name == UNKNOWN else family_of(name)
