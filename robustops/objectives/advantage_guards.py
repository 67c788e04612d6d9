"""Checks of advantages between their computation and their use.

What group-relative advantages must satisfy can be held against them: they sum to zero within a group, and
an episode with more reward than its group's mean has no negative advantage. The `clip` and `centre` rules
leave a healthy run as it is (`centre` but for rounding); `consistent` may mask episodes whose parts pull in
different directions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from robustops.errors import TrainingError
from robustops.objectives.advantages import Advantages, group_means, weighted_rewards
from robustops.records import RewardParts
from robustops.rewards.combine import RewardWeights

RULES = ("none", "centre", "consistent", "recompute")


@dataclass(frozen=True)
class AdvantageGuards:
    """rule: none | centre (the mean of each group is subtracted: its rewards then have their own mean as
    baseline) | consistent (an advantage whose sign contradicts the episode's reward relative to its group's
    mean becomes 0) | recompute (whatever was computed or buffered, advantages are computed anew from the
    rewards of the groups that the episodes themselves tell of); clip: largest absolute value; regroup: groups
    are those that the episodes tell of (`objectives.grouping`); even: all tokens of an episode end with its
    advantage, whatever local credit gave them. `recompute` and the latter two are the trainer's to apply,
    before and after `guarded`.
    """

    rule: str = "none"
    clip: float | None = None
    regroup: bool = False
    even: bool = False


def guarded(
    advantages: Advantages,
    parts: Sequence[RewardParts],
    groups: Sequence[int],
    guards: AdvantageGuards,
    weights: RewardWeights | None = None,
) -> Advantages:
    """Advantages under the guards. The quality share is scaled with its advantage, and goes where it goes.

    Args:
        advantages: of the episodes, (episodes,).
        parts: their reward parts, in order.
        groups: an integer a group, one for each episode.
        guards: the rules.
        weights: of the parts.
    """
    if guards.rule not in RULES:
        raise TrainingError(f"unknown advantage guard '{guards.rule}'; choose one of: {', '.join(RULES)}")
    values, quality, baseline = advantages.values, advantages.quality, advantages.baseline
    if guards.rule == "centre":
        values = values - group_means(values, groups)
        baseline = None if baseline is None else group_means(weighted_rewards(parts, weights), groups)
        advantages = dataclasses.replace(advantages, without_own=False)
    elif guards.rule == "consistent":
        rewards = weighted_rewards(parts, weights)
        relative = rewards - group_means(rewards, groups)
        agrees = values * relative >= 0
        values, quality = values * agrees, quality * agrees
    if guards.clip is not None:
        clipped = values.clamp(-guards.clip, guards.clip)
        share = torch.where(values != 0, clipped / torch.where(values != 0, values, 1.0), 1.0)
        values, quality = clipped, quality * share
    return dataclasses.replace(advantages, values=values, quality=quality, baseline=baseline)
