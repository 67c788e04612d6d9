import math

import numpy as np
import pytest

from robustops.monitor.detect.tails import Tails
from robustops.seeding import array_generator


def test_surprise_is_minus_log_of_the_share_of_healthy_runs() -> None:
    maxima = 3 + array_generator(0, "tails").exponential(0.5, (2000, 1))
    tails = Tails.fit(maxima)
    for share in (0.2, 0.05, 0.01):
        value = np.quantile(maxima, 1 - share)
        assert tails.surprise(np.array([value]))[0] == pytest.approx(-math.log(share), abs=0.4)


def test_surprise_rises_and_is_never_negative() -> None:
    tails = Tails.fit(array_generator(1, "tails").normal(3, 0.5, (40, 2)))
    found = tails.surprise(np.linspace(-10, 20, 50)[:, None] * np.ones(2))
    assert (found >= 0).all()
    assert (np.diff(found, axis=0) >= 0).all()


def test_a_wild_statistic_surprises_less_and_a_constant_one_has_a_scale() -> None:
    rng = array_generator(2, "tails")
    maxima = np.stack([3 + rng.exponential(0.4, 60), 3 + rng.exponential(4.0, 60), np.zeros(60)], axis=1)
    calm, wild, constant = Tails.fit(maxima).surprise(np.full(3, 9.0))
    assert wild < calm / 3
    assert calm > 10
    assert 10 < constant < 100


def test_it_survives_json() -> None:
    tails = Tails.fit(np.arange(12.0).reshape(6, 2))
    again = Tails.from_dict(tails.to_dict())
    assert np.array_equal(again.start, tails.start)
    assert np.array_equal(again.scale, tails.scale)
