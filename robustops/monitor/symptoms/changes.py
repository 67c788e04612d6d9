"""Changes that are large against the run's own first steps, and last.

A change counts where it is beyond an amount that matters whatever the noise, and beyond what the first steps
vary by, for several rows in a row. It is dated back to the row at which it left that variation. One that has
passed by the end of the log is reported, and is not enough for a verdict: runs recover from spikes by
themselves. If a run was broken from its first step on, only facts can tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from robustops.monitor.panel import Panel, Series
from robustops.monitor.symptoms.finding import SAMPLER_VOTES, Finding, Mask, lasts, seen, streak
from robustops.monitor.verdict import Evidence

#: Observed rows that are taken for the healthy start.
START_ROWS = 8
#: Rows in a row for a change to count.
LASTING_ROWS = 4
#: Least rows of a column for changes to be looked for.
LEAST_ROWS = START_ROWS + LASTING_ROWS
#: Deviations of the start that a change must exceed.
_DEVIATIONS = 5.0
#: Deviations within which the start lies: a change is dated to where it leaves them.
_BAND = 2.0
#: A start that does not vary is taken to vary by this share of its level.
_FLOOR = 0.05
#: Of a change that has passed.
_PASSED = 0.5
#: Times the largest update so far, each in units of its learning rate, that two updates in a row must have.
#: An adaptive optimiser's updates have nearly one size, which falls in the first steps.
_SUDDEN, _SUDDEN_ROWS = 4.0, 2


@dataclass(frozen=True)
class _Change:
    """column goes up or down: by `amount` (difference), or to `amount` times the start (ratio), and beyond
    `floor`, a level that is worth a word at all (up: above it, down: below it).
    """

    column: str
    way: Literal["up", "down"]
    kind: Literal["difference", "ratio"]
    amount: float
    invariant: str
    severity: float
    votes: Mapping[str, float] = field(default_factory=dict)
    text: str = ""
    floor: float | None = None


_UP, _DOWN = ("up", "ratio"), ("down", "ratio")
_RISE, _FALL = ("up", "difference"), ("down", "difference")


def _c(
    column: str,
    how: tuple[str, str],
    amount: float,
    invariant: str,
    severity: float,
    text: str,
    floor: float | None = None,
    **votes: float,
) -> _Change:
    way, kind = how
    return _Change(column, way, kind, amount, invariant, severity, votes, text, floor)  # type: ignore[arg-type]


CHANGES: tuple[_Change, ...] = (
    # A KL of 1 nat a token is a policy that writes other things. It starts at 0: a ratio alone says little.
    _c("kl_ref_k3", _UP, 10, "kl", 0.8, "the policy leaves the reference", 1.0, kl_explosion=1.5),
    _c("kl_ref_k1", _UP, 10, "kl", 0.8, "the policy leaves the reference", 1.0, kl_explosion=1.5),
    _c("kl_old", _UP, 10, "kl", 0.7, "updates are too large", 0.1, kl_explosion=1.0),
    _c("ratio_p99", _UP, 1.5, "kl", 0.6, "updates are too large", 2.0, kl_explosion=0.8),
    _c(
        *("grad_norm", _UP, 10, "optimisation", 0.6, "gradients grow"),
        kl_explosion=0.7,
        advantage_instability=0.5,
    ),
    _c("update_per_lr", _UP, 4, "optimisation", 0.6, "updates grow at the same rate", kl_explosion=0.8),
    _c(
        *("update_per_lr", _DOWN, 0.1, "optimisation", 0.8, "weights hardly move at the same rate"),
        update_freeze=1.5,
    ),
    _c("policy_lag_mean", _RISE, 2, "optimisation", 0.7, "samples get older and older", update_freeze=1.5),
    _Change(
        *("samp_logp_absdiff_mean", "up", "ratio", 30, "sampler", 0.7, SAMPLER_VOTES),
        text="sampler and trainer drift apart",
        floor=0.01,
    ),
    _c("entropy", _DOWN, 0.2, "entropy", 0.8, "the policy has stopped exploring", entropy_collapse=1.5),
    _c(
        *("entropy", _UP, 4, "entropy", 0.6, "the policy gets random", 1.0),
        kl_explosion=0.5,
        repetition_collapse=0.5,
    ),
    _c(
        *("group_unique_frac", _DOWN, 0.4, "entropy", 0.6, "answers of a group are the same"),
        entropy_collapse=0.7,
    ),
    _c(
        *("zero_signal_frac", _RISE, 0.6, "reward_trajectory", 0.5, "groups compare nothing any more"),
        entropy_collapse=0.4,
        reward_collapse=0.4,
    ),
    # Answers of a run that learns get longer or shorter; alone neither is a fault.
    _c("len_mean", _UP, 2.5, "generation_quality", 0.4, "answers get long", length_long=0.8),
    _c(
        *("len_mean", _DOWN, 0.35, "generation_quality", 0.4, "answers get short"),
        length_short=1.0,
        termination_error=0.3,
    ),
    _c("trunc_frac", _RISE, 0.4, "generation_quality", 0.6, "answers are cut off", length_long=1.0),
    _c("empty_frac", _RISE, 0.25, "generation_quality", 0.8, "answers are empty", empty_response=1.5),
    _c("rep4", _RISE, 0.3, "generation_quality", 0.7, "answers repeat themselves", repetition_collapse=1.5),
    _c(
        *("distinct2", _DOWN, 0.6, "generation_quality", 0.6, "answers repeat themselves"),
        repetition_collapse=1.0,
    ),
    _c("tool_error_frac", _RISE, 0.3, "tools", 0.7, "tools fail", tool_call_error=1.5),
    _c("invalid_call_frac", _RISE, 0.3, "tools", 0.7, "calls are unreadable", tool_call_error=1.2),
    _c("early_term_frac", _RISE, 0.2, "tools", 0.7, "episodes end early", termination_error=1.5),
    _c("turns_mean", _DOWN, 0.6, "tools", 0.6, "episodes have few turns", termination_error=1.0),
    _c("turns_mean", _UP, 1.7, "tools", 0.5, "episodes do not end", termination_error=0.8),
    _c(
        *("adv_reward_corr", _FALL, 0.3, "advantages", 0.8, "advantages do not follow their rewards"),
        advantage_instability=1.0,
        delayed_credit=1.0,
    ),
    _c(
        *("adv_reward_lag1_corr", _RISE, 0.5, "advantages", 0.7, "advantages follow the rewards of before"),
        delayed_credit=1.5,
    ),
    _c("adv_absmax", _UP, 2.5, "advantages", 0.6, "advantages get extreme", advantage_instability=1.0),
    _c("adv_max", _UP, 4, "advantages", 0.5, "advantages get extreme", advantage_instability=0.8),
    _c("baseline_mae", _UP, 2.5, "advantages", 0.6, "baselines are far from rewards", value_mismatch=1.0),
    _c(
        *("reward_success_gap", _RISE, 0.15, "reward_trajectory", 0.8, "rewards rise above success"),
        reward_hacking=1.0,
        reward_spike=1.0,
    ),
    _c(
        *("reward_success_gap", _FALL, 0.1, "reward_trajectory", 0.8, "rewards fall below success"),
        reward_collapse=1.0,
    ),
    _c(
        *("reward_success_corr", _FALL, 0.3, "reward_trajectory", 0.7, "rewards do not follow success"),
        reward_hacking=0.8,
        reward_spike=0.6,
        reward_collapse=0.4,
    ),
    _c("success_mean", _DOWN, 0.3, "reward_trajectory", 0.6, "the task is no longer solved"),
    # A task's largest reward is bounded; learning alone can raise the largest one seen, so this is a hint.
    _c(
        "reward_max", _UP, 1.8, "reward_trajectory", 0.45, "rewards grow larger than before", reward_spike=0.8
    ),
)


def changes(panel: Panel) -> list[Finding]:
    """All large changes of a run, and a fall of its reward."""
    found = [finding for change in CHANGES if (finding := _changed(panel, change)) is not None]
    return found + _fallen_reward(panel) + _cut_budget(panel) + _sudden_updates(panel)


def _changed(panel: Panel, change: _Change) -> Finding | None:
    values = _series(panel, change.column)
    observed = seen(values)
    if observed.sum() < LEAST_ROWS:
        return None
    level, deviation = _start(values[observed], change.way)
    if change.kind == "ratio" and level <= 0 and change.floor is None:
        return None  # a multiple of nothing says nothing
    limit = _limit(change, level, deviation)
    with np.errstate(invalid="ignore"):
        beyond = values > limit if change.way == "up" else values < limit
    return _finding(panel, change, values, observed, beyond, (level, deviation))


def _series(panel: Panel, column: str) -> Series:
    """A column, or the size of updates in units of the learning rate, so that a schedule is no change."""
    if column != "update_per_lr":
        return panel[column]
    moved, rate = panel["update_norm_rel"], panel["lr"]
    with np.errstate(divide="ignore", invalid="ignore"):
        per_rate = np.where(rate > 0, moved / rate, np.nan)
    return per_rate if panel.observed("lr") else moved


def _start(values: Series, way: str) -> tuple[float, float]:
    """(level, deviation) of the first rows. What may fall within them already is measured from its upper
    quartile, or from where the first two rows are.
    """
    first = values[:START_ROWS]
    level = float(np.median(first))
    if way == "down":
        level = max(float(np.quantile(first, 0.75)), float(first[:2].mean()))
    spread = 1.4826 * float(np.median(np.abs(first - np.median(first))))
    return level, max(spread, _FLOOR * abs(level))


def _limit(change: _Change, level: float, deviation: float) -> float:
    """The value beyond which a change is large, in its amount and against the start's own variation."""
    sign = 1.0 if change.way == "up" else -1.0
    amount = change.amount * level if change.kind == "ratio" else level + sign * change.amount
    # A quantity that falls towards 0 can fall by few of its own deviations only.
    noise = level + sign * (_DEVIATIONS if change.way == "up" else _BAND) * deviation
    bounds = [amount, noise] + ([change.floor] if change.floor is not None else [])
    return max(bounds) if change.way == "up" else min(bounds)


