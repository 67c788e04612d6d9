"""Advantages of episodes from their reward parts (RobustOps; component order after GDPO).

    aggregate:  A = Z_batch[ Z_group(R) ],                                   R = S + 0.3 P + 0.1 Q
    component:  A = Z_batch[ Z_group(S) + 0.3 Z_group(P) + 0.1 Z_group(Q) ]
    Z(x) = (x - mean) / (std + eps), std the sample standard deviation (ddof = 1)

`Z_batch` runs over the trajectories of the *accepted* batch, each once, whatever its length. Members of
groups without signal are not accepted: they stay at exactly 0 and do not enter its mean and deviation,
so that a batch that could not be refilled trains as its other groups would alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from robustops.errors import TrainingError
from robustops.records import RewardParts
from robustops.rewards.combine import RewardWeights, total

#: The source names an epsilon but not its value; veRL, on which it builds, uses this one.
EPSILON = 1e-6
#: Values nearer than this (relative to their size) are equal: parts are ratios of small counts, so real
#: differences are far larger, while rounding noise over a tiny deviation would become a large advantage.
TOLERANCE = 1e-6

Groups = Sequence[int] | Tensor


@dataclass(frozen=True)
class Advantages:
    """values: (episodes,) float64; quality: (episodes,) the share of `values` that Q has brought in;
    baseline: (episodes,) what each weighted reward was compared with, None: not told; compared: (episodes,)
    with how many each was normalised, itself included, None: not told; without_own: no baseline holds the
    reward that is compared with it.
    """

    values: Tensor
    quality: Tensor
    baseline: Tensor | None = None
    compared: Tensor | None = None
    without_own: bool = False


@dataclass(frozen=True)
class Comparison:
    """How values of a group are compared. leave_one_out: with the mean of the group's other values (RLOO)
    rather than that of all: (x_i - m_-i) = G / (G - 1) (x_i - m); std_floor: least deviation that they are
    divided by, so that a group that hardly differs does not make as much of it as one that does.
    """

    leave_one_out: bool = False
    std_floor: float = 0.0


#: Group mean and deviation as they are.
PLAIN = Comparison()


def group_z(values: Tensor, groups: Groups, eps: float = EPSILON, comparison: Comparison = PLAIN) -> Tensor:
    """Z-score of each value within its group.

    Args:
        values: (episodes,) raw values.
        groups: (episodes,) an integer a group; members need not be neighbours.
        eps: added to the deviation.
        comparison: baseline and deviation.

    Returns:
        (episodes,) float64; exactly 0 for a group of one and for a group of equal values.
    """
    values = values.double()
    index, count = group_index(groups, len(values))
    mean, std = _group_moments(values, index, count)
    scored = (values - mean[index]) / _divisors(std, index, count, eps, comparison)
    return torch.where(_varies(values, index, count)[index], scored, torch.zeros_like(scored))


def batch_z(values: Tensor, accepted: Tensor | None = None, eps: float = EPSILON) -> Tensor:
    """Z-score over the accepted episodes of a batch.

    Args:
        values: (episodes,) group-relative values.
        accepted: (episodes,) bool; the others get exactly 0 and do not count. Default: all.
        eps: added to the deviation.

    Returns:
        (episodes,) float64; all 0 where fewer than two are accepted or they are all equal.
    """
    values = values.double()
    mean, scale = _batch_moments(values, accepted, eps)
    scored = (values - mean) * scale
    return scored if accepted is None else torch.where(accepted, scored, torch.zeros_like(scored))


def aggregate(
    parts: Sequence[RewardParts],
    groups: Groups,
    weights: RewardWeights | None = None,
    eps: float = EPSILON,
    *,
    whiten: bool = True,
    comparison: Comparison = PLAIN,
) -> Advantages:
    """`Z_batch[Z_group(R)]`: parts are summed first. whiten False: without `Z_batch`."""
    quality, rewards = _columns(parts)[2], weighted_rewards(parts, weights)
    index, count = group_index(groups, len(parts))
    scored = group_z(rewards, groups, eps, comparison)
    std = _group_moments(rewards, index, count)[1]
    centred = quality - group_means(quality, groups)
    varies = _varies(rewards, index, count)[index]
    divisors = _divisors(std, index, count, eps, comparison)
    share = torch.where(varies, _scales(weights)[2] * centred / divisors, torch.zeros_like(scored))
    made = _whitened(scored, share, varies, eps, whiten=whiten)
    return _told(made, rewards, groups, comparison)


def component(
    parts: Sequence[RewardParts],
    groups: Groups,
    weights: RewardWeights | None = None,
    eps: float = EPSILON,
    *,
    whiten: bool = True,
    comparison: Comparison = PLAIN,
) -> Advantages:
    """`Z_batch[w_S Z_group(S) + w_P Z_group(P) + w_Q Z_group(Q)]`: each part is normalised first.

    whiten False: without `Z_batch`.
    """
    columns, scales = _columns(parts), _scales(weights)[:, None]
    scored = scales * torch.stack([group_z(column, groups, eps, comparison) for column in columns])
    made = _whitened(scored.sum(dim=0), scored[2], has_signal(parts, groups, weights), eps, whiten=whiten)
    return _told(made, (scales * columns).sum(dim=0), groups, comparison)


def against_values(
    parts: Sequence[RewardParts],
    values: Tensor,
    weights: RewardWeights | None = None,
    eps: float = EPSILON,
    *,
    whiten: bool = True,
) -> Advantages:
    """`Z_batch[R - V]`, whatever the groups; values: (episodes,) V. No share is told to be quality's."""
    made = weighted_rewards(parts, weights) - values.double()
    everyone = torch.ones(len(made), dtype=torch.bool)
    scored = _whitened(made, torch.zeros_like(made), everyone, eps, whiten=whiten)
    return replace(scored, baseline=values.double(), without_own=True)


