"""Both ways of looking at a set, on runs whose answer is known."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from robustops.bench.evaluation.registry import chosen
from robustops.bench.transfer.scored import (
    AS_LEARNED,
    RECALIBRATED,
    Known,
    RunSet,
    cross_conformal,
    detected,
    diagnosed,
)
from robustops.errors import ConfigError
from robustops.monitor import schema
from robustops.seeding import array_generator
from tests.bench.transfer.drawn import MOVES, drawn_panel, drawn_set


def known():
    faulty = [(place, fault) for place in range(8) for fault in MOVES]
    return Known(
        [drawn_panel(number) for number in range(30)],
        [drawn_panel(number) for number in range(100, 130)],
        [drawn_panel(500 + place, fault) for place, fault in faulty],
        [fault for _, fault in faulty],
    )


def tested(**kind):
    return RunSet.of("itsm", "P", schema.names("P"), drawn_set(**kind), known())


def test_cross_conformal_p_values_by_hand():
    healthy = np.array([1.0, 2.0, 3.0])
    faulty = np.array([[4.0, 4.0, 4.0], [1.5, 1.5, 1.5], [2.0, 1.0, 3.0]])
    p_faulty, p_healthy = cross_conformal(healthy, faulty)
    # Above all three: 1/4. Above the first only: 3/4. By its own fit each: 1 < 2, 2 >= 1, 3 >= 3: 3/4.
    assert p_faulty.tolist() == [0.25, 0.75, 0.75]
    assert p_healthy.tolist() == [1.0, pytest.approx(2 / 3), pytest.approx(1 / 3)]


def test_cross_conformal_keeps_its_promise():
    """Of exchangeable scores, at most a share alpha of new runs has p <= alpha."""
    rng, alarms = array_generator(0, "scores"), []
    for _ in range(3000):
        scores = rng.standard_normal(20)
        p_faulty, _ = cross_conformal(scores[:-1], np.full((1, 19), scores[-1]))
        alarms.append(p_faulty[0] <= 0.05)
    assert np.mean(alarms) == pytest.approx(0.05, abs=0.015)


def test_another_level_is_a_fault_to_what_was_learned_and_none_after_calibration():
    by_basis = {one.basis: one for one in detected(chosen(["knn"])[0], known(), tested(shift=3.0), 0)}
    learned, again = by_basis[AS_LEARNED], by_basis[RECALIBRATED]
    assert learned.false_alarms.all()  # everything looks wrong
    assert again.false_alarms.sum() <= 1 and again.alarms.all() and again.won.mean() > 0.99
    assert again.level == 0.05 and again.p_faulty.min() == pytest.approx(1 / 21)


def test_runs_of_the_same_kind_are_told_apart_either_way():
    for one in detected(chosen(["knn"])[0], known(), tested(), 0):
        assert one.alarms.all() and one.false_alarms.mean() <= 0.2


def test_an_online_detector_says_when():
    (again,) = (
        one for one in detected(chosen(["own"])[0], known(), tested(), 0) if one.basis == RECALIBRATED
    )
    assert again.alarm_step is not None
    assert all(6 <= step <= 8 for step in again.alarm_step[again.alarm_step > 0])


def test_a_diagnoser_needs_alignment_where_levels_differ():
    by_basis = {
        one.basis: one
        for one in diagnosed(chosen(["svm_classifier"])[0], known(), tested(shift=3.0, scale=2.0), 0)
    }
    truth = [fault for _ in range(2) for fault in MOVES]
    assert list(by_basis[RECALIBRATED].said) == truth
    assert list(by_basis[AS_LEARNED].said) != truth


def test_few_healthy_runs_cannot_tell_five_percent():
    (again,) = (
        one
        for one in detected(chosen(["knn"])[0], known(), tested(healthy=9), 0)
        if one.basis == RECALIBRATED
    )
    assert again.level == pytest.approx(0.1) and again.p_faulty.min() == pytest.approx(0.1)


def test_a_set_without_enough_healthy_runs_is_refused():
    with pytest.raises(ConfigError, match=r"transfer\.healthy"):
        tested(healthy=7)


class Memory:
    """A detector that knows the runs it has learned from, and no others."""

    def fit(self, profile):
        self.known = {panel.source for panel in profile}

    def score(self, panel):
        return float(panel.source not in self.known)


def test_a_healthy_run_is_held_against_what_has_not_seen_it():
    by_heart = SimpleNamespace(name="memory", make=lambda seed: Memory())
    (again,) = (one for one in detected(by_heart, known(), tested(), 0) if one.basis == RECALIBRATED)
    assert (again.won == 0.5).all() and (again.p_faulty == 1.0).all()  # nobody is known
