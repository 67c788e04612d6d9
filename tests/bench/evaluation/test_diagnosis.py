"""Every quantity of a diagnoser on five runs, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from robustops.bench.evaluation.diagnosis import answers, calibration_error, diagnosis_rows
from robustops.bench.evaluation.judged import judged
from robustops.bench.evaluation.rows import Rows
from tests.bench.evaluation.hand import LABELS, STEPS, detected, diagnosed, draws

#: f1 and f3 are reward_spike, f2 is kl_explosion.
SAID = {
    "f1": "reward_spike",
    "f2": "kl_explosion",
    "f3": "update_freeze",
    "h1": "kl_explosion",
    "h2": "kl_explosion",
}
SCORES = {"h1": 0.2, "h2": 1.5, "f1": 3.0, "f2": 2.0, "f3": 4.0, "b1": 0.0}


def rows(done, scores=SCORES):
    gate = judged([detected({}, scores)], LABELS)
    return Rows(diagnosis_rows([done], LABELS, gate, draws()))


def value(found, metric, **wanted):
    wanted = {"difficulty": "easy", **wanted}
    return found.get(method="chance", tier="P", horizon=STEPS, metric=metric, **wanted).estimate


def test_given_the_fault():
    found = rows(diagnosed(SAID))
    assert value(found, "type_recall") == pytest.approx((0.5 + 1) / 2)
    assert value(found, "type_f1") == pytest.approx((2 / 3 + 1) / 2)
    # Families: reward 1 of 2; optimisation is kl_explosion, found, and the freeze that it was not.
    assert value(found, "family_f1") == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert value(found, "type_f1", of="reward") == pytest.approx(2 / 3)
    assert value(found, "top_3") == 1.0


def test_end_to_end_counts_missed_runs_and_false_alarms():
    """h2 has a false alarm, and is taken for kl_explosion; with f2 missed, too, that type is never right."""
    found = rows(diagnosed(SAID))
    assert value(found, "end_to_end_type_f1") == pytest.approx((2 / 3 + 2 / 3) / 2)
    missed = rows(diagnosed(SAID), {**SCORES, "f2": 0.1})
    assert value(missed, "end_to_end_type_f1") == pytest.approx((2 / 3 + 0) / 2)
    assert value(missed, "type_f1") == value(found, "type_f1")


def test_calibration_error_by_hand():
    """Sure by 0.6 of three answers, of which two are right."""
    found = answers([diagnosed(SAID)], LABELS)
    assert calibration_error(found, found.places("easy")) == pytest.approx(2 / 3 - 0.6)


def test_a_type_that_was_left_out_is_told_by_its_novelty():
    done = diagnosed(SAID)
    done.arrays["left_out"] = np.array(["kl_explosion"])
    done.arrays["novelty"] = np.array([[0.2, 0.9, 0.9]])
    assert value(rows(done), "open_set_auroc", difficulty="") == 0.75


def test_learned_from_main_mechanisms_alone():
    done = diagnosed(SAID)
    done.arrays["from_main"] = done.arrays["probabilities"]
    found = rows(done)
    assert value(found, "from_main_type_f1", of="main mechanism") == 1.0  # f1, f2
    assert value(found, "from_main_type_f1", of="other mechanisms") == 0.0  # f3
