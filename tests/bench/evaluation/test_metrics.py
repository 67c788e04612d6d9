"""Numbers worked out by hand, and slow versions of what is vectorised."""

from __future__ import annotations

import math

import numpy as np
import pytest

from robustops.bench.evaluation.metrics import (
    alarm_rate,
    auroc,
    class_scores,
    confusion,
    delay_quantile,
    f1,
    macro,
    precision,
    share,
)
from robustops.bench.evaluation.resampling import (
    Draws,
    divided,
    draw_groups,
    holm,
    interval,
    mcnemar,
    share_interval,
)
from robustops.seeding import array_generator

ONE = np.ones(1)


def plain(*groups: int) -> Draws:
    """The sample itself and nothing else."""
    return Draws({group: place for place, group in enumerate(groups)}, np.ones((1, len(groups))))


def slow_auroc(faulty, healthy):
    pairs = [(1.0 if a > b else 0.5 if a == b else 0.0) for a in faulty for b in healthy]
    return sum(pairs) / len(pairs)


def test_auroc_counts_pairs_ties_half():
    faulty, healthy = np.array([3.0, 1.0, math.inf]), np.array([1.0, 0.0, -math.inf])
    found = auroc(plain(1, 2), [1, 1, 2], faulty, [1, 2, 2], healthy)
    assert found.tolist() == [pytest.approx(slow_auroc(faulty, healthy))] == [pytest.approx(8.5 / 9)]


def test_auroc_of_a_draw_is_that_of_its_runs_repeated():
    rng = array_generator(0, "auroc")
    groups_f, groups_h = rng.integers(0, 6, 30).tolist(), rng.integers(0, 6, 20).tolist()
    faulty, healthy = rng.integers(0, 9, 30).astype(float), rng.integers(0, 7, 20).astype(float)
    draws = draw_groups(dict.fromkeys(range(6), "all"), seed=3, draws=20)
    found = auroc(draws, groups_f, faulty, groups_h, healthy)
    for row, weights in enumerate(draws.weights.astype(int)):
        own_f = [s for s, g in zip(faulty, groups_f, strict=True) for _ in range(weights[g])]
        own_h = [s for s, g in zip(healthy, groups_h, strict=True) for _ in range(weights[g])]
        assert found[row] == pytest.approx(slow_auroc(own_f, own_h))


def test_an_alarm_for_every_run_has_the_f1_that_prevalence_gives():
    assert f1(ONE, ONE)[0] == pytest.approx(2 / 3)
    assert f1(ONE, ONE, 320, 11)[0] == pytest.approx(0.9831, abs=1e-4)
    assert f1(ONE, ONE, 448, 11)[0] == pytest.approx(0.9879, abs=1e-4)


def test_f1_of_the_papers_own_row():
    """Table VI: precision 99.60, recall 78.75, F1 87.96 is one false alarm in 11 healthy runs."""
    recall, alarms = 0.7875 * ONE, ONE / 11
    assert precision(recall, alarms, 320, 11)[0] == pytest.approx(0.9960, abs=1e-4)
    assert f1(recall, alarms, 320, 11)[0] == pytest.approx(0.8796, abs=1e-4)


def test_f1_is_the_harmonic_mean():
    recall, alarms = np.array([0.6]), np.array([0.2])
    exact = precision(recall, alarms, 3, 5)
    assert f1(recall, alarms, 3, 5)[0] == pytest.approx(2 * exact[0] * 0.6 / (exact[0] + 0.6))


def test_shares_are_weighted_by_the_drawn_groups():
    draws = Draws({7: 0, 9: 1}, np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]]))
    assert share(draws, [7, 7, 9], np.array([1.0, 0.0, 1.0])).tolist() == pytest.approx([2 / 3, 0.5, 1.0])
    assert math.isnan(share(draws, [9], np.array([1.0]))[1])


def test_macro_f1_by_hand():
    truth = ["a", "a", "a", "b", "b"]
    said = ["a", "a", "b", "b", "none"]
    counts = confusion(plain(0), [0] * 5, truth, said, ["a", "b", "none"])
    exact, recall, scores = class_scores(counts, [0, 1])
    assert exact[0].tolist() == pytest.approx([1.0, 0.5])
    assert recall[0].tolist() == pytest.approx([2 / 3, 0.5])
    assert macro(scores)[0] == pytest.approx((0.8 + 0.5) / 2)


