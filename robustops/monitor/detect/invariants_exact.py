"""Invariants that hold by algebra: nothing is learned, and a healthy run does not break them.

Each compares numbers of one step (a few: with the step before), with a tolerance for rounding only. Some
follow from the definition of any trainer; others from how this one works (`assumes`), and say nothing of a
source that works otherwise: `armed` keeps those that all healthy runs of that source hold. A column that is
not observed breaks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robustops.monitor import schema
from robustops.monitor.panel import Panel, Series
from robustops.monitor.verdict import Evidence

#: Rounding of numbers near 1 that went through float32.
ROUNDING = 1e-5
#: Rounding of sums that are 0 in float64.
ZERO = 1e-6
#: Two computations of a log-prob in float32 differ by 1e-5 at most in our runs; an unsynchronised or half-
#: precision sampler by 1e-2 and more.
SAME_LOG_PROBS = 1e-3
#: Share of the episodes that may meet the turn limit: four of 64. Healthy runs of ours have one now and then.
SOME = 0.0625


@dataclass(frozen=True)
class Exact:
    """name; invariant: of `groups`; columns: needed, the first is named in evidence; gap: (T,) by how much a
    step is out, <= tolerance where it holds, NaN where it cannot be told; low, high: allowed values of the
    first column, for evidence; reason: why it holds; assumes: what must be true of the trainer, "": nothing.
    """

    name: str
    invariant: str
    columns: tuple[str, ...]
    gap: Callable[[Panel], Series]
    tolerance: float
    low: float
    high: float
    reason: str
    assumes: str = ""

    @property
    def tier(self) -> str:
        """P where all of its columns are portable."""
        portable = set(schema.names("P"))
        return "P" if portable.issuperset(self.columns) else "I"

    def broken(self, panel: Panel) -> NDArray[np.bool_]:
        """(T,) steps that break it."""
        if not all(panel.observed(column) for column in self.columns):
            return np.zeros(len(panel), dtype=bool)
        with np.errstate(invalid="ignore", divide="ignore"):
            found: NDArray[np.bool_] = np.nan_to_num(self.gap(panel), nan=-np.inf) > self.tolerance
        return found


def _still(panel: Panel) -> Series:
    """Weights stand still though there are a rate and a gradient, or move without one."""
    force = panel["lr"] * panel["grad_norm"]
    moved = panel["update_norm_rel"]
    known = ~np.isnan(force * moved)
    return np.where(known, ((force > 0) != (moved > 0)).astype(np.float64), np.nan)


def _rise(values: Series) -> Series:
    """By how much (relative) a value rises in a step, once it has stopped rising."""
    before = np.concatenate([[np.nan], values[:-1]])
    stopped = np.cumsum(np.nan_to_num(values <= before)) > 0
    return np.where(stopped, values / before - 1, np.nan)


def _change(values: Series) -> Series:
    """|log| of the factor by which a value changes in a step."""
    before = np.concatenate([[np.nan], values[:-1]])
    factor = np.abs(np.log(values / before))
    return np.where(values == before, 0.0, factor)  # infinite from or to 0


def _answers(panel: Panel) -> Series:
    """Messages beside calls (readable or not) and one final answer: 0, or less where messages were cut."""
    attempts = panel["tool_calls_mean"] / (1 - panel["invalid_call_frac"])
    rest = panel["turns_mean"] - attempts - 1
    return np.maximum(rest, -panel["trunc_frac"] - rest)


def _out_of_bounds(panel: Panel) -> Series:
    """Largest distance of any column from what its unit allows."""
    gaps = [np.zeros(len(panel))]
    known = set(schema.names())
    for name in panel.columns:
        if name in known:
            entry = schema.quantity(name)
            gaps.append(np.maximum(entry.low - panel[name], panel[name] - entry.high))
    found: Series = np.fmax.reduce(gaps)
    return found


def _disorder(panel: Panel) -> Series:
    """By how much a mean is not between the least and the largest value."""
    gaps = [np.full(len(panel), np.nan)]
    for name in ("reward", "len", "adv", "is_ratio"):
        low, mean, high = (panel[f"{name}_{part}"] for part in ("min", "mean", "max"))
        gaps += [low - mean, mean - high]
    found: Series = np.fmax.reduce(gaps)
    return found


def _not_finite(panel: Panel) -> Series:
    """Values that are infinite, and counted NaN."""
    infinite = sum((np.isinf(panel[n]).astype(np.float64) for n in panel.columns), np.zeros(len(panel)))
    return infinite + np.nan_to_num(panel["nan_count"]) + np.nan_to_num(panel["grad_nonfinite"])


_RELATIVE = "advantages are relative to the mean of their group"
_SYNCHRONOUS = "episodes are sampled with the weights that are trained next"
_VERIFIED = "part `success` of the reward is the verifier's own"

EXACT = (
    Exact(
        *("finite", "optimisation", ("grad_norm",), _not_finite, 0.5, 0.0, np.inf),
        reason="a value that is not finite makes every later one worthless",
    ),
    Exact(
        *("bounds", "optimisation", (), _out_of_bounds, 1e-6, -np.inf, np.inf),
        reason="fractions are in 0 .. 1, correlations in -1 .. 1, k3 and counts are not negative",
    ),
    Exact(
        *("order", "optimisation", (), _disorder, ROUNDING, -np.inf, np.inf),
        reason="a mean lies between the least and the largest value",
    ),
    Exact(
        *("update_moves", "optimisation", ("update_norm_rel", "lr", "grad_norm"), _still, 0.5, 0.0, np.inf),
        reason="weights move if and only if learning rate and gradient are not 0",
    ),
    Exact(
        *("rate_schedule", "optimisation", ("lr",), lambda p: _rise(p["lr"]), 0.1, 0.0, np.inf),
        reason="a learning rate that has stopped rising does not rise again",
        assumes="the schedule has no restarts",
    ),
    Exact(
        *("kl_weight", "optimisation", ("kl_coef",), lambda p: _change(p["kl_coef"]), np.log(2), 0, np.inf),
        reason="the weight of the KL stays; controllers that adapt it change it by a few per cent a step",
    ),
    Exact(
        *("clip_sum", "optimisation", ("clip_frac", "clip_low", "clip_high")),
        lambda p: np.abs(p["clip_frac"] - p["clip_low"] - p["clip_high"]),
        *(ROUNDING, 0.0, 1.0),
        reason="a token is clipped at one of two bounds",
    ),
    Exact(
        *("same_log_probs", "optimisation", ("samp_logp_absdiff_mean",)),
        lambda p: p["samp_logp_absdiff_mean"],
        *(SAME_LOG_PROBS, 0.0, SAME_LOG_PROBS),
        reason="sampler and trainer compute the same function of the same weights",
        assumes="both in the same precision",
    ),
    Exact(
        *("no_lag", "optimisation", ("policy_lag_max",)),
        lambda p: p["policy_lag_max"],
        *(0.5, 0.0, 0.0),
        reason="the sampler has the newest weights",
        assumes=_SYNCHRONOUS,
    ),
    Exact(
        *("group_mean", "return_stability", ("adv_group_mean_absmax",)),
        lambda p: p["adv_group_mean_absmax"],
        *(ZERO, 0.0, ZERO),
        reason="values less their own mean sum to 0, and a scale of the whole batch changes nothing",
        assumes=_RELATIVE,
    ),
    Exact(
        *("batch_mean", "return_stability", ("adv_mean",)),
        lambda p: np.abs(p["adv_mean"]),
        *(ZERO, -ZERO, ZERO),
        reason="the mean over groups whose means are 0",
        assumes=_RELATIVE + ", and the mean is over episodes, not tokens",
    ),
    Exact(
        *("baseline", "return_stability", ("baseline_bias",)),
        lambda p: np.abs(p["baseline_bias"]),
        *(ZERO, -ZERO, ZERO),
        reason="a group's mean is as often above its rewards as below",
        assumes=_RELATIVE,
    ),
    Exact(
        *("batch_deviation", "return_stability", ("adv_std",)),
        lambda p: p["adv_std"] - 1,
        *(1e-3, 0.0, 1.0),
        reason="advantages are divided by their deviation; groups without signal add zeros, which lower it",
        assumes="advantages are scaled to deviation 1 over the batch",
    ),
    Exact(
        *("own_rewards", "return_stability", ("adv_reward_corr",)),
        lambda p: -p["adv_reward_corr"],
        *(-0.5, 0.5, 1.0),
        reason="A is R - b but for a positive scale of each group; scales that differ by a factor of 10 "
        "between two halves of the groups still leave a correlation of 0.77",
        assumes=_RELATIVE,
    ),
    Exact(
        *("true_success", "reward_trajectory", ("rewards.success.mean", "success_mean")),
        lambda p: np.abs(p["rewards.success.mean"] - p["success_mean"]),
        *(ROUNDING, 0.0, 1.0),
        reason="both count the same episodes",
        assumes=_VERIFIED,
    ),
    Exact(
        *(
            "flawless",
            "reward_trajectory",
            ("reward_max", "reward_mean", "reward_success_gap", "success_mean"),
        ),
        lambda p: p["reward_max"] - p["reward_mean"] / (p["reward_success_gap"] + p["success_mean"]),
        *(1e-3, -np.inf, np.inf),
        reason="no reward is above that of a flawless episode, which the gap tells",
        assumes="parts are at most 1",
    ),
    Exact(
        *("reward_follows_success", "reward_trajectory", ("reward_success_corr",)),
        lambda p: -p["reward_success_corr"],
        *(-0.9, 0.9, 1.0),
        reason="success has the largest weight in the reward: 1 of 1.4, of parts that it implies",
        assumes=_VERIFIED + " and dominates",
    ),
    Exact(
        *("replies_arrive", "tool_environment", ("obs_roundtrip_mismatch_frac",)),
        lambda p: p["obs_roundtrip_mismatch_frac"],
        *(0.0, 0.0, 0.0),
        reason="what enters the context is what the world said, by digest",
    ),
    Exact(
        *("one_answer", "tool_environment"),
        ("turns_mean", "tool_calls_mean", "invalid_call_frac", "trunc_frac"),
        _answers,
        *(SOME, 0.0, np.inf),
        reason="a message is a call, unreadable, cut off, or the one final answer; few meet the turn limit",
        assumes="a message holds one call at most",
    ),
    Exact(
        *("ends_explained", "tool_environment", ("no_answer_frac", "trunc_frac")),
        lambda p: np.abs(p["no_answer_frac"] - p["trunc_frac"]),
        *(SOME, 0.0, 1.0),
        reason="an episode without an answer was cut off; few meet the turn limit",
        assumes="the environment ends no episode early",
    ),
)
BY_NAME = {exact.name: exact for exact in EXACT}
#: Those that hold of any trainer.
ALWAYS = tuple(exact.name for exact in EXACT if not exact.assumes)


def armed(healthy: Sequence[Panel]) -> tuple[str, ...]:
    """Names of those that no step of any of these runs breaks, and that any of them can tell.

    A rule that n runs hold without exception is broken by another healthy run of their kind with a
    probability of at most 1 / (n + 1).
    """
    return tuple(
        exact.name
        for exact in EXACT
        if not any(exact.broken(panel).any() for panel in healthy)
        and (not exact.columns or any(all(p.observed(c) for c in exact.columns) for p in healthy))
    )


def broken(panel: Panel, names: Iterable[str] = ALWAYS) -> dict[str, NDArray[np.bool_]]:
    """(T,) steps that break an invariant, of those that any step breaks."""
    found = {name: BY_NAME[name].broken(panel) for name in names}
    return {name: steps for name, steps in found.items() if steps.any()}


def violations(panel: Panel, names: Iterable[str] = ALWAYS) -> tuple[Evidence, ...]:
    """One a broken invariant, at the first step that breaks it, in order of these steps."""
    found = [_evidence(panel, BY_NAME[name], steps) for name, steps in broken(panel, names).items()]
    return tuple(sorted(found, key=lambda evidence: evidence.step))


def _evidence(panel: Panel, exact: Exact, steps: NDArray[np.bool_]) -> Evidence:
    row = int(np.flatnonzero(steps)[0])
    column = exact.columns[0] if exact.columns else _worst(panel, row)
    value = float(panel[column][row])
    text = (
        f"{exact.name} is broken in {int(steps.sum())} of {len(panel)} steps, first in step "
        f"{panel.steps[row]} ({column} {value:.4g}): {exact.reason}"
    )
    step = int(panel.steps[row])
    return Evidence(exact.invariant, column, step, value, exact.low, exact.high, float("inf"), text)


def _worst(panel: Panel, row: int) -> str:
    """The column that a rule without columns of its own means: the first that is out of its bounds."""
    one = panel.rows(np.arange(len(panel)) == row)
    for name in panel.columns:
        if name in schema.names() and _out_of_bounds(one.only([name])).any():
            return name
    return next(iter(panel.columns), "")
