"""Balanced draws of cases, of groups that nobody has learned from."""

from __future__ import annotations

from collections import Counter

import pytest

from robustops.bench.evaluation.protocol import Fold, Partition
from robustops.bench.evaluation.runs import Label
from robustops.bench.remediation.draw import draw
from robustops.bench.run_faults.catalog import CATALOG
from robustops.errors import ConfigError

TESTED = range(8)
LEARNED = range(8, 16)


def label(kind, group, fault="none", *, easy=True, main=True):
    level = "easy" if easy else "hard"
    return Label(f"{fault}.{group:02d}", group, kind, fault, "", level, level, "", main, True, 3)


def everything():
    labels = [
        label("fault", group, fault, easy=group % 2 == 0, main=group % 4 < 2)
        for fault in CATALOG
        for group in (*TESTED, *LEARNED)
    ]
    labels += [label("healthy", group) for group in range(30)]
    return {one.run_id: one for one in labels}


LABELS = everything()
FOLD = Fold(
    0,
    tuple(name for name, one in LABELS.items() if one.kind == "fault" and one.group in LEARNED),
    tuple(name for name, one in LABELS.items() if one.kind == "fault" and one.group in TESTED),
)
PARTITION = Partition(
    0,
    tuple(f"none.{group:02d}" for group in range(20, 24)),
    tuple(f"none.{group:02d}" for group in range(24, 27)),
    tuple(name for name, one in LABELS.items() if one.group < 20 or one.group >= 27),
    (FOLD,),
)


def drawn(number=64, seed=0):
    return draw(LABELS, PARTITION, FOLD, number, seed)


def test_types_difficulties_and_mechanisms_have_as_many_cases():
    chosen = [LABELS[name] for name in drawn().faulty]
    assert Counter(one.fault for one in chosen) == dict.fromkeys(CATALOG, 4)
    for fault in CATALOG:
        own = [one for one in chosen if one.fault == fault]
        assert Counter((one.difficulty, one.main) for one in own) == {
            (level, main): 1 for level in ("easy", "hard") for main in (True, False)
        }


def test_two_cases_of_a_type_already_differ_in_both_respects():
    by_fault = {}
    for name in drawn(32).faulty:
        by_fault.setdefault(LABELS[name].fault, []).append(LABELS[name])
    for one, other in by_fault.values():
        assert one.difficulty != other.difficulty and one.main != other.main


def test_nothing_that_is_drawn_is_of_a_group_that_was_learned_from():
    groups = {LABELS[name].group for name in drawn().run_ids}
    learned = {LABELS[name].group for name in (*PARTITION.profile, *PARTITION.calibration, *FOLD.train)}
    assert not groups & learned
    assert {LABELS[name].group for name in drawn().healthy} == {*TESTED, *range(16, 20), *range(27, 30)}


def test_more_cases_are_those_of_fewer_and_others_and_seeds_differ():
    assert set(drawn(16).faulty) < set(drawn(48).faulty) < set(drawn(128).faulty)
    assert drawn().faulty == drawn().faulty != drawn(seed=1).faulty


def test_what_is_left_over_goes_to_single_types():
    counts = Counter(LABELS[name].fault for name in drawn(37).faulty)
    assert sum(counts.values()) == 37 and set(counts.values()) == {2, 3}


def test_fewer_cases_than_types_are_refused():
    with pytest.raises(ConfigError, match=r"cases=15 of 16 types.*give 16 or a multiple"):
        drawn(15)
