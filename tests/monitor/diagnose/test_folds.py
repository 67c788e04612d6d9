"""Runs that began alike stay together."""

import numpy as np

from robustops.monitor.diagnose.folds import beginnings, deal
from robustops.monitor.panel import Panel
from tests.monitor.detect.runs import run
from tests.monitor.diagnose.faulty import faulty


def test_runs_of_a_seed_are_recognised_whatever_happens_later() -> None:
    panels = [
        faulty("reward_spike", 1),
        faulty("kl_explosion", 1, start=1),
        faulty("reward_spike", 2),
        run(1),
    ]
    first, second, other, healthy = beginnings(panels)
    assert first == second == healthy != other


def test_order_of_columns_and_nan_do_not_matter() -> None:
    panel = Panel(np.array([1, 2]), {"entropy": np.array([np.nan, 1.0]), "len_mean": np.array([0.0, 1.0])})
    turned = Panel(np.array([1, 2]), {"len_mean": np.array([-0.0, 2.0]), "entropy": np.array([np.nan, 3.0])})
    assert len(set(beginnings([panel, turned]))) == 1


def test_groups_stay_whole_and_folds_even() -> None:
    groups = np.repeat(np.arange(20), 3)
    folds = deal(groups, 4)
    assert all(len(set(folds[groups == group])) == 1 for group in range(20))
    assert np.bincount(folds).tolist() == [15, 15, 15, 15]


def test_fewer_groups_than_folds() -> None:
    assert set(deal(np.array([7, 7, 3]), 5).tolist()) == {0, 1}


def test_seed_decides_the_deal() -> None:
    groups = np.arange(30)
    assert deal(groups, 5, 1).tolist() == deal(groups, 5, 1).tolist() != deal(groups, 5, 2).tolist()
