import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.monitor.moments import deviation, mean, pearson, share

numbers = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30)


def test_by_hand():
    assert mean([1.0, 2.0, 6.0]) == 3.0 and deviation([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert pearson([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == pytest.approx(1.0)
    assert pearson([0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]) == 0.0
    assert pearson([1.0, 2.0], [5.0, 4.0]) == pytest.approx(-1.0)
    assert share(1, 4) == 0.25


def test_what_is_not_defined_is_nan_never_zero():
    for value in (
        mean([]),
        deviation([]),
        deviation([1.0]),
        pearson([], []),
        pearson([1.0], [1.0]),
        share(0, 0),
    ):
        assert math.isnan(value)
    assert math.isnan(pearson([0.9, 0.9, 0.9], [1.0, 2.0, 3.0])), "what does not vary goes with nothing"


def test_equal_values_have_no_deviation_at_all():
    assert deviation([0.9] * 3) == 0.0, "not the rounding of a mean"


@settings(deadline=None)
@given(numbers)
def test_mean_and_deviation_are_those_of_the_slow_version_in_any_order(values):
    assert mean(values) == mean(values[::-1]) and deviation(values) == deviation(values[::-1])
    assert mean(values) == pytest.approx(statistics.mean(values), abs=1e-9)
    assert deviation(values) == pytest.approx(statistics.stdev(values), rel=1e-9, abs=1e-9)
