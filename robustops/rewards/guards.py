"""Checks between the computation of a reward and its use; they change nothing in a healthy run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from robustops.records import Episode, Group, RewardParts

Again = Callable[[Episode], RewardParts]


@dataclass(frozen=True)
class RewardGuards:
    """bounded: parts are held to their ranges (winsorised): S and Q in [0, 1], P in [-1, 1]; recheck: the
    parts are computed once more, from the episode's own records and state checks.
    """

    bounded: bool = False
    recheck: bool = False


def guarded(group: Group, guards: RewardGuards, again: Again | None = None) -> Group:
    """The group with its reward parts under the guards; the same group where they change nothing.

    again: computes the parts of an episode; None: only success can be had once more.
    """
    if not (guards.bounded or guards.recheck):
        return group
    return dataclasses.replace(group, episodes=tuple(_guarded(e, guards, again) for e in group.episodes))


def _guarded(episode: Episode, guards: RewardGuards, again: Again | None) -> Episode:
    parts = episode.reward_parts
    if parts is None:
        return episode
    if guards.recheck:
        parts = again(episode) if again else dataclasses.replace(parts, success=float(episode.success))
    success, progress, quality = parts.success, parts.progress, parts.quality
    if guards.bounded:
        success, quality = _within(success, 0.0, 1.0), _within(quality, 0.0, 1.0)
        progress = _within(progress, -1.0, 1.0)
    return dataclasses.replace(episode, reward_parts=RewardParts(success, progress, quality))


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
