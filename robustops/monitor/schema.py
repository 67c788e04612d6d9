"""Telemetry schema, version 1: every quantity of a line of `telemetry.jsonl`, its meaning, and who has it.

A GRPO line's `metrics` hold every name of `names()`, in this order, and after them additional numbers, which
are named `part/quantity` (`rollout/rounds`, `clean/success`). Lines of other stages hold those schema
names that the stage has. NaN means "not observed", never 0; a mean or a deviation over too few values is NaN.

Tier `P` (portable) is what other trainers log as well, tier `I` what needs instrumentation of our own.

Over what a quantity is taken:

    sampled  all valid episodes of the step, also of groups that dynamic sampling then left out: what the
             filter takes away is what a collapse looks like. Invalid episodes are in rollout/invalid_episodes
    trained  the episodes, or the trained tokens, of the groups that the step trained on
    step     the optimiser updates of the step

The wall clock stays out of the file, so that equal runs write equal bytes: `step_time` and `t_wall` are the
columns `seconds` and `at` of table `steps` in run.db. `run_id` is the run folder. What is no number is in a
line's `facts` (`FACTS`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

SCHEMA_VERSION = 1

Tier = Literal["P", "I"]
Scope = Literal["sampled", "trained", "step"]

#: Reward parts of this trainer. Other sources name their own: any `rewards.<part>.mean` is known.
COMPONENTS = ("success", "progress", "quality")

#: What a source must have for some quantities; what it has not is in a line's fact `lacks`.
NEEDS = {
    "reference": "a frozen reference policy (here: grpo.kl > 0)",
    "value_head": "a value head; GRPO has a group mean in its place (fact value_source)",
    "sampler_log_probs": "a sampler that reports the log-prob of each sampled token",
    "whole_weights": "each process holds all trained weights (not ZeRO-3), at most 2 GiB of them",
    "verifier": "a success that is not the reward function's (here: the state checks)",
}

#: Facts of a line, by name.
FACTS = {
    "schema_version": "version of this schema",
    "value_source": "what a reward is compared with: group_mean or value_head",
    "policy_version": "optimiser updates behind the weights that the step began with",
    "lacks": "names of NEEDS that this source does not have; `caps` gives the columns it can fill",
    "obs_sha": "16 hex digits (8 B of SHA-256) over the replies that the worlds gave in the sampled episodes",
}

#: Quantities of the wall clock and where they are kept instead.
ELSEWHERE = {
    "step_time": "run.db, steps.seconds (s)",
    "t_wall": "run.db, steps.at",
    "run_id": "the run folder",
}

#: Values that a quantity of this unit can have.
_BOUNDS = {"frac": (0.0, 1.0), "corr": (-1.0, 1.0), "count": (0.0, math.inf)}
_COMPONENT = re.compile(r"rewards\.[^./]+\.(mean|std)")
#: Room for rounding beyond a bound.
_SLACK = 1e-9


@dataclass(frozen=True)
class Quantity:
    """One column.

    unit: rew, frac, corr, count, nats/tok, tok, char, ... (1: a bare ratio); over: see the module; needs:
    names of NEEDS; nan: when a source that has all of these still leaves NaN; low, high: possible values.
    """

    name: str
    unit: str
    tier: Tier
    over: Scope
    formula: str
    needs: tuple[str, ...] = ()
    nan: str = ""
    low: float = -math.inf
    high: float = math.inf


def _q(
    name: str,
    unit: str,
    tier: Tier,
    over: Scope,
    formula: str,
    *needs: str,
    nan: str | None = None,
    low: float | None = None,
    high: float = math.inf,
) -> Quantity:
    """An entry; bounds follow from the unit and NaN from what it is taken over, unless they are given."""
    bounds = _BOUNDS.get(unit, (-math.inf, math.inf))
    why = {"sampled": "no valid episode", "trained": "nothing was trained", "step": ""}[over]
    floor = bounds[0] if low is None else low
    return Quantity(name, unit, tier, over, formula, needs, nan or why, floor, min(high, bounds[1]))


_FEW = "fewer than two values"
_FLAT = "fewer than two values, or one side does not vary"
_NO_UPDATE = "no update of the step had anything to train on"

QUANTITIES: tuple[Quantity, ...] = (
    # rewards -----------------------------------------------------------------------------------------
    _q("reward_mean", "rew", "P", "sampled", "mean of R, the weighted sum of the raw parts, not normalised"),
    _q("reward_std", "rew", "P", "sampled", "sample deviation of R", nan=_FEW, low=0),
    _q("reward_min", "rew", "P", "sampled", "least R"),
    _q("reward_max", "rew", "P", "sampled", "largest R"),
    *(
        entry
        for part in COMPONENTS
        for entry in (
            _q(f"rewards.{part}.mean", "rew", "P", "sampled", f"mean of the raw part {part}, unweighted"),
            _q(f"rewards.{part}.std", "rew", "P", "sampled", "its sample deviation", nan=_FEW, low=0),
        )
    ),
    _q("success_mean", "frac", "I", "sampled", "share whose state checks all pass at the end", "verifier"),
    _q(
        *("reward_success_gap", "rew", "I", "sampled"),
        "mean R / R of a flawless episode (the sum of the weights) - success_mean; a z-scored reward would "
        "have mean 0 whatever it is",
        "verifier",
        nan="no valid episode, or weights that sum to 0",
    ),
    _q("reward_success_corr", "corr", "I", "sampled", "Pearson of R and success", "verifier", nan=_FLAT),
    _q(
        *("group_reward_std_mean", "rew", "P", "sampled", "mean over groups of the sample deviation of R"),
        nan="no group of two valid episodes",
        low=0,
    ),
    _q(
        *("zero_signal_frac", "frac", "P", "sampled", "share of the groups in which R deviates by < 1e-8"),
        nan="no group of two valid episodes",
    ),
    # policy and loss ---------------------------------------------------------------------------------
    _q("kl_ref_k1", "nats/tok", "P", "trained", "mean of logp - ref, all updates", "reference"),
    _q("kl_ref_k3", "nats/tok", "P", "trained", "mean of exp(d) - d - 1, d = ref - logp", "reference", low=0),
    _q(
        *("kl_old", "nats/tok", "P", "trained"),
        "mean of old_logp - logp over the passes of the last epoch, each before its own update. With one "
        "update a step logp has not moved: this is then the sampler's gap, or 0 with importance weights",
    ),
    _q("entropy", "nats/tok", "P", "trained", "mean entropy of the full softmax at temperature 1", low=0),
    _q("clip_frac", "frac", "P", "trained", "share of tokens at which the clip binds, all updates"),
    _q("clip_low", "frac", "P", "trained", "share at which the lower bound binds (negative advantage)"),
    _q("clip_high", "frac", "P", "trained", "share at which the upper bound binds (positive advantage)"),
    _q("ratio_mean", "1", "I", "trained", "mean of exp(logp - old_logp), all updates", low=0),
    _q("ratio_max", "1", "I", "trained", "its largest", low=0),
    _q("ratio_p99", "1", "I", "trained", "its 99th percentile, nearest rank", low=0),
    _q(
        *("samp_logp_absdiff_mean", "nats/tok", "P", "trained"),
        "mean |trainer's - sampler's log-prob| before the step's first update (tokens of the first update; "
        "all tokens where old log-probs are recomputed)",
        "sampler_log_probs",
        low=0,
    ),
    _q("samp_logp_absdiff_max", "nats/tok", "P", "trained", "its largest", "sampler_log_probs", low=0),
    _q(
        *(
            "is_ratio_mean",
            "1",
            "P",
            "trained",
            "mean of w = p_trainer / p_sampler of the same tokens, uncut",
        ),
        "sampler_log_probs",
        low=0,
    ),
    _q("is_ratio_min", "1", "P", "trained", "least w", "sampler_log_probs", low=0),
    _q("is_ratio_max", "1", "P", "trained", "largest w", "sampler_log_probs", low=0),
    _q("is_ratio_ess", "frac", "P", "trained", "(sum w)^2 / (n sum w^2)", "sampler_log_probs"),
    _q(
        *("grad_norm", "1", "P", "step", "L2 norm of the whole gradient before clipping, mean over updates"),
        nan=_NO_UPDATE,
        low=0,
    ),
    _q(
        *("grad_nonfinite", "count", "I", "step"),
        "gradient entries that are NaN or infinite. 0 in each line written here: a norm that is not finite "
        "ends the run before the update",
        nan=_NO_UPDATE,
    ),
    _q(
        *("update_norm_rel", "1", "I", "step"),
        "||theta_t - theta_(t-1)|| / ||theta_(t-1)|| of the trained weights (LoRA: the adapters) as they are "
        "before and after all updates of the step; 0 where they did not move",
        "whole_weights",
        nan="all trained weights are 0",
        low=0,
    ),
    _q("policy_loss", "1", "P", "trained", "the clipped surrogate alone, as weighted, mean over updates"),
    _q("lr", "1", "P", "step", "learning rate of the step's last update", low=0),
    _q("kl_coef", "1", "P", "step", "weight of the KL to the reference in the loss, 0 without one", low=0),
    # advantages --------------------------------------------------------------------------------------
    _q("adv_mean", "1", "P", "trained", "mean over episodes of A, normalised, before local credit"),
    _q("adv_std", "1", "I", "trained", "sample deviation of A", nan=_FEW, low=0),
    _q("adv_min", "1", "P", "trained", "least A"),
    _q("adv_max", "1", "P", "trained", "largest A"),
    _q("adv_absmax", "1", "I", "trained", "largest |A|", low=0),
    _q("adv_kurt", "1", "I", "trained", "m4 / m2^2 - 3 of A", nan=_FLAT, low=-2),
    _q(
        *("adv_group_mean_absmax", "1", "I", "trained"),
        "largest |mean of A within a group|; rounding only where advantages are group-relative",
        low=0,
    ),
    _q(
        *("adv_reward_corr", "corr", "I", "trained", "Pearson of A and R - b, b the baseline that was used"),
        nan=_FLAT + ", or the normalisation tells no baseline",
    ),
    _q(
        *("adv_reward_lag1_corr", "corr", "I", "trained"),
        "Pearson of A and the R - b that stood at the same place of the last buffer trained on (place: "
        "order of accepted groups, then of members; the shorter buffer counts)",
        nan=_FLAT + ", no step before, or no baseline",
    ),
    _q(
        *("adv_token_gap", "1", "I", "trained"),
        "mean |A of a token, as local credit leaves it - A of its episode|",
        low=0,
    ),
    _q("return_mean", "rew", "P", "trained", "mean of R (one reward at the end: the return)"),
    _q("baseline_bias", "rew", "I", "trained", "mean of b - R", nan="the normalisation tells no baseline"),
    _q(
        *("baseline_mae", "rew", "I", "trained", "mean |b - R|"),
        nan="the normalisation tells no baseline",
        low=0,
    ),
    _q(
        *("ev_loo", "1", "I", "trained"),
        "1 - Var(R_i - b_-i) / Var(R) with the leave-one-out baseline b_-i = (G b_i - R_i) / (G - 1)",
        nan=_FLAT + ", or no baseline",
        high=1,
    ),
    _q("vf_loss", "1", "I", "trained", "mean (V - R)^2", "value_head", low=0),
    _q("vf_ev", "1", "I", "trained", "1 - Var(R - V) / Var(R)", "value_head", high=1),
    # generation --------------------------------------------------------------------------------------
    _q(
        "len_mean", "tok", "P", "sampled", "mean of the tokens that the policy wrote, tool replies not", low=0
    ),
    _q("len_std", "tok", "I", "sampled", "their sample deviation", nan=_FEW, low=0),
    _q("len_min", "tok", "P", "sampled", "fewest", low=0),
    _q("len_max", "tok", "P", "sampled", "most", low=0),
    _q("trunc_frac", "frac", "P", "sampled", "share ended by a token budget (of the message or the context)"),
    _q("empty_frac", "frac", "P", "sampled", "share in which no message of the policy holds any text"),
    _q(
        *("rep4", "frac", "I", "sampled"),
        "1 - different / all 4-grams of tokens within the policy's messages, mean over episodes",
        nan="no message of four tokens",
    ),
    _q(
        *("distinct2", "frac", "I", "sampled", "different / all 2-grams of tokens, likewise"),
        nan="no message of two tokens",
    ),
    _q(
        *("group_unique_frac", "frac", "I", "sampled"),
        "different texts of all messages / members, mean over groups",
        nan="no group of two valid episodes",
    ),
    # turns and tools ---------------------------------------------------------------------------------
    _q("turns_mean", "turns", "P", "sampled", "mean of the policy's own messages", low=0),
    _q("turns_max", "turns", "P", "sampled", "most", low=0),
    _q(
        *("early_term_frac", "frac", "I", "sampled"),
        "share that the environment ended before the turn limit: no answer, and no token budget used up",
    ),
    _q("no_answer_frac", "frac", "I", "sampled", "share that did not end with a final answer"),
    _q("tool_calls_mean", "calls", "P", "sampled", "mean of the calls that got a reply", low=0),
    _q(
        *("tool_error_frac", "frac", "P", "sampled", "error replies / calls, injected tool faults included"),
        nan="no call",
    ),
    _q(
        *(
            "invalid_call_frac",
            "frac",
            "P",
            "sampled",
            "unreadable calls / attempts (calls and unreadable ones)",
        ),
        nan="no attempt",
    ),
    _q("obs_len_mean", "char", "I", "sampled", "mean length of a call's reply", nan="no call", low=0),
    _q("obs_len_std", "char", "I", "sampled", "its sample deviation", nan=_FEW, low=0),
    _q(
        *("obs_roundtrip_mismatch_frac", "frac", "I", "sampled"),
        "share of the replies rendered into the context whose digest is not that of what the world said",
        nan="no call",
    ),
    _q(
        *("policy_lag_mean", "updates", "P", "sampled"),
        "mean of policy_version - version of the weights that sampled",
    ),
    _q("policy_lag_max", "updates", "P", "sampled", "largest"),
    # counters ----------------------------------------------------------------------------------------
    _q(
        *("nan_count", "count", "P", "trained"),
        "values that are not finite among log-probs (new, old, sampler, reference), entropies, advantages",
    ),
    _q("skipped_updates", "count", "P", "step", "updates of the step that had nothing to train on"),
)

_BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}


def names(*tiers: Tier) -> tuple[str, ...]:
    """Names in the order of a line; of these tiers only, if any are given."""
    return tuple(q.name for q in QUANTITIES if not tiers or q.tier in tiers)


def quantity(name: str) -> Quantity:
    """The entry of a name; KeyError for a name that the schema does not have."""
    return _BY_NAME[name]


def caps(lacks: Collection[str] = ()) -> tuple[str, ...]:
    """The columns that a source can fill which lacks these of NEEDS; KeyError for another word."""
    missing = {need for need in lacks if NEEDS[need]}
    return tuple(q.name for q in QUANTITIES if missing.isdisjoint(q.needs))


def check_metrics(metrics: Mapping[str, float], *, complete: bool = True) -> list[str]:
    """What is wrong with the metrics of a line, in words; empty where nothing is.

    complete: every name of the schema must be there. Unknown names without `/`, and values that a quantity
    cannot have, are wrong in any line. A 0 that should be NaN cannot be told from a true one.
    """
    problems = [f"{name} is missing" for name in names() if name not in metrics] if complete else []
    for name, value in metrics.items():
        found = _BY_NAME.get(name)
        if found is not None:
            problems += _out_of_bounds(found, value)
        elif "/" not in name and not _COMPONENT.fullmatch(name):
            problems.append(f"{name} is not in schema {SCHEMA_VERSION}; name further numbers part/quantity")
    return problems


def in_order(metrics: Mapping[str, float]) -> dict[str, float]:
    """A complete line: schema names first and in order, NaN where none is given, then all others."""
    line = {name: metrics.get(name, math.nan) for name in names()}
    return line | {name: value for name, value in metrics.items() if name not in line}


def _out_of_bounds(entry: Quantity, value: float) -> list[str]:
    if math.isnan(value):
        return []
    if not entry.low - _SLACK <= value <= entry.high + _SLACK:
        return [f"{entry.name} is {value}, outside [{entry.low:g}, {entry.high:g}]"]
    if entry.unit == "count" and value != int(value):
        return [f"{entry.name} is {value}, no whole number"]
    return []