def _finding(
    panel: Panel,
    change: _Change,
    values: Series,
    observed: Mask,
    beyond: Mask,
    start: tuple[float, float],
) -> Finding | None:
    """The first lasting run of rows `beyond` the limit as a finding; start: level and deviation."""
    level, deviation = start
    later = beyond.copy()
    # Within the start only what falls is looked for: a level that the start itself has is no change.
    later[np.flatnonzero(observed)[: 2 if change.way == "down" else START_ROWS]] = False
    reached = streak(later, observed, LASTING_ROWS)
    if reached is None:
        return None
    row = _left(values, observed, reached, level, deviation, change.way)
    stays = lasts(beyond, observed)
    text = f"{change.column} goes {change.way} from {level:.4g} to {values[reached]:.4g}: {change.text}"
    score = abs(float(values[reached]) - level) / deviation if deviation else float("inf")
    evidence = Evidence(
        change.invariant,
        *_at(panel, change, row, float(values[row]), level, _BAND * deviation),
        score=score,
        text=text if stays else f"{text}; it has passed since",
    )
    severity = change.severity if stays else change.severity * _PASSED
    return Finding(evidence, severity, change.votes, rule=f"{change.column} {change.way}")


def _at(
    panel: Panel, change: _Change, row: int, value: float, level: float, band: float
) -> tuple[str, int, float, float, float]:
    """(column, step, value, low, high) in the units of a column of the panel."""
    column, unit = change.column, 1.0
    if column == "update_per_lr":
        column, unit = "update_norm_rel", float(panel["lr"][row]) if panel.observed("lr") else 1.0
    low, high = (-np.inf, level + band) if change.way == "up" else (level - band, np.inf)
    return column, int(panel.steps[row]), unit * value, unit * low, unit * high


