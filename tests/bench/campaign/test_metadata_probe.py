"""The probe scores chance on an honest data set, and finds a label that leaks."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from robustops.bench.campaign.dataset import build, load
from robustops.bench.campaign.metadata_probe import metadata_features, pooled_auroc, probe, timing_features
from robustops.bench.campaign.plan import planned
from robustops.errors import DatasetError
from tests.bench.campaign.synthetic import write_campaign

GROUPS = range(0, 48, 6)


def some_runs():
    """Eight whole seed groups with half of the types, and as many healthy groups again."""
    runs = [run for run in planned() if run.seed_group in GROUPS]
    return runs[::2] + [run for run in planned(["healthy"]) if 48 <= run.seed_group < 80]


def dataset_of(folder, runs, **options):
    build(write_campaign(folder / "campaign", runs, steps=2, **options), folder / "out", partial=True)
    return load(folder / "out")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return dataset_of(tmp_path_factory.mktemp("honest"), some_runs())


def test_an_honest_data_set_scores_chance(honest):
    found = probe(honest, permutations=49)
    assert not found.leaks and found.p_value > 0.05
    assert found.low <= 0.5 <= found.high
    assert found.runs == len(some_runs()) and 0 < found.faulty < found.runs
    assert sum(found.importances.values()) == pytest.approx(1) and json.dumps(found.report())


def test_a_label_in_the_run_id_is_found(tmp_path):
    def named(run):
        mark = "f" if run.kind == "fault" else "0"
        return dataclasses.replace(run, run_id=run.run_id[:5] + mark + run.run_id[6:])

    found = probe(dataset_of(tmp_path, [named(run) for run in some_runs()]), permutations=99)
    assert found.leaks and found.auroc > 0.8 and found.low > 0.5
    assert found.importances["run_id"] + found.importances["path"] > 0.5


def test_a_missing_column_is_found(tmp_path):
    def drop(run, step, numbers):
        if run.kind == "fault":
            numbers["vf_ev"] = 0.5

    found = probe(dataset_of(tmp_path, some_runs(), change=drop), permutations=99)
    assert found.leaks and found.auroc > 0.9


def test_telemetry_itself_is_no_metadata(tmp_path):
    """A fault that shouts in its numbers leaves the probe at chance."""

    def shout(run, step, numbers):
        if run.kind == "fault":
            numbers["reward_mean"] = 99.0

    folder = tmp_path
    found = probe(dataset_of(folder, some_runs(), change=shout), permutations=49)
    assert not found.leaks


def test_timing_is_apart(honest):
    assert not [name for name in metadata_features(honest) if "second" in name]
    assert set(timing_features(honest)) == {"timing:seconds", "timing:cpu_seconds"}
    assert not probe(honest, timing=True, permutations=9).leaks, "all runs took 12.5 s"


def test_auroc_by_hand():
    """Fold 0: 2 > 1 but not 3 (1 of 2 pairs); fold 1: a tie (half of 1). Scores of two folds do not meet."""
    scores = np.array([2.0, 1.0, 3.0, 9.0, 9.0])
    faulty = np.array([True, False, False, True, False])
    folds = np.array([0, 0, 0, 1, 1])
    assert pooled_auroc(scores, faulty, folds) == pytest.approx((1 + 0.5) / 3)
    assert np.isnan(pooled_auroc(scores, np.zeros(5, dtype=bool), folds))


def test_too_few_runs_are_refused(tmp_path):
    with pytest.raises(DatasetError, match="1 seed groups, 0 faulty, are too few"):
        probe(dataset_of(tmp_path, [run for run in planned(["healthy"]) if run.seed_group == 50]))
