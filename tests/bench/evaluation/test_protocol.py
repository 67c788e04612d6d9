"""Conformal thresholds: counted by hand, and what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from robustops.bench.evaluation.protocol import conformal_threshold, first_alarms
from robustops.seeding import array_generator


def p_value(scores, score):
    return (1 + sum(other >= score for other in scores)) / (len(scores) + 1)


@pytest.mark.parametrize("rate", [0.02, 0.05, 0.1, 0.34])
def test_an_alarm_is_a_small_p_value(rate):
    scores = array_generator(0, "scores").integers(0, 30, 59).astype(float)
    found = conformal_threshold(scores, rate)
    for score in np.arange(-1.0, 32.0, 0.5):
        assert (score > found.value) == (p_value(scores, score) <= rate + 1e-12)


def test_nineteen_runs_are_the_fewest_for_five_percent():
    assert conformal_threshold(np.arange(19.0), 0.05) == (18.0, 0.05) or conformal_threshold(
        np.arange(19.0), 0.05
    ).level == pytest.approx(0.05)
    few = conformal_threshold(np.arange(9.0), 0.05)
    assert few.value == 8.0 and few.level == pytest.approx(0.1)  # the lowest that nine runs allow


def test_the_false_alarm_rate_is_bounded():
    rng = array_generator(1, "draws")
    alarms = []
    for _ in range(4000):
        scores = rng.standard_normal(40)
        alarms.append(scores[-1] > conformal_threshold(scores[:-1], 0.1).value)
    assert np.mean(alarms) == pytest.approx(0.1, abs=0.015)


def test_scores_that_are_all_equal_never_alarm():
    assert not conformal_threshold(np.zeros(50), 0.1).value < 0.0
    assert not -math.inf > conformal_threshold(np.full(50, -math.inf), 0.1).value


def test_the_first_alarm_is_the_first_step_above():
    steps = np.array([[0.0, 2.0, 3.0], [0.0, 1.0, 1.0], [-np.inf, -np.inf, 9.0]])
    assert first_alarms(steps, 1.0).tolist() == [1, -1, 2]
