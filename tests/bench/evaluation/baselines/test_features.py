"""The statistics by hand, against a slow version, and what is not observed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from robustops.bench.evaluation.baselines.features import (
    STATISTICS,
    RunFeatures,
    observed_columns,
    statistics,
)
from robustops.errors import ConfigError
from robustops.monitor.panel import Panel
from robustops.seeding import array_generator
from tests.bench.evaluation.panels import COLUMNS, healthy_panels


def slow(values):
    seen = [(t, v) for t, v in enumerate(values) if not math.isnan(v)]
    if not seen:
        return [math.nan] * 8
    times, own = np.array([t for t, _ in seen]), np.array([v for _, v in seen])
    slope = np.polyfit(times, own, 1)[0] if len(own) > 1 else 0.0
    ends = (own.min(), own.max(), own.max() - own.min(), own[0], own[-1])
    return [own.mean(), own.std(), *ends, slope]


def test_by_hand():
    assert statistics(np.array([[1.0], [2.0], [6.0]])).ravel().tolist() == pytest.approx(
        [3.0, math.sqrt(14 / 3), 1.0, 6.0, 5.0, 1.0, 6.0, 2.5]
    )


def test_against_the_slow_version_with_gaps():
    values = array_generator(0, "statistics").standard_normal((15, 6))
    values[3:9, 1], values[:14, 2], values[:, 3], values[0, 4] = np.nan, np.nan, np.nan, np.nan
    for row, column in zip(statistics(values).T, values.T, strict=True):
        assert row.tolist() == pytest.approx(slow(column), nan_ok=True)


def test_what_is_not_observed_is_no_evidence():
    panels = healthy_panels()
    features = RunFeatures()
    features.fit(panels)
    blind = Panel(panels[0].steps, {}, "blind")
    assert np.abs(features.transform(blind)).max() < 3.0


def test_a_standardised_profile_has_mean_0_and_deviation_1_and_flat_columns_keep_their_unit():
    panels = [Panel(p.steps, {**p.columns, "trunc_frac": np.zeros(len(p))}) for p in healthy_panels()]
    features = RunFeatures()
    values = features.fit(panels)
    assert values.shape == (24, 8 * 6) and np.allclose(values.mean(axis=0), 0)
    assert set(np.round(values.std(axis=0), 9)) <= {0.0, 1.0}
    odd = Panel(panels[0].steps, {**panels[0].columns, "trunc_frac": np.ones(20)})
    place = features.columns.index("trunc_frac") * len(STATISTICS)
    assert features.transform(odd)[place] == 1.0


def test_infinite_values_stay_finite():
    panels = healthy_panels()
    features = RunFeatures()
    features.fit(panels)
    exploded = Panel(panels[0].steps, {**panels[0].columns, "grad_norm": np.full(20, np.inf)})
    assert np.isfinite(features.transform(exploded)).all() and features.transform(exploded).max() > 100


def test_columns_that_half_of_the_runs_do_not_have_are_left_out():
    panels = healthy_panels(4)
    some = [Panel(p.steps, {**p.columns, "lr": np.ones(20)}) for p in panels[:1]] + panels[1:]
    assert set(observed_columns(some)) == set(COLUMNS)
    with pytest.raises(ConfigError, match="give two at least"):
        observed_columns(panels[:1])
    with pytest.raises(ConfigError, match="none of the 2 runs"):
        observed_columns([Panel(panels[0].steps)] * 2)
