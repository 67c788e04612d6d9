from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustops.bench.campaign.effects import (
    FLOORS,
    change_of,
    paired_effect,
    unit_of,
    window_mean,
)
from robustops.bench.run_faults.catalog import all_mechanisms
from robustops.errors import ConfigError
from robustops.monitor.schema import names

NAN = math.nan


def rows(*values: float, column: str = "x") -> list[dict[str, float]]:
    return [{column: value} for value in values]


def slow_effect(direction, faulty, controls, healthy, onset):
    """The definition, with numpy."""
    means = np.array([np.nanmean([r["x"] for r in run[onset - 1 :]]) for run in healthy])
    paired = [
        np.nanmean([r["x"] for r in run[onset - 1 :]]) - np.nanmean([r["x"] for r in other[onset - 1 :]])
        for run, other in zip(faulty, controls, strict=True)
    ]
    unit = np.std(means, ddof=1)
    return direction * np.mean(paired) / unit, np.std(paired, ddof=1) / math.sqrt(len(paired)) / unit


def test_an_effect_by_hand():
    healthy = [rows(9, 1, 1), rows(9, 2, 4), rows(9, 5, 5)]  # means from step 2 on: 1, 3, 5; deviation 2
    faulty = [rows(9, 3, 5), rows(9, 9, 9)]  # 4 and 9, against 1 and 3
    unit = unit_of("x", healthy, onset=2)
    changes = [change_of("x", *pair, onset=2) for pair in zip(faulty, healthy[:2], strict=True)]
    found = paired_effect("x", 1, changes, unit)
    assert unit == 2.0 and changes == [3.0, 6.0]
    assert (found.d, found.change, found.pairs) == (2.25, 4.5, 2)
    assert found.error == pytest.approx(math.sqrt(4.5) / math.sqrt(2) / 2)
    assert paired_effect("x", -1, changes, unit).d == -2.25


@given(st.integers(2, 6), st.integers(1, 8), st.integers(0, 10_000), st.sampled_from([1, -1]))
def test_an_effect_is_that_of_the_slow_definition(count, onset, seed, direction):
    rng = np.random.default_rng(seed)
    made = [[rows(*rng.normal(size=8)) for _ in range(count)] for _ in range(2)]
    healthy, faulty = made
    changes = [change_of("x", *pair, onset) for pair in zip(faulty, healthy, strict=True)]
    found = paired_effect("x", direction, changes, unit_of("x", healthy, onset))
    assert (found.d, found.error) == pytest.approx(slow_effect(direction, faulty, healthy, healthy, onset))


def test_what_was_not_observed_takes_no_part():
    assert window_mean(rows(1, NAN, 3), "x", onset=1) == 2.0
    assert math.isnan(window_mean(rows(1, NAN, NAN), "x", onset=2))
    assert window_mean(rows(1, 2, 3, 4), "x", onset=2, end=4) == 2.5, "end is the first step left out"
    assert (
        math.isnan(paired_effect("x", 1, [2.0, NAN], 1.0).error)
        and paired_effect("x", 1, [2.0, NAN], 1.0).d == 2
    )
    with pytest.raises(ConfigError, match="choose a quantity that the fault leaves"):
        paired_effect("x", 1, [NAN], 1.0)


def test_a_column_that_never_varies_has_its_floor_or_none():
    flat = [rows(0, 0, column="empty_frac")] * 3
    assert unit_of("empty_frac", flat, 1) == FLOORS["empty_frac"] > 0
    wide = [rows(v, v, column="empty_frac") for v in (0.0, 0.5, 1.0)]
    assert unit_of("empty_frac", wide, 1) == 0.5
    with pytest.raises(ConfigError, match="give it a floor"):
        unit_of("x", [rows(1, 1)] * 3, 1)
    with pytest.raises(ConfigError, match="1 healthy runs observed 'x'; give at least two"):
        unit_of("x", [rows(1, 1)], 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: window_mean(rows(1), "y", 1), "no column 'y'"),
        (lambda: window_mean(rows(1), "x", 2), "no step from 2 on in 1 rows"),
        (lambda: window_mean(rows(1), "x", 0), "give an onset from 1 to 1"),
        (lambda: paired_effect("x", 0, [1.0], 1.0), "direction of 'x' is 0"),
    ],
)
def test_what_has_no_effect_size_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_every_mechanism_declares_a_column_that_every_source_here_observes():
    for _, info in all_mechanisms():
        assert info.quantity in names() and info.direction in (1, -1), info.name
    assert set(FLOORS) <= set(names()) and all(floor > 0 for floor in FLOORS.values())
