import numpy as np

from robustops.monitor.detect import pairs
from robustops.monitor.detect.groups import INVARIANTS, invariant_of
from tests.monitor.detect.runs import EPISODES, changed, run


def test_pairs_name_columns_and_invariants_that_exist() -> None:
    for pair in pairs.PAIRS:
        assert pair.invariant in INVARIANTS
        assert pair.floor > 0
        assert all(invariant_of(column) for column in pair.columns)


def test_a_pair_needs_all_of_its_columns() -> None:
    panel = run(0)
    assert "honest_success" in pairs.of(panel)
    assert "honest_success" not in pairs.of(panel.only(["rewards.success.mean"]))
    hidden = changed(panel, success_mean=np.full(40, np.nan))
    assert "honest_success" not in pairs.of(hidden)


def test_binary_success_falls_for_values_between() -> None:
    successes = np.array([0.0, 1.0, 1.0, 0.0])
    partial = successes * 0.5
    columns = {
        "rewards__success__mean": [successes.mean(), partial.mean(), 0.0],
        "rewards__success__std": [successes.std(ddof=1), partial.std(ddof=1), 0.0],
    }
    panel = changed(run(0, steps=3), **columns)
    one, other, none = pairs.of(panel)["binary_success"]
    assert np.isclose(one, np.sqrt(4 / 3))
    assert other < 0.8 * one
    assert np.isnan(none)


def test_final_answers_count_messages_beside_calls() -> None:
    # Three calls, a quarter of the four attempts unreadable, one answer; then without, then with two of them.
    columns = {"turns_mean": [5.0, 4.0, 6.0], "tool_calls_mean": [3.0] * 3, "invalid_call_frac": [0.25] * 3}
    found = pairs.of(changed(run(0, steps=3), **columns))["final_answers"]
    assert np.allclose(found, [0.0, -1.0, 1.0])


def test_advantages_of_unit_deviation_pass() -> None:
    panel = run(1)
    size = pairs.of(panel)["advantage_size"]
    assert np.allclose(size, 1.0, atol=1 / EPISODES)
    noisy = changed(panel, adv_std=panel["adv_std"] * 1.5)
    assert (pairs.of(noisy)["advantage_size"] > 1.3).all()
