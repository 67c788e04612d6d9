import math

import numpy as np
import pytest

from robustops.monitor.detect import statistics
from robustops.seeding import array_generator


def noise(steps: int = 30, signals: int = 3, holes: float = 0.2) -> np.ndarray:
    rng = array_generator(steps, "noise", signals)
    values = rng.standard_normal((steps, signals))
    values[rng.random((steps, signals)) < holes] = np.nan
    return values


def slow_scan(values: np.ndarray, length: int) -> np.ndarray:
    out = np.zeros(values.shape)
    for step in range(len(values)):
        wanted = step + 1 if length == 0 else length
        for signal in range(values.shape[1]):
            window = values[max(0, step + 1 - wanted) : step + 1, signal]
            seen = window[~np.isnan(window)]
            if len(seen) and 2 * len(seen) >= wanted:
                out[step, signal] = seen.sum() / math.sqrt(len(seen))
    return out


@pytest.mark.parametrize("length", [*statistics.WINDOWS, 50])
def test_scan_is_the_slow_one(length: int) -> None:
    assert np.allclose(statistics.scan(noise(), length), slow_scan(noise(), length))


def test_scan_by_hand() -> None:
    values = np.array([[3.0], [1.0], [np.nan], [-4.0]])
    assert statistics.scan(values, 1)[:, 0].tolist() == [3.0, 1.0, 0.0, -4.0]
    assert np.allclose(statistics.scan(values, 2)[:, 0], [3.0, 4 / math.sqrt(2), 1.0, -4.0])
    assert np.allclose(statistics.scan(values, 0)[:, 0], [3.0, 4 / math.sqrt(2), 4 / math.sqrt(2), 0.0])


def test_cusum_by_hand_and_a_missing_step_changes_nothing() -> None:
    upper, lower = statistics.cusum(np.array([[1.0], [np.nan], [2.0], [-3.0], [-3.0]]), drift=0.5)
    assert upper[:, 0].tolist() == [0.5, 0.5, 2.0, 0.0, 0.0]
    assert lower[:, 0].tolist() == [0.0, 0.0, 0.0, 2.5, 5.0]


def test_onset_is_where_the_rise_began() -> None:
    values = np.array([0.0, 0.2, -0.1, 2.0, 1.0, 3.0])
    assert statistics.onset(values) == statistics.onset(-values) == 3
    assert statistics.onset(np.zeros(4)) == 3
    assert statistics.onset(np.empty(0)) == 0
    assert statistics.onset(np.array([np.nan, 5.0, 5.0])) == 1


@pytest.mark.parametrize("length", [1, 5, 0])
def test_all_are_causal(length: int) -> None:
    values = noise()
    later = values.copy()
    later[20:] = 9.0
    for statistic in (lambda v: statistics.scan(v, length), lambda v: statistics.cusum(v)[0]):
        assert np.array_equal(statistic(values)[:20], statistic(later)[:20])
