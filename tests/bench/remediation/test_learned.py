"""A judge from a detector and diagnosers of which the test knows what they say."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from robustops.bench.evaluation.protocol import partitions
from robustops.bench.evaluation.runs import Runs
from robustops.bench.remediation.learned import Learned, learn
from robustops.monitor.detect.conformal import Calibration
from robustops.monitor.panel import Panel
from robustops.monitor.verdict import UNKNOWN
from tests.bench.evaluation.small import small_dataset


class Largest:
    """The largest reward is the score."""

    name = "largest"

    def fit(self, profile):
        raise AssertionError("it is fitted")

    def score(self, panel):
        return float(panel["reward_mean"].max(initial=-np.inf))


class Says:
    def __init__(self, **probabilities):
        self.said = probabilities

    def probabilities(self, panel):
        return self.said


def panel(*rewards):
    return Panel(np.arange(1, len(rewards) + 1), {"reward_mean": np.array(rewards, dtype=float)})


def judge(**by_length):
    calibration = Calibration.of(np.linspace(0, 1, 39))
    return Learned(Largest(), calibration, {int(n[1:]): said for n, said in by_length.items()})


def test_the_p_value_is_that_of_the_calibration_runs():
    healthy, anomalous = judge()(panel(0.5, 0.2)), judge()(panel(0.5, 2.0))
    assert (healthy.verdict, healthy.p_value) == ("healthy", pytest.approx(21 / 40))
    assert (anomalous.verdict, anomalous.p_value) == ("anomalous", pytest.approx(1 / 40))
    assert healthy.severity < 0.5 < anomalous.severity


def test_without_a_better_word_the_onset_is_the_first_alarm():
    assert judge()(panel(0.5, 0.5, 2.0, 0.5)).onset == 3


def test_types_about_as_likely_as_the_likeliest_are_in_the_set():
    said = Says(reward_spike=0.5, kl_explosion=0.3, length_long=0.2)
    verdict = judge(n4=said)(panel(2.0))
    assert list(verdict.labels) == ["reward_spike", "kl_explosion"]
    assert (verdict.type, verdict.family) == ("reward_spike", "reward")


def test_what_is_likelier_none_of_them_is_unknown():
    verdict = judge(n4=Says(reward_spike=0.4, **{UNKNOWN: 0.6}))(panel(2.0))
    assert (verdict.type, verdict.family, verdict.labels) == (UNKNOWN, UNKNOWN, {})
    assert judge()(panel(2.0)).type == UNKNOWN


def test_it_asks_who_has_learned_from_so_many_steps():
    both = {"n2": Says(reward_spike=1.0), "n4": Says(kl_explosion=1.0)}
    assert [judge(**both)(panel(*[2.0] * n)).type for n in (1, 2, 3, 9)] == [
        *["reward_spike"] * 2,
        *["kl_explosion"] * 2,
    ]


def test_of_what_nothing_is_known_nothing_is_said():
    assert judge()(panel()).verdict == "not_observed"


@pytest.mark.slow
def test_on_a_small_campaign_visible_faults_are_graver_and_it_can_be_sent(tmp_path):
    runs = Runs.read(small_dataset(tmp_path))
    (partition,) = partitions(runs.dataset.splits.to_pylist(), runs.labels, 1)
    fold = partition.folds[0]
    found = pickle.loads(pickle.dumps(learn(runs, partition, fold, 0)))
    easy = [name for name in fold.test if runs.labels[name].difficulty == "easy"]
    severities = [found.severity(runs.panel(name, 40, "P+I")) for name in easy]
    healthy = [found.severity(runs.panel(name, 40, "P+I")) for name in fold.healthy]
    assert severities and np.median(healthy) < min(severities)
    assert set(found.diagnosers) == {10, 15, 20, 30, 40}
