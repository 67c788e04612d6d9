import numpy as np

from robustops.monitor.detect import robust
from robustops.seeding import array_generator


def test_median_and_deviation_pass_over_what_was_not_observed() -> None:
    values = np.array([[[1.0, np.nan]], [[3.0, np.nan]], [[np.nan, np.nan]]])
    assert robust.median(values).tolist() == [[2.0, 0.0]]
    assert np.allclose(robust.deviation(values), [[np.sqrt(5), 0.0]])


def test_smoothing_keeps_a_straight_line() -> None:
    line = np.arange(7.0)[:, None] * 2 + 1
    assert np.allclose(robust.smooth(line, 5), line)
    assert robust.smooth(np.array([[0.0], [0.0], [5.0], [0.0], [0.0]]), 5)[2] == 1.0


def test_ridge_is_least_squares_for_no_penalty() -> None:
    rng = array_generator(0, "ridge")
    rows = rng.standard_normal((50, 3))
    targets = rows @ np.array([[1.0, 0.0], [2.0, 0.0], [0.0, -1.0]]) + 0.1 * rng.standard_normal((50, 2))
    expected = np.linalg.lstsq(rows, targets, rcond=None)[0]
    assert np.allclose(robust.ridge(rows, targets, 0.0), expected)
    assert np.abs(robust.ridge(rows, targets, 1e6)).max() < 1e-3


def test_ridge_is_not_bent_by_a_single_value_and_passes_over_nan() -> None:
    rng = array_generator(1, "ridge")
    rows = rng.standard_normal((100, 1))
    targets = 2 * rows + 0.1 * rng.standard_normal((100, 1))
    clean = robust.ridge(rows, targets, 0.0)
    targets[0], targets[1] = 1e9, np.nan
    assert abs(robust.ridge(rows, targets, 0.0) - clean).max() < 0.3
    assert robust.ridge(rows, np.full((100, 1), np.nan), 0.0).tolist() == [[0.0]]
