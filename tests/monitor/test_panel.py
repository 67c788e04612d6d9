import math

import numpy as np
import pytest

from robustops.errors import ConfigError
from robustops.monitor.panel import Panel
from robustops.monitor.telemetry import StepRecord


def panel() -> Panel:
    steps = np.array([1, 2, 4])
    return Panel(
        steps, {"reward_mean": np.array([0.1, np.nan, 0.3]), "kl_ref_k3": np.full(3, np.nan)}, "a log"
    )


def test_a_column_that_is_absent_reads_as_not_observed() -> None:
    assert np.isnan(panel()["entropy"]).all()
    assert panel().observed("reward_mean")
    assert not panel().observed("kl_ref_k3")
    assert not panel().observed("entropy")


def test_matrix_has_a_column_each() -> None:
    found = panel().matrix(["reward_mean", "entropy"])
    assert found.shape == (3, 2)
    assert found[0, 0] == 0.1
    assert np.isnan(found[:, 1]).all()
    assert panel().matrix([]).shape == (3, 0)


def test_until_keeps_what_was_known_by_then() -> None:
    assert panel().until(2).steps.tolist() == [1, 2]
    assert panel().until(3)["reward_mean"].tolist()[0] == 0.1
    assert len(panel().until(0)) == 0


def test_only_drops_columns() -> None:
    assert set(panel().only(["reward_mean", "entropy"]).columns) == {"reward_mean"}


def test_steps_must_rise_and_values_must_fit() -> None:
    with pytest.raises(ConfigError, match="a log do not rise"):
        Panel(np.array([1, 1]), {}, "a log")
    with pytest.raises(ConfigError, match="entropy of a log"):
        Panel(np.array([1, 2]), {"entropy": np.zeros(3)}, "a log")


def test_records_become_columns_and_what_a_source_lacks_is_absent() -> None:
    metrics = {"reward_mean": 0.5, "kl_ref_k3": math.nan, "vf_loss": math.nan, "rollout/rounds": 1}
    records = [StepRecord(step, "grpo", metrics, {"lacks": ["value_head"]}) for step in (1, 2)]
    found = Panel.of(records)
    assert found.steps.tolist() == [1, 2]
    assert set(found.columns) == {"reward_mean", "kl_ref_k3"}
    assert found["reward_mean"].tolist() == [0.5, 0.5]
    assert len(Panel.of([])) == 0
