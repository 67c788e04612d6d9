"""Numbers of a step's advantages, and of the baseline that they came from, over the episodes trained on.

What is not defined is NaN, never 0: a deviation of one value, a correlation with what does not vary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from robustops.objectives.advantages import Advantages, group_index, group_means
from robustops.objectives.statistics import deviation, largest, mean


def advantage_statistics(advantages: Tensor, groups: Sequence[int]) -> dict[str, float]:
    """Of the (episodes,) advantages before they are spread; groups: (episodes,) an integer a group.

    adv_kurt: excess kurtosis m4 / m2^2 - 3; adv_group_mean_absmax: 0 up to rounding where advantages are
    relative to their group.
    """
    values = advantages.double()
    return {
        "adv_mean": mean(values),
        "adv_std": deviation(values),
        "adv_min": -largest(-values),
        "adv_max": largest(values),
        "adv_absmax": largest(values.abs()),
        "adv_kurt": _kurtosis(values),
        "adv_group_mean_absmax": largest(group_means(values, groups).abs()),
    }


def baseline_statistics(rewards: Tensor, advantages: Advantages, groups: Sequence[int]) -> dict[str, float]:
    """What the rewards were compared with.

    Args:
        rewards: (episodes,) R as weighted in the run.
        advantages: of the same episodes; its `baseline` is the one that the normalisation used.
        groups: (episodes,) an integer a group.

    Returns:
        return_mean; baseline_bias, baseline_mae: of b - R; adv_reward_corr: of A and R - b; ev_loo:
        explained variance 1 - Var(R_i - b_-i) / Var(R) of the leave-one-out baseline
        b_-i = (G b_i - R_i) / (G - 1), which a mean that holds R_i itself would inflate. It follows from the
        baseline that was used, so that a wrong one shows, and is that itself where it leaves R_i out
        already; groups of one have none and do not count.
    """
    rewards, baseline = rewards.double(), advantages.baseline
    if baseline is None:
        names = ("baseline_bias", "baseline_mae", "adv_reward_corr", "ev_loo")
        return {"return_mean": mean(rewards), **dict.fromkeys(names, math.nan)}
    relative = rewards - baseline.double()
    return {
        "return_mean": mean(rewards),
        "baseline_bias": mean(-relative),
        "baseline_mae": mean(relative.abs()),
        "adv_reward_corr": correlation(advantages.values, relative),
        "ev_loo": _leave_one_out(rewards, baseline.double(), groups, advantages.without_own),
    }


def credit_statistics(
    advantages: Tensor, credit: Sequence[Tensor], masks: Sequence[Sequence[bool]]
) -> dict[str, float]:
    """How far the advantages of tokens are from those of their episodes.

    Args:
        advantages: (episodes,).
        credit: of the tokens of each episode, (tokens,) each.
        masks: the trained ones among them.

    Returns:
        adv_token_gap: mean |token's advantage - its episode's| over all trained tokens.
    """
    gaps = [
        (own - float(value)).abs().double()[torch.tensor(mask, dtype=torch.bool)]
        for value, own, mask in zip(advantages, credit, masks, strict=True)
    ]
    return {"adv_token_gap": mean(torch.cat(gaps)) if gaps else math.nan}


def lagged_correlation(advantages: Tensor, earlier: Tensor | None) -> float:
    """adv_reward_lag1_corr: of the (episodes,) advantages and the R - b that stood at the same places of an
    earlier step's buffer, as many as both have; None: there was none, or it had no baseline.

    Nothing but the place joins an episode to one of another step: a trainer that mistakes one step's buffer
    for another's mistakes it place by place.
    """
    if earlier is None:
        return math.nan
    count = min(len(advantages), len(earlier))
    return correlation(advantages[:count], earlier[:count])


def correlation(first: Tensor, second: Tensor) -> float:
    """Pearson of two (values,) tensors; NaN below two values, or where one side does not vary."""
    if len(first) < 2 or not (_varies(first) and _varies(second)):
        return math.nan
    one, two = (values.double() - values.double().mean() for values in (first, second))
    return float((one * two).sum() / (one.norm() * two.norm()))


def value_statistics(values: Tensor, rewards: Tensor) -> dict[str, float]:
    """Of a value head's (episodes,) V before it learned from the (episodes,) R. vf_loss: mean (V - R)^2;
    vf_ev: 1 - Var(R - V) / Var(R).
    """
    values, rewards = values.double(), rewards.double()
    known = len(rewards) > 1 and _varies(rewards)
    explained = float(1 - (rewards - values).var() / rewards.var()) if known else math.nan
    return {"vf_loss": mean((values - rewards) ** 2), "vf_ev": explained}


def _leave_one_out(
    rewards: Tensor, baseline: Tensor, groups: Sequence[int], without_own: bool = False
) -> float:
    index, count = group_index(groups, len(rewards))
    size = torch.bincount(index, minlength=count)[index].double()
    chosen = size > 1
    rewards, baseline, size = rewards[chosen], baseline[chosen], size[chosen]
    if len(rewards) < 2 or not _varies(rewards):
        return math.nan
    without = baseline if without_own else (size * baseline - rewards) / (size - 1)
    return float(1 - (rewards - without).var() / rewards.var())


def _kurtosis(values: Tensor) -> float:
    if len(values) < 2 or not _varies(values):
        return math.nan
    centred = values - values.mean()
    return float((centred**4).mean() / (centred**2).mean() ** 2 - 3)


def _varies(values: Tensor) -> bool:
    """Whether the values differ by more than rounding."""
    low, high = float(values.min()), float(values.max())
    return high - low > 1e-12 * max(1.0, abs(low), abs(high))
