"""Splits of the whole plan: no seed group is split, healthy sets are disjoint, folds are even."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from robustops.bench.campaign.plan import planned
from robustops.bench.campaign.splits import FOLDS, PARTITIONS, split


@pytest.fixture(scope="module")
def plan():
    return [run.to_dict() for run in planned()]


@pytest.fixture(scope="module")
def rows(plan):
    return split(plan)


def test_every_run_has_a_row_in_every_partition(plan, rows):
    counts = Counter((row["partition"], row["run_id"]) for row in rows)
    assert set(counts.values()) == {1} and len(counts) == PARTITIONS * len(plan)


def test_no_seed_group_is_split(rows):
    places = defaultdict(set)
    for row in rows:
        places[row["partition"], row["seed_group"]].add((row["final"], row["fold"]))
    assert all(len(found) == 1 for found in places.values())


def test_final_groups_are_the_same_in_every_partition_and_a_quarter(rows):
    final = defaultdict(set)
    for row in rows:
        if row["final"]:
            final[row["partition"]].add(row["seed_group"])
    assert len(final) == PARTITIONS and len({frozenset(groups) for groups in final.values()}) == 1
    assert len([group for group in final[0] if group < 48]) == 12
    assert len([group for group in final[0] if group >= 48]) == pytest.approx(212 / 4, abs=1)


def test_healthy_sets_are_disjoint_by_seed_group_and_controls_are_test(plan, rows):
    kinds = {run["run_id"]: run["kind"] for run in plan}
    for partition in range(PARTITIONS):
        sets = defaultdict(set)
        for row in rows:
            if row["partition"] == partition and kinds[row["run_id"]] == "healthy":
                sets[row["healthy_set"]].add(row["seed_group"])
        assert set(sets) == {"profile", "calibration", "test"}
        assert not sets["profile"] & sets["calibration"] and not sets["test"] & (
            sets["profile"] | sets["calibration"]
        )
        assert set(range(48)) <= sets["test"]
        assert len(sets["profile"]) == pytest.approx(159 / 2, abs=1)
        assert len(sets["calibration"]) == pytest.approx(159 * 0.3, abs=1)
    assert all(row["healthy_set"] is None for row in rows if kinds[row["run_id"]] != "healthy")


def test_final_runs_are_in_no_fold_and_no_set_that_is_learned_from(rows):
    for row in rows:
        if row["final"]:
            assert row["fold"] is None and row["healthy_set"] in (None, "test")


def test_folds_hold_every_type_and_are_even(plan, rows):
    faults = {run["run_id"]: run["fault"] for run in plan if run["kind"] == "fault"}
    for partition in range(PARTITIONS):
        folds = defaultdict(list)
        for row in rows:
            if row["partition"] == partition and row["run_id"] in faults and not row["final"]:
                folds[row["fold"]].append(row)
        assert set(folds) == set(range(FOLDS))
        for found in folds.values():
            assert {faults[row["run_id"]] for row in found} == set(faults.values())
            assert len({row["seed_group"] for row in found}) in range(6, 10)


def test_partitions_differ_and_depend_on_the_seed_alone(plan, rows):
    folds = {
        partition: tuple(row["fold"] for row in rows if row["partition"] == partition)
        for partition in range(PARTITIONS)
    }
    assert len(set(folds.values())) == PARTITIONS
    assert split(list(reversed(plan))) == rows
    assert split(plan, seed=1) != rows


def test_varieties_are_spread_over_the_healthy_sets(plan, rows):
    variants = {run["run_id"]: run["variant"] for run in plan}
    first = [row for row in rows if row["partition"] == 0 and row["healthy_set"] is not None]
    counts = Counter(variants[row["run_id"]] for row in first)
    for name in ("profile", "calibration"):
        own = Counter(variants[row["run_id"]] for row in first if row["healthy_set"] == name)
        share = sum(own.values()) / len(first)
        assert all(abs(own[variant] - share * count) <= 4 for variant, count in counts.items()), own


def test_excluded_groups_are_left_out(plan):
    rows = split(plan, partitions=1, exclude={0, 50})
    assert {0, 50}.isdisjoint({row["seed_group"] for row in rows})


def test_a_tiny_campaign_has_fewer_folds(plan):
    some = [run for run in plan if run["seed_group"] in (0, 1, 48)]
    assert {row["fold"] for row in split(some, partitions=1)} <= {None, 0, 1}
