import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustops.errors import ConfigError
from robustops.seeding import array_generator
from robustops.tracking.statistics import (
    bootstrap_ci,
    paired_difference_ci,
    pass_at_k,
    pass_at_k_table,
    rate_summary,
    wilson,
)


# --- Wilson -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (120, 240, 0.4372, 0.5628)],
)
def test_wilson_by_hand(successes, n, low, high):
    interval = wilson(successes, n)
    assert interval.estimate == successes / n
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 500), st.integers(0, 500))
def test_wilson_bounds_solve_its_equation(n, successes):
    """Both bounds p satisfy |share - p| = z sqrt(p (1 - p) / n), and enclose the share."""
    successes = min(successes, n)
    share, low, high = wilson(successes, n)
    assert 0 <= low <= share <= high <= 1
    for bound in (low, high):
        if 0 < bound < 1:
            assert abs(share - bound) == pytest.approx(
                1.959964 * math.sqrt(bound * (1 - bound) / n), rel=1e-5
            )


def test_wilson_narrows_with_trials_and_widens_with_the_level():
    widths = [wilson(n // 2, n).high - wilson(n // 2, n).low for n in (10, 100, 1000)]
    assert widths == sorted(widths, reverse=True)
    assert wilson(5, 10, 0.99).low < wilson(5, 10, 0.9).low


def test_wilson_without_trials_knows_nothing():
    estimate, low, high = wilson(0, 0)
    assert math.isnan(estimate) and (low, high) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "n"), [(3, 2), (-1, 2)])
def test_wilson_refuses_impossible_counts(successes, n):
    with pytest.raises(ConfigError, match="0 <= successes <= n"):
        wilson(successes, n)


def test_a_level_in_percent_is_refused():
    with pytest.raises(ConfigError, match="between 0 and 1"):
        wilson(1, 2, 95)


# --- bootstrap ----------------------------------------------------------------------------------
def test_bootstrap_is_fixed_by_its_seed():
    values = array_generator(0, "values").random(20).tolist()
    assert bootstrap_ci(values, 3) == bootstrap_ci(values, 3)
    assert bootstrap_ci(values, 3) != bootstrap_ci(values, 4)


def test_bootstrap_matches_the_normal_interval_of_a_large_sample():
    values = array_generator(0, "sample").normal(2.0, 3.0, 400)
    estimate, low, high = bootstrap_ci(values.tolist(), seed=1)
    half = 1.96 * values.std(ddof=1) / 20
    assert estimate == pytest.approx(values.mean())
    assert low == pytest.approx(estimate - half, abs=0.1 * half)
    assert high == pytest.approx(estimate + half, abs=0.1 * half)


def test_bootstrap_of_two_values_by_hand():
    """Means of resampled {0, 1} are 0, 1/2, 1 with chances 1/4, 1/2, 1/4."""
    assert bootstrap_ci([0.0, 1.0], seed=0) == (0.5, 0.0, 1.0)
    assert bootstrap_ci([0.0, 1.0], seed=0, level=0.2) == (0.5, 0.5, 0.5)


def test_bootstrap_of_equal_values_and_of_none():
    assert bootstrap_ci([0.7] * 5, seed=0) == pytest.approx((0.7, 0.7, 0.7))
    assert all(math.isnan(value) for value in bootstrap_ci([], seed=0))


def test_bootstrap_works_in_chunks(monkeypatch):
    values = [0.0, 1.0, 1.0, 0.5, 0.25]
    whole = bootstrap_ci(values, 3, n=1000)
    monkeypatch.setattr("robustops.tracking.statistics._CHUNK", 64)
    assert bootstrap_ci(values, 3, n=1000) == pytest.approx(whole, abs=0.05)


def test_pairing_cancels_what_is_hard_for_both():
    hard = array_generator(0, "cases").normal(0, 10, 100)
    a, b = (hard + 1.0).tolist(), hard.tolist()
    assert paired_difference_ci(a, b, seed=0) == pytest.approx((1.0, 1.0, 1.0))
    shuffled = paired_difference_ci(a, b[::-1], seed=0)
    assert shuffled.high - shuffled.low > 1.0


def test_a_swap_turns_the_difference_around():
    a, b = [1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]
    forth, back = paired_difference_ci(a, b, seed=5), paired_difference_ci(b, a, seed=5)
    assert forth == pytest.approx((-back.estimate, -back.high, -back.low))
    assert forth.estimate == 0.5


def test_unpaired_values_are_refused():
    with pytest.raises(ConfigError, match="2 and 1 values"):
        paired_difference_ci([1.0, 0.0], [1.0], seed=0)


# --- pass@k -------------------------------------------------------------------------------------
@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_counts_the_subsets(numbers):
    n, c, k = numbers
    subsets = list(combinations(range(n), k))
    slow = sum(any(i < c for i in subset) for subset in subsets) / len(subsets)
    assert pass_at_k(n, c, k) == pytest.approx(slow)


def test_pass_at_k_by_hand():
    assert pass_at_k(4, 1, 1) == pytest.approx(0.25)
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    assert pass_at_k(4, 1, 4) == 1.0
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(100_000, 1, 1) == pytest.approx(1e-5)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, 1, 5), (4, 1, 0), (4, -1, 1)])
def test_pass_at_k_refuses(n, c, k):
    with pytest.raises(ConfigError, match="pass@"):
        pass_at_k(n, c, k)


def test_the_table_averages_cases_and_leaves_out_what_some_case_cannot_tell():
    assert pass_at_k_table([(4, 4), (2, 0)], [1, 2, 4]) == {"1": 0.5, "2": 0.5}
    assert pass_at_k_table([(4, 1), (4, 3)], [4, 1]) == pytest.approx({"1": 0.5, "4": 1.0})
    assert pass_at_k_table([], [1]) == {}


def test_rate_summary_has_the_keys_of_the_summary_file():
    summary = rate_summary(8, 10)
    assert summary["success_rate"] == 0.8 and summary["n"] == 10
    assert summary["ci95"] == pytest.approx([0.4902, 0.9433], abs=5e-5)
    assert rate_summary(0, 0) == {"success_rate": None, "ci95": None, "n": 0}