def test_macro_f1_equals_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = array_generator(1, "macro")
    names = list("abcd")
    truth, said = ([names[i] for i in rng.integers(0, 4, 60)] for _ in range(2))
    counts = confusion(plain(0), [0] * 60, truth, said, names)
    ours = [macro(values)[0] for values in class_scores(counts, range(4))]
    theirs = metrics.precision_recall_fscore_support(truth, said, average="macro", zero_division=0)[:3]
    assert ours == pytest.approx(list(theirs))


def test_a_class_without_runs_does_not_count():
    counts = confusion(plain(0), [0], ["a"], ["b"], ["a", "b"])
    assert macro(class_scores(counts, [0, 1])[2])[0] == 0.0
    assert math.isnan(class_scores(counts, [0, 1])[2][0, 1])


def test_the_median_delay_without_censoring_is_the_median():
    delays = np.array([0.0, 1.0, 2.0, 8.0, 9.0])
    assert delay_quantile(plain(0), [0] * 5, delays, np.ones(5), 0.5)[0] == 2
    assert delay_quantile(plain(0), [0] * 5, delays, np.ones(5), 0.25)[0] == 1


def test_kaplan_meier_by_hand():
    """Five runs: alarms after 1, 3, 3; watching ends at 2 and 6. S(1) = 4/5, S(3) = 4/5 * 1/3."""
    delays, seen = np.array([1.0, 2.0, 3.0, 3.0, 6.0]), np.array([1.0, 0.0, 1.0, 1.0, 0.0])
    assert delay_quantile(plain(0), [0] * 5, delays, seen, 0.2)[0] == 1
    assert delay_quantile(plain(0), [0] * 5, delays, seen, 0.5)[0] == 3
    assert delay_quantile(plain(0), [0] * 5, delays, seen, 0.73)[0] == 3
    assert math.isnan(delay_quantile(plain(0), [0] * 5, delays, seen, 0.74)[0])


def test_what_is_never_detected_has_no_median_delay():
    assert math.isnan(delay_quantile(plain(0), [0, 0], np.array([5.0, 5.0]), np.zeros(2), 0.5)[0])


def test_alarms_a_thousand_steps():
    assert alarm_rate(plain(0), [0, 0, 0], np.array([1.0, 0, 0]), np.array([20.0, 40, 40]))[0] == 10.0


def test_every_stratum_keeps_its_size_and_equal_seeds_give_equal_draws():
    strata = {1: "faulty", 2: "faulty", 5: "healthy", 6: "healthy", 7: "healthy"}
    draws = draw_groups(strata, seed=1, draws=50)
    assert draws.weights[0].tolist() == [1.0] * 5
    assert (draws.weights[:, :2].sum(axis=1) == 2).all() and (draws.weights[:, 2:].sum(axis=1) == 3).all()
    assert (draws.weights == draw_groups(strata, seed=1, draws=50).weights).all()
    assert (draws.weights != draw_groups(strata, seed=2, draws=50).weights).any()


def test_intervals_over_groups_are_wider_than_over_runs_that_repeat_each_other():
    hits = np.repeat(array_generator(0, "hits").integers(0, 2, 20), 10).astype(float)
    groups = np.repeat(np.arange(20), 10).tolist()
    clustered = interval(share(draw_groups(dict.fromkeys(range(20), "a"), 0), groups, hits))
    single = interval(share(draw_groups(dict.fromkeys(range(200), "a"), 0), list(range(200)), hits))
    assert clustered.estimate == single.estimate
    assert clustered.high - clustered.low > 2 * (single.high - single.low)


def test_an_interval_needs_an_estimate_and_passes_over_empty_draws():
    assert math.isnan(interval(np.array([np.nan, 1.0])).low)
    assert interval(np.array([1.0, np.nan, 1.0, 1.0])) == (1.0, 1.0, 1.0)


def test_a_share_of_nothing_has_an_interval():
    draws = draw_groups(dict.fromkeys(range(30), "a"), 0, 40)
    none = share_interval(share(draws, list(range(30)), np.zeros(30)), 30)
    assert none.estimate == none.low == 0.0 and none.high == pytest.approx(
        0.1135, abs=1e-3
    )  # Wilson, 0 of 30
    some = share(draws, list(range(30)), np.arange(30) < 3)
    assert share_interval(some, 30) == interval(some)


def test_mcnemar_by_hand():
    """One to five: 2 * (1 + 6) / 2**6."""
    assert mcnemar(1, 5) == pytest.approx(14 / 64) == mcnemar(5, 1)
    assert mcnemar(0, 0) == 1.0


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_nothing_is_divided_by_nothing():
    assert np.isnan(divided(np.array([1.0]), np.array([0.0]))).all()
