"""Checks between the computation of a reward and its use; they change nothing in a healthy run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from robustops.records import Episode, Group, RewardParts


@dataclass(frozen=True)
class RewardGuards:
    """bounded: parts are held to their ranges (winsorised): S and Q in [0, 1], P in [-1, 1]; recheck: success
    is read off the episode's own state checks once more.
    """

    bounded: bool = False
    recheck: bool = False


def guarded(group: Group, guards: RewardGuards) -> Group:
    """The group with its reward parts under the guards; the same group where they change nothing."""
    if not (guards.bounded or guards.recheck):
        return group
    return dataclasses.replace(group, episodes=tuple(_guarded(e, guards) for e in group.episodes))


def _guarded(episode: Episode, guards: RewardGuards) -> Episode:
    parts = episode.reward_parts
    if parts is None:
        return episode
    success, progress, quality = parts.success, parts.progress, parts.quality
    if guards.recheck:
        success = float(episode.success)
    if guards.bounded:
        success, quality = _within(success, 0.0, 1.0), _within(quality, 0.0, 1.0)
        progress = _within(progress, -1.0, 1.0)
    return dataclasses.replace(episode, reward_parts=RewardParts(success, progress, quality))


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