def has_signal(parts: Sequence[RewardParts], groups: Groups, weights: RewardWeights | None = None) -> Tensor:
    """(episodes,) bool: a part with non-zero weight differs within the episode's group.

    Length and local penalties make no signal: they never enter here. An all-success group can have
    signal through quality; dynamic sampling drops it all the same, see `all_success`.
    """
    index, count = group_index(groups, len(parts))
    signal = torch.zeros(count, dtype=torch.bool)
    for scale, column in zip(_scales(weights), _columns(parts), strict=True):
        if scale != 0:
            signal |= _varies(column, index, count)
    return signal[index]


def all_success(parts: Sequence[RewardParts], groups: Groups) -> Tensor:
    """(episodes,) bool: every member of the episode's group succeeded."""
    index, count = group_index(groups, len(parts))
    failed = torch.tensor([part.success < 1 for part in parts], dtype=torch.bool)
    failures = torch.bincount(index[failed], minlength=count)
    return (failures == 0)[index]


def group_index(groups: Groups, length: int) -> tuple[Tensor, int]:
    """Group ids as 0..count-1."""
    given = torch.as_tensor(groups).reshape(-1)
    if len(given) != length:
        raise TrainingError(f"{length} episodes but {len(given)} group ids; give one group id an episode")
    if length == 0:
        raise TrainingError("a batch without episodes has no advantages; collect at least one group")
    unique, index = torch.unique(given, return_inverse=True)
    return index, len(unique)


def group_means(values: Tensor, groups: Groups) -> Tensor:
    """(episodes,) float64: the mean over each episode's group."""
    index, count = group_index(groups, len(values))
    return _group_moments(values.double(), index, count)[0][index]


def weighted_rewards(parts: Sequence[RewardParts], weights: RewardWeights | None = None) -> Tensor:
    """(episodes,) float64: R of raw reward parts (default weights: those of the source)."""
    return torch.tensor([total(part, weights) for part in parts], dtype=torch.float64)


