"""Named pairs: numbers made of several columns of a step that healthy runs hold (nearly) constant.

A fault often moves each column within its usual range, and not the relation between them. Linear relations
are found by `residuals`; these are the ones that are not linear, or so tight that they deserve a name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from robustops.monitor.panel import Panel, Series

#: A healthy value strays at most by an episode or two of 64; deviations of less are no news.
_EPISODE = 1 / 64


@dataclass(frozen=True)
class Pair:
    """name; columns: telemetry that it is made of, the first one names it in evidence; value: (T,) of a
    panel; floor: least healthy deviation; invariant: that it speaks for; meaning: of a departure.
    """

    name: str
    columns: tuple[str, ...]
    value: Callable[[Panel], Series]
    floor: float
    invariant: str
    meaning: str


def _binary(panel: Panel) -> Series:
    """sqrt(n / (n - 1)) for successes that are 0 or 1, less for anything between."""
    share = panel["rewards.success.mean"]
    room = np.clip(share * (1 - share), 1e-9, None)
    return np.where(room > 1e-3, panel["rewards.success.std"] / np.sqrt(room), np.nan)


def _answers(panel: Panel) -> Series:
    """Messages that are no call, an episode, less the one final answer: between -trunc_frac and 0."""
    attempts = panel["tool_calls_mean"] / np.clip(1 - panel["invalid_call_frac"], 1e-9, None)
    return panel["turns_mean"] - attempts - 1


def _update_size(panel: Panel) -> Series:
    """Logarithm of the relative update by the learning rate, to which it is proportional (Adam, SGD)."""
    rate, update = panel["lr"], panel["update_norm_rel"]
    return np.where(rate > 0, np.log((update + 1e-12) / np.where(rate > 0, rate, 1.0)), np.nan)


PAIRS = (
    Pair(
        "binary_success",
        ("rewards.success.std", "rewards.success.mean"),
        _binary,
        2e-3,
        "reward_trajectory",
        "successes are not all 0 or 1 any more",
    ),
    Pair(
        "honest_success",
        ("rewards.success.mean", "success_mean"),
        lambda p: p["rewards.success.mean"] - p["success_mean"],
        _EPISODE / 4,
        "reward_trajectory",
        "the reward counts other episodes as successes than the verifier does",
    ),
    Pair(
        "progress_beyond_success",
        ("rewards.progress.mean", "rewards.success.mean"),
        lambda p: p["rewards.progress.mean"] - p["rewards.success.mean"],
        _EPISODE / 2,
        "reward_trajectory",
        "partial credit and success part",
    ),
    Pair(
        "final_answers",
        ("turns_mean", "tool_calls_mean", "invalid_call_frac"),
        _answers,
        _EPISODE / 2,
        "tool_environment",
        "episodes do not end with one final answer each",
    ),
    Pair(
        "unexplained_ends",
        ("no_answer_frac", "trunc_frac"),
        lambda p: p["no_answer_frac"] - p["trunc_frac"],
        _EPISODE / 4,
        "tool_environment",
        "episodes end without an answer and without a cut",
    ),
    Pair(
        "update_size",
        ("update_norm_rel", "lr"),
        _update_size,
        2e-2,
        "optimisation",
        "weights move by more or less than the learning rate makes them",
    ),
    Pair(
        "advantage_size",
        ("adv_std", "zero_signal_frac"),
        lambda p: p["adv_std"] ** 2 + p["zero_signal_frac"],
        _EPISODE / 2,
        "return_stability",
        "advantages are larger or smaller than their normalisation makes them",
    ),
    Pair(
        "return",
        ("return_mean", "reward_mean"),
        lambda p: p["return_mean"] - p["reward_mean"],
        2e-3,
        "return_stability",
        "returns that are trained on differ from rewards",
    ),
)
BY_NAME = {pair.name: pair for pair in PAIRS}


def of(panel: Panel) -> dict[str, Series]:
    """Those pairs all columns of which the panel observes."""
    return {
        pair.name: pair.value(panel)
        for pair in PAIRS
        if all(panel.observed(column) for column in pair.columns)
    }