def _left(values: Series, observed: Mask, row: int, level: float, deviation: float, way: str) -> int:
    """The first of the rows that lead up to `row` and are all outside of the start's own variation."""
    sign = 1.0 if way == "up" else -1.0
    before = np.flatnonzero(observed)
    before = before[before < row]
    for place in before[::-1]:
        if sign * (values[place] - level) <= _BAND * deviation:
            break
        row = int(place)
    return row


def _fallen_reward(panel: Panel) -> list[Finding]:
    """The reward loses more than half of what it had above the least reward, and stays there."""
    reward = panel["reward_mean"]
    observed = seen(reward)
    if observed.sum() < LEAST_ROWS:
        return []
    level, deviation = _start(reward[observed], "up")
    least = min(0.0, float(np.nanmin(np.fmin(reward, panel["reward_min"]))))
    change = _Change(
        *("reward_mean", "down", "difference", 0.5 * (level - least), "reward_trajectory", 0.6),
        {"reward_collapse": 0.5},
        "the reward is lost",
    )
    limit = min(level - change.amount, level - _DEVIATIONS * deviation)
    with np.errstate(invalid="ignore"):
        beyond = reward < limit
    found = _finding(panel, change, reward, observed, beyond, (level, deviation))
    return [found] if found and level > least else []


def _sudden_updates(panel: Panel) -> list[Finding]:
    """Updates are several times as large as any before, at the same rate: seen without waiting for a start of
    `START_ROWS`, since a policy does not survive many of them.
    """
    values = _series(panel, "update_per_lr")
    observed = seen(values)
    places = np.flatnonzero(observed)
    if len(places) < 2 * _SUDDEN_ROWS or not panel.observed("lr"):
        return []
    largest = np.fmax.accumulate(values)
    for place in range(_SUDDEN_ROWS, len(places) - _SUDDEN_ROWS + 1):
        usual = float(largest[places[place - 1]])
        following = values[places[place : place + _SUDDEN_ROWS]]
        if usual > 0 and (following > _SUDDEN * usual).all():
            row, rate = int(places[place]), float(panel["lr"][places[place]])
            text = f"updates are {following[0] / usual:.3g} times as large as any before, at the same rate"
            evidence = Evidence(
                *("optimisation", "update_norm_rel", int(panel.steps[row])),
                *(float(panel["update_norm_rel"][row]), 0.0, usual * rate, following[0] / usual),
                text=text,
            )
            return [Finding(evidence, 0.8, {"kl_explosion": 1.2}, rule="updates, sudden")]
    return []


def _cut_budget(panel: Panel) -> list[Finding]:
    """More answers are cut off although they are shorter than before: the token limit has become smaller."""
    cut, length = panel["trunc_frac"], panel["len_mean"]
    observed = seen(cut) & seen(length)
    if observed.sum() < LEAST_ROWS:
        return []
    usual, _ = _start(cut[observed], "up")
    level, deviation = _start(length[observed], "down")
    limit = min(0.75 * level, level - _BAND * deviation)
    beyond = (cut >= usual + 0.3) & (length < limit)
    change = _Change(
        *("len_mean", "down", "ratio", 0.75, "generation_quality", 0.8),
        {"length_short": 1.5},
        "answers are cut off shorter than they were",
    )
    found = _finding(panel, change, length, observed, beyond, (level, deviation))
    return [dataclasses.replace(found, rule="len_mean down, cut")] if found else []
