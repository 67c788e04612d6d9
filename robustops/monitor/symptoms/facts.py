"""Facts that no healthy run shows, whatever trainer and task: they need no profile and few rows.

Each bound and each function says why it is a fact. How many rows in a row it takes depends on what chance can
do: a batch may be without signal once, one NaN is enough. Where a log is shorter than that, some facts still
count if all of its rows agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from robustops.monitor.panel import Panel
from robustops.monitor.symptoms.finding import SAMPLER_VOTES, Finding, fact, lasts, seen, streak

#: Rows without any signal that a small batch may have by chance.
_QUIET_ROWS = 8
#: Mean |difference| of log-probs. The same weights differ by rounding and kernels: 0.01 to 0.03 in half
#: precision.
_GAP = 0.1
#: Effective share of samples under which importance weights are those of another policy.
_LEAST_ESS = 0.5
#: Rows in which stale weights fall behind so far that the first row's gap is less than half.
_GAP_ROWS = 8
#: Rows without any reward; a hard task can begin with a few.
_UNPAID_ROWS = 5
#: Steps at which advantages are the rewards themselves before it is no coincidence.
_RAW_ROWS = 3
#: Relative difference up to which an advantage is the reward: trainers divide by 1 + 1e-6.
_SAME = 1e-4


@dataclass(frozen=True)
class _Bound:
    """column >= limit (upper) or <= limit over `rows` rows. alone: a log with fewer rows counts too if all of
    them are beyond the limit.
    """

    column: str
    limit: float
    rows: int
    invariant: str
    severity: float
    votes: Mapping[str, float]
    text: str
    upper: bool = True
    alone: bool = False


_BOUNDS = (
    # A mean KL of 10 nats a token: the reference gives the tokens 1/20,000 of the policy's probability. In k3
    # a single token can make a step's mean.
    _Bound(
        *("kl_ref_k3", 10.0, 2, "kl", 1.0, {"kl_explosion": 1.5}),
        "the policy has nothing in common with the reference any more",
        alone=True,
    ),
    _Bound(
        *("kl_ref_k1", 10.0, 1, "kl", 1.0, {"kl_explosion": 1.5}),
        "the policy has nothing in common with the reference any more",
    ),
    # 5 nats are 150 equally likely tokens everywhere; text of a language model has 0.1 to 2.
    _Bound(
        *("entropy", 5.0, 2, "entropy", 1.0, {"repetition_collapse": 1.0, "update_freeze": 0.5}),
        "the tokens are next to random: wrong weights in the sampler or in the trainer",
        alone=True,
    ),
    _Bound(
        *("trunc_frac", 0.99, 3, "generation_quality", 0.8, {"length_long": 1.0}),
        "all answers are cut off at the token limit: it is too small for the task, or answers end no more",
        alone=True,
    ),
    _Bound(
        *("empty_frac", 0.5, 2, "generation_quality", 0.9, {"empty_response": 1.5}),
        "most answers are empty",
        alone=True,
    ),
    _Bound(
        *("clip_frac", 0.5, 3, "kl", 0.6, {"kl_explosion": 0.6, "update_freeze": 0.3}),
        "the clip binds at most tokens: updates are too large, or samples stale",
    ),
    _Bound(
        *("tool_error_frac", 0.9, 3, "tools", 0.8, {"tool_call_error": 1.5}),
        "nearly all tool calls come back as errors",
        alone=True,
    ),
    _Bound(
        *("invalid_call_frac", 0.9, 3, "tools", 0.8, {"tool_call_error": 1.2}),
        "nearly all tool calls are unreadable",
        alone=True,
    ),
    _Bound(
        *("obs_roundtrip_mismatch_frac", 1e-9, 1, "tools", 0.8, {"observation_corruption": 2.0}),
        "what the policy read is not what the environment said",
    ),
    # Group-relative advantages sum to 0 in each group, but for rounding.
    _Bound(
        *("adv_group_mean_absmax", 1e-3, 2, "advantages", 0.8),
        {"value_mismatch": 1.2, "advantage_instability": 1.0},
        "advantages of a group do not sum to 0: they were compared with another group, or changed since",
    ),
)


def facts(panel: Panel, *, growing: bool = False) -> list[Finding]:
    """All facts of a run. growing: a short log is the beginning of a longer one, and says less by itself."""
    beyond = [_beyond(panel, bound, bound.alone and not growing) for bound in _BOUNDS]
    found = [finding for finding in beyond if finding is not None]
    for rule in _RULES:
        found += rule(panel)
    return found + _no_reward(panel, growing)


def _beyond(panel: Panel, bound: _Bound, alone: bool) -> Finding | None:
    values = panel[bound.column]
    observed = seen(values)
    rows = min(bound.rows, max(1, int(observed.sum()))) if alone else bound.rows
    with np.errstate(invalid="ignore"):
        holds = values >= bound.limit if bound.upper else values <= bound.limit
    row = streak(holds, observed, rows)
    if row is None:
        return None
    limits = (-np.inf, bound.limit) if bound.upper else (bound.limit, np.inf)
    text = f"{bound.column} is {values[row]:.4g}: {bound.text}"
    return fact(panel, row, bound.column, text, bound.invariant, bound.severity, bound.votes, limits)


def _non_finite(panel: Panel) -> list[Finding]:
    """NaN or infinity in the update: what comes after is not training."""
    found = []
    for column in ("grad_nonfinite", "nan_count", "grad_norm", "policy_loss", "kl_ref_k1", "kl_ref_k3"):
        values = panel[column]
        broken = values > 0 if column in ("grad_nonfinite", "nan_count") else np.isinf(values)
        if broken.any():
            row = int(np.argmax(broken))
            text = f"{column} is {values[row]:g}: values of the update are not finite"
            found.append(fact(panel, row, column, text, "numerics", 1.0, bounds=(0.0, 0.0)))
    return found


def _too_much_reward(panel: Panel) -> list[Finding]:
    """The mean reward is above that of a flawless episode: it counts what the task does not give."""
    share = panel["reward_success_gap"] + panel["success_mean"]
    observed = seen(share)
    row = streak(share > 1 + 1e-6, observed, 1)
    if row is None:
        return []
    text = f"the mean reward is {share[row]:.3g} times that of a flawless episode"
    votes = {"reward_spike": 1.5, "reward_hacking": 0.5}
    return [fact(panel, row, "reward_mean", text, "reward_trajectory", 0.9, votes)]


def _sampler_gap(panel: Panel) -> list[Finding]:
    """Sampler and trainer disagree on tokens of the same policy. Stale weights fall behind update by update;
    a gap that is there at once, or with weights that are up to date, is a sampler that writes otherwise.
    """
    gap, share = panel["samp_logp_absdiff_mean"], panel["is_ratio_ess"]
    rows = [
        (streak(gap >= _GAP, seen(gap), 2), "samp_logp_absdiff_mean", (-np.inf, _GAP)),
        (streak(share <= _LEAST_ESS, seen(share), 2), "is_ratio_ess", (_LEAST_ESS, np.inf)),
    ]
    found = []
    for row, column, bounds in rows:
        if row is None:
            continue
        later = gap[row : row + _GAP_ROWS]
        sudden = (
            bool(seen(later).any() and gap[row] >= 0.5 * np.nanmax(later))
            or panel["policy_lag_max"][row] == 0
        )
        votes = SAMPLER_VOTES if sudden else {"update_freeze": 1.0}
        why = (
            "the sampler does not write what the policy would"
            if sudden
            else "the sampler's weights are stale"
        )
        text = f"{column} is {panel[column][row]:.4g}: {why}"
        found.append(fact(panel, row, column, text, "sampler", 0.8, votes, bounds))
    return found


def _frozen(panel: Panel) -> list[Finding]:
    """A gradient and a learning rate, and weights that do not move at all."""
    moved, gradient, rate = panel["update_norm_rel"], panel["grad_norm"], panel["lr"]
    observed = seen(moved) & seen(gradient)
    row = streak((moved == 0) & (gradient > 0) & ~(rate == 0), observed, 2)
    if row is None:
        return []
    text = f"the gradient's norm is {gradient[row]:.4g} and the weights do not move"
    return [
        fact(panel, row, "update_norm_rel", text, "optimisation", 0.9, {"update_freeze": 2.0}, (0.0, np.inf))
    ]


def _no_gradient(panel: Panel) -> list[Finding]:
    """Groups that compare something, a learning rate, and no gradient: the loss does not reach the weights.
    A row may stand for several steps and hold the gradient of the last, so that most groups must compare.
    """
    gradient, silent = panel["grad_norm"], panel["zero_signal_frac"]
    spread = np.fmax(panel["group_reward_std_mean"], panel["adv_max"] - panel["adv_min"])
    compares = (silent <= 0.5) | (np.isnan(silent) & (spread > 1e-6))
    row = streak((gradient == 0) & compares & ~(panel["lr"] == 0), seen(gradient), 3)
    if row is None:
        return []
    text = "the gradient is 0 although rewards differ within groups"
    return [fact(panel, row, "grad_norm", text, "optimisation", 0.9, {"update_freeze": 1.5}, (0.0, np.inf))]


def _raw_advantages(panel: Panel) -> list[Finding]:
    """Least and largest advantage are least and largest reward: no baseline was taken off. Rewards around 0
    could look like that by themselves, so the mean must differ from 0 at such a step.
    """
    scale = np.fmax(np.abs(panel["reward_max"]), np.abs(panel["reward_min"]))
    same = np.fmax(
        np.abs(panel["adv_max"] - panel["reward_max"]), np.abs(panel["adv_min"] - panel["reward_min"])
    )
    observed = seen(same) & (np.abs(panel["reward_mean"]) > 0.05 * scale)
    holds = same <= _SAME * scale
    row = streak(holds, observed, _RAW_ROWS)
    if row is None or holds[observed].mean() < 0.8:
        return []
    text = (
        f"advantages are the rewards themselves ({panel['adv_min'][row]:.4g} to {panel['adv_max'][row]:.4g}) "
        f"at {holds[observed].mean():.0%} of the steps: nothing is compared with a baseline"
    )
    value = float(panel["reward_max"][row])
    return [
        fact(panel, row, "adv_max", text, "advantages", 0.9, {"value_mismatch": 2.0}, (value, value)),
    ]


def _no_signal(panel: Panel) -> list[Finding]:
    """All rewards of each group are equal for many steps: nothing is learned. At the highest reward of the
    run the task is solved rather than the run broken.
    """
    silent = panel["zero_signal_frac"]
    flat = panel["adv_max"] - panel["adv_min"]
    column, holds = "zero_signal_frac", silent >= 0.999
    if not panel.observed(column):
        column, holds = "adv_max", (flat == 0) & (panel["adv_max"] == 0)
    observed = seen(panel[column])
    row = streak(holds, observed, _QUIET_ROWS)
    if row is None:
        return []
    reward = panel["reward_mean"]
    level = float(np.nanmean(reward[row : row + _QUIET_ROWS])) if seen(reward).any() else np.nan
    solved = bool(level > 0 and level >= np.nanquantile(reward, 0.9))
    if solved and seen(reward[:row]).any():
        text = f"no group compares anything any more, at the run's highest reward ({level:.4g}): task solved"
        return [fact(panel, row, column, text, "reward_trajectory", 0.3)]
    if not lasts(holds, observed):
        return []
    votes = {"reward_collapse": 0.5, "entropy_collapse": 0.3}
    text = "all rewards of each group are equal, to the end: nothing is learned"
    return [fact(panel, row, column, text, "reward_trajectory", 0.7, votes)]


def _no_reward(panel: Panel, growing: bool) -> list[Finding]:
    """Every reward is the same, 0 or the least that the run knows, to the end. What else is wrong at that
    step is the likelier cause, so this speaks for a fault of the reward by less than 1.
    """
    reward = panel["reward_mean"]
    observed = seen(reward)
    if observed.sum() < 2:
        return []
    least = float(np.nanmin(reward))
    equal = panel["reward_max"] - panel["reward_min"]
    holds = (reward == least) & ((least == 0) | (equal == 0)) & ~(equal > 0)
    row = streak(holds, observed, _UNPAID_ROWS if growing else min(_UNPAID_ROWS, int(observed.sum())))
    if row is None or not lasts(holds, observed):
        return []
    before = bool((reward[:row] > least).any())
    text = f"every reward is {least:g}, to the end" + ("" if before else " and from the start")
    votes = {"reward_collapse": 0.8 if before else 0.4}
    return [fact(panel, row, "reward_mean", text, "reward_trajectory", 0.8, votes)]


def _one_token(panel: Panel) -> list[Finding]:
    """Answers of one token that earn nothing; of one token and rewarded they may be what is asked for."""
    length, reward, silent = panel["len_mean"], panel["reward_mean"], panel["zero_signal_frac"]
    row = streak((length <= 1.5) & ((reward <= 0) | (silent >= 0.9)), seen(length), 2)
    if row is None:
        return []
    votes = {"empty_response": 1.0, "length_short": 0.7}
    text = f"answers have {length[row]:.3g} tokens and earn nothing"
    return [fact(panel, row, "len_mean", text, "generation_quality", 0.9, votes, (1.5, np.inf))]


_RULES: tuple[Callable[[Panel], list[Finding]], ...] = (
    *(_non_finite, _too_much_reward, _sampler_gap, _frozen, _no_gradient),
    *(_raw_advantages, _no_signal, _one_token),
)