def leave_one_out_means(values: Tensor, groups: Groups) -> Tensor:
    """(episodes,) float64: the mean of the others of each episode's group; its own where it is alone."""
    values = values.double()
    index, count = group_index(groups, len(values))
    size = _sizes(index, count).double()
    others = (size * group_means(values, groups) - values) / (size - 1).clamp(min=1)
    return torch.where(size > 1, others, values)


def _told(made: Advantages, rewards: Tensor, groups: Groups, comparison: Comparison) -> Advantages:
    """With what the rewards were compared with."""
    left_out = comparison.leave_one_out
    baseline = leave_one_out_means(rewards, groups) if left_out else group_means(rewards, groups)
    sizes = _sizes(*group_index(groups, len(rewards)))
    return replace(made, baseline=baseline, compared=sizes, without_own=left_out)


def _divisors(std: Tensor, index: Tensor, count: int, eps: float, comparison: Comparison) -> Tensor:
    """(episodes,) what a value's distance from its group's mean is divided by."""
    least = std.clamp(min=comparison.std_floor) + eps
    if not comparison.leave_one_out:
        return least[index]
    size = torch.bincount(index, minlength=count).double()
    return (least * (size - 1).clamp(min=1) / size)[index]


def _sizes(index: Tensor, count: int) -> Tensor:
    """(episodes,) int: size of each episode's group."""
    return torch.bincount(index, minlength=count)[index]


def _group_moments(values: Tensor, index: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(groups,) mean and sample deviation."""
    size = torch.bincount(index, minlength=count).double()
    mean = torch.zeros(count, dtype=torch.float64).index_add_(0, index, values) / size
    squares = torch.zeros(count, dtype=torch.float64).index_add_(0, index, (values - mean[index]) ** 2)
    return mean, (squares / (size - 1).clamp(min=1)).sqrt()


def _batch_moments(values: Tensor, accepted: Tensor | None, eps: float) -> tuple[float, float]:
    """Mean, and 1 / (sample deviation + eps), of the accepted values; the latter 0 where they are equal."""
    chosen = values if accepted is None else values[accepted]
    if len(chosen) < 2 or _same(chosen.min(), chosen.max()):
        return 0.0, 0.0
    return float(chosen.mean()), float(1 / (chosen.std(correction=1) + eps))


def _whitened(scored: Tensor, quality: Tensor, accepted: Tensor, eps: float, *, whiten: bool) -> Advantages:
    """Advantages from group-relative values; the quality share is scaled as they are, without their mean."""
    if not whiten:
        return Advantages(scored, quality)
    _, scale = _batch_moments(scored, accepted, eps)
    return Advantages(batch_z(scored, accepted, eps), torch.where(accepted, quality * scale, 0.0))


def _varies(values: Tensor, index: Tensor, count: int) -> Tensor:
    """(groups,) bool: the group's values are not all equal."""
    values = values.double()
    low = torch.full((count,), torch.inf, dtype=torch.float64).scatter_reduce_(0, index, values, "amin")
    high = torch.full((count,), -torch.inf, dtype=torch.float64).scatter_reduce_(0, index, values, "amax")
    return ~_same(low, high)


def _same(low: Tensor, high: Tensor) -> Tensor:
    return high - low <= TOLERANCE * torch.maximum(low.abs(), high.abs()).clamp(min=1)


def _scales(weights: RewardWeights | None) -> Tensor:
    weights = weights or RewardWeights()
    return torch.tensor([weights.success, weights.progress, weights.quality], dtype=torch.float64)


def _columns(parts: Sequence[RewardParts]) -> Tensor:
    """(3, episodes) float64: success, progress, quality; refuses what is not finite."""
    columns = torch.tensor([[p.success, p.progress, p.quality] for p in parts], dtype=torch.float64)
    columns = columns.reshape(-1, 3).T
    broken = (~columns.isfinite()).nonzero()
    if len(broken):
        part, row = broken[0].tolist()
        name = ("success", "progress", "quality")[part]
        raise TrainingError(
            f"reward part {name} of episode {row} is {columns[part, row].item()}; an episode whose reward "
            "failed is invalid and must be left out of its group"
        )
    return columns
