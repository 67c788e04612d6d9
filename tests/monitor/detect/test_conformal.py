import math

import numpy as np
import pytest

from robustops.errors import ConfigError
from robustops.monitor.detect.conformal import Calibration, least_runs
from robustops.seeding import array_generator


def test_p_values_by_hand() -> None:
    calibration = Calibration.of([3.0, 1.0, 2.0, 2.0])
    assert [calibration.p_value(score) for score in (4.0, 3.0, 2.0, 0.0, -math.inf)] == [
        1 / 5,
        2 / 5,
        4 / 5,
        1.0,
        1.0,
    ]


def test_the_threshold_is_crossed_exactly_where_p_is_at_most_alpha() -> None:
    rng = array_generator(0, "conformal")
    for count in (5, 19, 20, 50, 99):
        scores = rng.integers(0, 30, count).astype(float)
        calibration = Calibration.of(scores)
        for alpha in (0.01, 0.05, 0.1, 0.5):
            limit = calibration.threshold(alpha)
            for score in np.arange(-1, 32, 0.5):
                assert (score > limit) == (calibration.p_value(score) <= alpha + 1e-12)


def test_too_few_runs_give_no_alarm_at_all() -> None:
    assert [least_runs(alpha) for alpha in (0.5, 0.1, 0.05, 0.01)] == [1, 9, 19, 99]
    for alpha in (0.5, 0.1, 0.05, 0.01):
        enough = least_runs(alpha)
        assert math.isfinite(Calibration.of(range(enough)).threshold(alpha))
        if enough > 1:
            assert math.isinf(Calibration.of(range(enough - 1)).threshold(alpha))


def test_a_healthy_run_alarms_at_the_promised_rate_however_scores_are_distributed() -> None:
    rng = array_generator(1, "conformal")
    alarms = 0
    for _ in range(3000):
        scores = rng.standard_cauchy(40)
        alarms += Calibration.of(scores[:39]).p_value(scores[39]) <= 0.05
    assert alarms / 3000 == pytest.approx(0.05, abs=0.012)


def test_online_the_p_value_never_rises_and_alarms_are_those_of_the_largest_score() -> None:
    calibration = Calibration.of(np.arange(19.0))
    steps = np.array([1.0, 5.0, 30.0, 2.0])
    found = calibration.p_values(steps)
    assert (np.diff(found) <= 0).all()
    assert found[-1] == calibration.p_value(30.0)
    assert calibration.first_alarm(steps, 0.05) == 2
    assert calibration.first_alarm(steps[:2], 0.05) is None
    assert calibration.p_values(np.empty(0)).shape == (0,)


def test_the_bound_on_the_rate_is_that_of_a_beta_distribution() -> None:
    # One of 19 runs is above: the rate is the least of 19 uniform numbers, P(rate > x) = (1 - x)^19.
    bound = Calibration.of(range(19)).rate_bound(0.05)
    assert (1 - bound) ** 19 == pytest.approx(0.05, rel=1e-6)
    assert Calibration.of(range(200)).rate_bound(0.05) < 0.09
    assert Calibration.of(range(5)).rate_bound(0.05) == 0.0


def test_wrong_requests_say_so(tmp_path) -> None:
    with pytest.raises(ConfigError, match="0 calibration scores"):
        Calibration.of([])
    with pytest.raises(ConfigError, match="1 of them NaN"):
        Calibration.of([1.0, math.nan])
    with pytest.raises(ConfigError, match="between 0 and 1"):
        Calibration.of([1.0]).threshold(1.0)
    with pytest.raises(ConfigError, match="NaN"):
        Calibration.of([1.0]).p_value(math.nan)
    Calibration.of([2.0, -math.inf]).save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json").scores.tolist() == [-math.inf, 2.0]
