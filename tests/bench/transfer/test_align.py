"""Alignment by healthy runs: what it keeps, and what it takes out."""

from __future__ import annotations

import numpy as np
import pytest

from robustops.bench.transfer.align import Alignment, common_columns
from robustops.errors import ConfigError
from robustops.monitor.panel import Panel
from tests.bench.transfer.drawn import COLUMNS, drawn_panel


def runs(first, count=20, **kind):
    return [drawn_panel(number, **kind) for number in range(first, first + count)]


def test_runs_of_the_same_kind_stay_what_they_are():
    known = runs(0)
    moved = Alignment.fit(known, known)(known[3])
    for name in COLUMNS:
        np.testing.assert_allclose(moved[name], known[3][name], rtol=1e-9)


def test_another_level_and_scale_are_taken_out():
    """A column of a linear scale, in another unit: the same runs come back."""
    known, new = runs(0), runs(0, shift=40.0, scale=7.0)
    alignment = Alignment.fit(known, new)
    np.testing.assert_allclose(alignment(new[5])["len_mean"], known[5]["len_mean"], rtol=1e-6)


def test_a_jump_is_as_many_deviations_afterwards():
    known, new = runs(0, 60), runs(100, 60, shift=40.0, scale=7.0)
    faulty = drawn_panel(300, "length_long", shift=40.0, scale=7.0)
    jump = Alignment.fit(known, new)(faulty)["len_mean"]
    size = jump[5:].mean() - jump[:5].mean()
    assert size == pytest.approx(0.5, rel=0.35)  # as drawn for the known kind; scales are estimated


def test_a_positive_column_moves_by_factors():
    known, new = runs(0), runs(0, scale=1000.0)
    np.testing.assert_allclose(
        Alignment.fit(known, new)(new[2])["grad_norm"], known[2]["grad_norm"], rtol=1e-3
    )


def test_what_is_not_observed_stays_so_and_foreign_columns_go():
    known, new = runs(0), runs(50)
    own = dict(new[0].columns) | {"turns_max": np.ones(16)}
    own["entropy"] = np.where(np.arange(16) == 4, np.nan, own["entropy"])
    moved = Alignment.fit(known, new)(Panel(new[0].steps, own, "one"))
    assert np.isnan(moved["entropy"]).tolist() == [at == 4 for at in range(16)]
    assert "turns_max" not in moved.columns


def test_settings_are_moved_as_factors():
    def with_rate(panel, rate):
        return Panel(panel.steps, {**panel.columns, "lr": np.full(len(panel), rate)}, "")

    known = [with_rate(panel, 3e-4) for panel in runs(0)]
    new = [with_rate(panel, 1e-6) for panel in runs(50)]
    moved = Alignment.fit(known, new)(with_rate(new[0], 2e-6))
    np.testing.assert_allclose(moved["lr"], 6e-4, rtol=2e-3)


def test_columns_that_one_side_lacks_are_not_common():
    known, new = runs(0, 4), [panel.only(COLUMNS[:2]) for panel in runs(50, 4)]
    assert set(common_columns(known, new)) == set(COLUMNS[:2])
    with pytest.raises(ConfigError, match="in common"):
        common_columns(known, [panel.only(()) for panel in new])


def test_two_healthy_runs_have_no_scale():
    with pytest.raises(ConfigError, match="healthy runs"):
        Alignment.fit(runs(0), runs(50, 2))
