import numpy as np
import pytest

from robustops.monitor.symptoms.finding import fact, lasts, seen, streak
from tests.monitor.runs import healthy_panel


def slow_streak(holds, observed, rows):
    """Every window of observed rows, from the first on."""
    places = [place for place, flag in enumerate(observed) if flag]
    for start in range(len(places) - rows + 1):
        window = places[start : start + rows]
        if all(holds[place] for place in window):
            return window[0]
    return None


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_a_streak_is_the_first_window_of_observed_rows(rows: int):
    random = np.random.default_rng(rows)
    for _ in range(200):
        holds, observed = random.random((2, 12)) < 0.6
        assert streak(holds, observed, rows) == slow_streak(holds, observed, rows)


def test_what_lasts_holds_at_most_of_the_last_observed_rows():
    every = np.ones(8, bool)
    assert lasts(np.array([0, 0, 0, 1, 1, 0, 1, 1], bool), every)
    assert not lasts(np.array([1, 1, 1, 1, 1, 0, 0, 0], bool), every)
    assert lasts(np.array([0, 0, 0, 1, 1, 1, 0, 0], bool), np.array([1, 1, 1, 1, 1, 1, 0, 0], bool))
    assert not lasts(every, ~every)


def test_a_fact_names_its_rule_value_and_step():
    panel = healthy_panel(entropy=np.full(40, 6.0))
    found = fact(panel, 3, "entropy", "text", "entropy", 0.9, {"kl_explosion": 1.0}, (0.0, 5.0))
    assert (found.evidence.step, found.evidence.value, found.evidence.high) == (4, 6.0, 5.0)
    assert found.exact and found.evidence.score == np.inf and found.rule == "entropy/entropy"
    assert seen(np.array([1.0, np.nan, np.inf])).tolist() == [True, False, True]
