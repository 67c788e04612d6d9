"""Paired effects of a campaign whose numbers are known, beside a slow version and by hand."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from robustops.bench.campaign.dataset import build, load
from robustops.bench.campaign.effects import FLOORS, change_of, unit_of
from robustops.bench.campaign.fingerprints import fingerprints, primary_effects
from robustops.bench.campaign.plan import planned
from robustops.bench.run_faults.catalog import all_mechanisms
from robustops.errors import DatasetError
from tests.bench.campaign.synthetic import write_campaign

STEPS = 16


def shifted(run, step, numbers):
    """A fault adds 3 to the largest reward from its onset on, and takes the answer's length away."""
    numbers["reward_max"] += 0.001 * run.seed_group + 3.0 * (run.kind == "fault" and step >= run.onset)
    if run.kind == "fault" and step >= run.onset:
        numbers["len_mean"] = math.nan
        numbers["policy_lag_mean"] = 2.0
    else:
        numbers["policy_lag_mean"] = 0.0


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fingerprints")
    runs = planned(["reward_spike", "empty_response"], 3)
    build(write_campaign(folder / "campaign", runs, steps=STEPS, change=shifted), folder / "out")
    return load(folder / "out")


def metrics(dataset, run_id):
    columns = {n: dataset.series(run_id, n) for n in ("reward_max", "entropy", "grad_norm")}
    return [{n: float(v[step]) for n, v in columns.items()} for step in range(STEPS)]


@pytest.mark.parametrize("horizon", [15, STEPS])
def test_effects_are_those_of_the_slow_version(dataset, horizon):
    prints = fingerprints(dataset, horizon)
    healthy = [metrics(dataset, row["run_id"]) for row in dataset.rows if row["kind"] == "healthy"]
    assert len(prints.run_ids) == 6 and prints.z.shape == (6, len(prints.columns))
    for run_id in prints.run_ids:
        onset, control = dataset.by_id[run_id]["onset"], metrics(dataset, dataset.control(run_id))
        for column in ("reward_max", "entropy", "grad_norm"):
            change = change_of(column, metrics(dataset, run_id), control, onset, horizon + 1)
            slow = change / unit_of(column, healthy, onset, horizon + 1)
            assert prints.of([run_id], column)[0] == pytest.approx(slow, rel=1e-9, abs=1e-9)


def test_effects_by_hand(dataset):
    """3 over the deviation of three controls; a lag of 2 over its floor of 1; nothing seen is NaN."""
    prints = fingerprints(dataset, STEPS)
    for run_id in prints.run_ids:
        onset = dataset.by_id[run_id]["onset"]
        means = [
            statistics.fmean(dataset.series(row["run_id"], "reward_max")[onset - 1 :])
            for row in dataset.rows
            if row["kind"] == "healthy"
        ]
        expected = 3.0 / statistics.stdev(means)
        assert prints.of([run_id], "reward_max")[0] == pytest.approx(expected, rel=1e-4)
        assert FLOORS["policy_lag_mean"] == 1.0 and prints.of([run_id], "policy_lag_mean")[0] == 2.0
        assert math.isnan(prints.of([run_id], "len_mean")[0]) and math.isnan(prints.of([run_id], "vf_ev")[0])
        assert prints.of([run_id], "nan_count")[0] == 0.0, "nothing moved, nothing varies"


def test_the_primary_effect_is_on_the_mechanisms_own_column(dataset):
    prints = fingerprints(dataset, STEPS)
    effects = primary_effects(dataset, prints)
    infos = {info.name: info for _, info in all_mechanisms()}
    for run_id, effect in effects.items():
        info = infos[dataset.by_id[run_id]["mechanism"]]
        expected = info.direction * prints.of([run_id], info.quantity)[0]
        assert effect == pytest.approx(expected, nan_ok=True)
    assert set(effects) == set(prints.run_ids)


def test_a_fault_that_sets_in_later_has_no_effect_yet(dataset):
    onsets = {row["run_id"]: row["onset"] for row in dataset.rows if row["kind"] == "fault"}
    least = min(onsets.values())
    assert set(fingerprints(dataset, least).run_ids) == {n for n, onset in onsets.items() if onset == least}
    with pytest.raises(DatasetError, match="no faulty run with a control that begins by step 1"):
        fingerprints(dataset, 1)


def test_a_column_that_moves_though_healthy_runs_agree_is_infinite(dataset):
    z = fingerprints(dataset, STEPS).z
    assert np.isfinite(z[~np.isnan(z)]).all()
