import numpy as np
import pytest

from robustops.errors import ConfigError
from robustops.monitor.importers.assemble import Table, assemble
from robustops.monitor.importers.log import Imported, Log, Row


def imported(*rows: tuple[int | None, dict[str, float]], **options: str) -> Imported:
    return assemble(Log(tuple(Row(step, values) for step, values in rows)), "x", "trl", **options)


def test_an_absent_metric_is_an_absent_column_and_a_missing_value_nan():
    found = imported((1, {"reward": 0.5, "entropy": 1.0}), (2, {"reward": 0.6}))
    assert list(found.panel.columns) == ["reward_mean", "entropy"]
    assert found.panel["entropy"].tolist()[0] == 1.0 and np.isnan(found.panel["entropy"][1])
    assert not found.panel.observed("kl_ref_k3") and found.notes == ()


def test_rows_without_steps_are_numbered_and_said_to_be():
    found = imported((None, {"reward": 0.5, "kl": 0.1}), (None, {"reward": 0.6, "kl": 0.1}))
    assert found.panel.steps.tolist() == [1, 2]
    assert "the 2 rows carry no step" in found.notes[0]


def test_few_rows_without_a_step_are_passed_over():
    rows = [(step, {"reward": 0.5, "kl": 0.1}) for step in (1, 2, 3)]
    found = imported(*rows, (None, {"reward": 9.0}))
    assert found.panel["reward_mean"].max() == 0.5 and "1 rows without a step" in found.notes[0]


def test_parts_of_a_step_are_joined():
    found = imported((1, {"reward": 0.5}), (1, {"kl": 0.1}), (2, {"reward": 0.6, "kl": 0.2}))
    assert found.panel.steps.tolist() == [1, 2] and found.panel["kl_ref_k3"].tolist() == [0.1, 0.2]
    assert found.notes == ()


def test_a_restart_replaces_what_it_repeats():
    rows = [(step, {"reward": float(step), "kl": 0.1}) for step in (1, 2, 3, 4, 2, 3)]
    rows[4][1]["reward"], rows[5][1]["reward"] = 20.0, 30.0
    found = imported(*rows)
    assert found.panel.steps.tolist() == [1, 2, 3]
    assert found.panel["reward_mean"].tolist() == [1.0, 20.0, 30.0]
    assert found.notes == ("step 2 comes again after step 4: 3 earlier rows are replaced",)


def test_gaps_are_told_and_not_filled():
    found = imported(*((step, {"reward": 0.5, "kl": 0.1}) for step in (10, 20, 30, 60, 70)))
    assert found.panel.steps.tolist() == [10, 20, 30, 60, 70]
    assert found.notes[0] == "one row in 10 steps" and "between 30 and 60" in found.notes[1]


def test_a_logged_nan_is_a_fact_and_a_value_that_nobody_took_is_none():
    nan, inf = float("nan"), float("inf")
    found = imported(
        (1, {"reward": 0.5, "kl": 0.1, "grad_norm": 1.0, "entropy": 1.0}),
        (2, {"reward": 0.5, "kl": nan, "grad_norm": nan, "entropy": nan, "loss": nan}),
        (3, {"reward": 0.5, "grad_norm": inf}),
    )
    assert found.panel["grad_nonfinite"].tolist() == [0.0, 1.0, 1.0]
    assert np.isnan(found.panel["nan_count"][[0, 2]]).all() and found.panel["nan_count"][1] == 3
    assert "nan_count" not in imported((1, {"reward": 0.5, "kl": 0.1})).panel.columns


def test_a_reward_that_is_nan_is_no_broken_update():
    found = imported((1, {"reward": float("nan"), "kl": 0.1}))
    assert "nan_count" not in found.panel.columns


def test_a_column_with_values_that_it_cannot_have_is_another_quantity():
    found = imported(*((step, {"reward": 0.5, "completions/clipped_ratio": 12.0}) for step in (1, 2)))
    assert "trunc_frac" not in found.panel.columns and "trunc_frac is outside [0, 1]" in found.notes[0]


@pytest.mark.parametrize(
    ("own", "column"), [(0.4, "reward_std"), (0.5, "group_reward_std_mean")], ids=["batch", "groups"]
)
def test_whether_a_deviation_is_over_the_batch_shows_with_a_single_reward(own: float, column: str):
    row = {"reward": 1.0, "reward_std": 0.4, "rewards/f/mean": 1.0, "rewards/f/std": own}
    found = imported((1, row), (2, {**row, "reward": 1.0}))
    assert found.panel[column].tolist() == [0.4, 0.4] and "reward_std" not in found.unmapped


def test_with_several_rewards_it_does_not():
    row = {"reward": 2.0, "reward_std": 0.4, "rewards/f/mean": 1.0, "rewards/f/std": 0.4}
    for rest in ({}, {"rewards/g/mean": 1.0, "rewards/g/std": 0.4}):
        found = imported((1, row | rest))
        assert not {"reward_std", "group_reward_std_mean"} & set(found.panel.columns)
        assert "by version" in found.unmapped["reward_std"]


def test_a_log_without_any_known_metric_is_refused():
    with pytest.raises(ConfigError, match=r"x has no metric that is known \(speed\)"):
        imported((1, {"speed": 1.0}))


def test_a_table_that_grows_row_by_row_is_the_whole_log():
    rows = [(step, {"reward": 0.1 * step, "kl": 0.1}) for step in range(1, 6)]
    table = Table("trl")
    for step, values in rows:
        table.add(Row(step, values))
    table.add(Row(6, {"speed": 1.0}))
    whole = imported(*rows, names="trl")
    grown = table.imported("x", "trl")
    assert len(table) == 5 and grown.panel.steps.tolist() == whole.panel.steps.tolist()
    assert grown.panel["reward_mean"].tolist() == whole.panel["reward_mean"].tolist()
