"""Every quantity of a detector on six runs, counted by hand."""

from __future__ import annotations

import math

import pytest

from robustops.bench.evaluation.detection import compared, detection_rows
from robustops.bench.evaluation.judged import judged
from robustops.bench.evaluation.rows import Rows
from tests.bench.evaluation.hand import LABELS, STEPS, detected, draws

FIRST = {"h1": 0, "h2": 8, "f1": 6, "f2": 2, "f3": 0, "b1": 0}
SCORES = {"h1": 0.2, "h2": 1.5, "f1": 3.0, "f2": 2.0, "f3": 0.4, "b1": 5.0}


@pytest.fixture(scope="module")
def found():
    return judged([detected(FIRST, SCORES)], LABELS)


@pytest.fixture(scope="module")
def rows(found):
    return Rows(detection_rows(found, draws()))


def value(rows, metric, **wanted):
    row = rows.get(method="reward_z", tier="P", horizon=STEPS, metric=metric, **wanted)
    return row.estimate


def test_alarms_are_scores_above_all_calibration_runs(found):
    assert found.alarms[0.05].tolist() == [False, True, True, True, False, True]
    assert found.levels == {0.01: 0.05, 0.05: 0.05, 0.1: 0.1}


def test_rates(rows):
    assert value(rows, "false_alarms@5") == 0.5 and value(rows, "alarms_benign") == 1.0
    assert value(rows, "recall@5", difficulty="easy") == pytest.approx(2 / 3)
    assert value(rows, "recall@5", difficulty="easy", of="reward_spike") == 0.5
    assert value(rows, "recall@5", difficulty="easy", of="other mechanisms") == 0.0
    assert math.isnan(value(rows, "recall@5", difficulty="hard"))
    assert value(rows, "balanced_f1", difficulty="easy") == pytest.approx(2 * 2 / 3 / (2 / 3 + 0.5 + 1))


def test_the_area_counts_pairs(rows):
    """f1 and f2 above both healthy runs, f3 above h1 alone."""
    assert value(rows, "auroc", difficulty="easy") == pytest.approx(5 / 6)


def test_online_alarms_before_the_onset_are_false(found, rows):
    assert found.first.tolist() == [0, 8, 6, 2, 0, 0]
    assert value(rows, "online_recall", difficulty="easy") == pytest.approx(1 / 3)
    assert value(rows, "online_false_alarms") == 0.5
    # h1 10 steps, h2 8 with an alarm, f1 3 before its onset, f2 2 with an alarm, f3 5.
    assert value(rows, "false_alarms_1000_steps") == pytest.approx(2000 / (10 + 8 + 3 + 2 + 5))


def test_the_delay_is_from_the_onset_and_censored_where_there_is_no_alarm(rows):
    """f1 after 2 steps, f2 leaves at once, f3 is watched for 4: one of two has its alarm by step 2."""
    assert value(rows, "delay_median", difficulty="easy") == 2
    assert math.isnan(value(rows, "delay_q75", difficulty="easy"))


def test_without_a_false_alarm_the_bound_is_that_of_a_poisson_rate():
    quiet = judged([detected({**FIRST, "h2": 0, "f2": 5}, SCORES)], LABELS)
    row = Rows(detection_rows(quiet, draws())).get(
        method="reward_z", tier="P", horizon=STEPS, metric="false_alarms_1000_steps"
    )
    assert row.estimate == 0.0 and row.high == pytest.approx(1000 * 3.689 / (2 * STEPS), rel=1e-3)


def test_a_method_is_held_against_the_reference_on_the_same_runs(found):
    other = judged([detected(FIRST, {**SCORES, "f1": 0.1}, method="lof")], LABELS)
    rows = Rows(compared([found, other], "reward_z", draws(), "easy"))
    facts = {"method": "lof", "tier": "P", "horizon": STEPS, "difficulty": "easy"}
    assert rows.get(metric="recall_difference", **facts).estimate == pytest.approx(-1 / 3)
    assert rows.get(metric="mcnemar_p", **facts).estimate == 1.0  # one run of two to tell
    assert not list(compared([other], "reward_z", draws(), "easy"))


def test_scores_of_two_fits_are_not_compared():
    """The second fit's scores are all larger; within each, faulty runs are above healthy ones."""
    first = {"h1": 0.0, "h2": 0.1, "f1": 1.0, "f2": 1.0, "f3": 1.0, "b1": 0.0}
    parts = [detected(FIRST, first), detected(FIRST, {name: 100 + score for name, score in first.items()})]
    second = parts[1].unit.partition
    parts[1] = type(parts[1])(
        type(parts[1].unit)("reward_z", "P", STEPS, type(second)(1, *list(vars(second).values())[1:])),
        parts[1].meta,
        parts[1].arrays,
    )
    rows = Rows(detection_rows(judged(parts, LABELS), draws()))
    assert value(rows, "auroc", difficulty="easy") == 1.0
