"""What the figures show, and, where matplotlib is installed, that they are drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from robustops.bench.campaign.dataset import build, load
from robustops.bench.campaign.figures import draw, healthy_band, heat_map, representatives
from robustops.bench.campaign.plan import planned
from robustops.bench.run_faults.catalog import CATALOG
from robustops.monitor import schema
from tests.bench.campaign.synthetic import write_campaign

STEPS = 8


def louder(run, step, numbers):
    if run.kind == "fault" and step >= run.onset:
        numbers["reward_mean"] += 1.0 if run.difficulty == "easy" else 0.1
        numbers["ratio_mean"] += math.nan if run.fault == "empty_response" else 1.0


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    runs = [run for run in planned(None, 6) if run.mode != "delayed"]
    build(write_campaign(folder / "c", runs, steps=STEPS, change=louder), folder / "out")
    return load(folder / "out")


def test_the_band_holds_the_healthy_runs_only(dataset):
    band = healthy_band(dataset, "reward_mean")
    values = np.stack(
        [dataset.series(r["run_id"], "reward_mean") for r in dataset.rows if r["kind"] == "healthy"]
    )
    assert values.shape == (6, STEPS) and np.allclose(band.middle, np.median(values, axis=0))
    assert np.allclose(band.low, np.percentile(values, 5, axis=0)) and (band.high <= values.max(axis=0)).all()


def test_one_easy_run_stands_for_each_family(dataset):
    chosen = representatives(dataset)
    families = [CATALOG[row["fault"]].family for row in chosen]
    assert families == list(dict.fromkeys(fault.family for fault in CATALOG.values()))
    assert {row["difficulty"] for row in chosen} == {"easy"}


def test_the_heat_map_has_portable_columns_first_and_none_that_nobody_saw(dataset):
    types, columns, values = heat_map(dataset, STEPS)
    assert types == list(CATALOG) and values.shape == (len(types), len(columns))
    tiers = [schema.quantity(name).tier for name in columns]
    assert tiers == sorted(tiers, reverse=True) and set(tiers) == {"P", "I"}
    assert "vf_loss" not in columns and "nan_count" not in columns
    assert (values[:, columns.index("reward_mean")] > 3).all()
    assert math.isnan(values[types.index("empty_response"), columns.index("ratio_mean")])


def test_they_are_drawn(dataset, tmp_path):
    pytest.importorskip("matplotlib")
    paths = draw(dataset, tmp_path)
    assert [path.name for path in paths] == ["observability.png", "fingerprints.png"]
    for path in paths:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG") and len(data) > 20_000
