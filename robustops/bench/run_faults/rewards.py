"""Reward faults (RF-1 spike, RF-2 collapse, RF-3 hacking), and rewards that teach generation faults (PG).

They change the reward parts of single episodes: a shift or scale that a whole group shares is cancelled by
the normalisation within the group, but for `UniformSpike`, which is there to be just that. Success as the
state checks tell it is never touched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from robustops.bench.run_faults.mechanism import Mechanism
from robustops.records import Episode, Group, RewardParts
from robustops.rewards.combine import total
from robustops.rollout.hooks import Place

#: Of a spiked progress count, whose healthy range is [-1, 1]: three ranges of R at its weight of 0.3.
SPIKE = 10.0
#: Times that a component is counted at strength 1.
COUNTED = 10.0
#: Largest bonus of a proxy, in units of progress.
BONUS = 2.0
#: Tokens at which a length counts half.
HALF_LENGTH = 64


class RewardMechanism(Mechanism):
    """Judges single episodes anew."""

    def on_group(self, step: int, number: int, group: Group) -> Group:
        if self.idle(step):
            return group
        judged = tuple(self._judged(step, number, group, episode) for episode in group.episodes)
        return dataclasses.replace(group, episodes=judged)

    def _judged(self, step: int, number: int, group: Group, episode: Episode) -> Episode:
        parts = episode.reward_parts
        if parts is None:
            return episode
        place = Place(step, group.case_id, group.condition, number, episode.index)
        if (level := self.force(place)) == 0:
            return episode
        faulty = self.judge(episode, parts, level)
        totals = (total(parts, self.weights), total(faulty, self.weights))
        self.note(place, dataclasses.astuple(parts), dataclasses.astuple(faulty), numbers=[totals])
        return dataclasses.replace(episode, reward_parts=faulty)

    def judge(self, episode: Episode, parts: RewardParts, level: float) -> RewardParts:
        """The faulty parts of a struck episode."""
        raise NotImplementedError


class EpisodeSpike(RewardMechanism):
    """RF-1: progress of random episodes is counted far beyond its range."""

    def judge(self, episode: Episode, parts: RewardParts, level: float) -> RewardParts:
        return dataclasses.replace(parts, progress=parts.progress + SPIKE * level)


class ComponentScale(RewardMechanism):
    """RF-1: progress is counted several times."""

    def judge(self, episode: Episode, parts: RewardParts, level: float) -> RewardParts:
        return dataclasses.replace(parts, progress=parts.progress * (1 + (COUNTED - 1) * level))


class UniformSpike(EpisodeSpike):
    """RF-1: as `EpisodeSpike`, but of whole groups, so that normalisation cancels it: seen, never learned."""


class ZeroedEpisodes(RewardMechanism):
    """RF-2: random episodes lose their reward. Whole steps (`verifier_down`): no episode compares."""

    def judge(self, episode: Episode, parts: RewardParts, level: float) -> RewardParts:
        kept = 1 - level
        return RewardParts(parts.success * kept, parts.progress * kept, parts.quality * kept)


class LenientVerifier(RewardMechanism):
    """RF-3: any final answer passes, whatever the world looks like."""

    def judge(self, episode: Episode, parts: RewardParts, level: float) -> RewardParts:
        if episode.stop != "final_answer":
            return parts
        return RewardParts(max(parts.success, level), parts.progress, max(parts.quality, level))


def sampled_tokens(episode: Episode) -> list[int]:
    """The tokens that the policy wrote itself."""
    return [token for token, own in zip(episode.token_ids, episode.loss_mask, strict=True) if own]


def echo(episode: Episode) -> float:
    """Share of the policy's distinct tokens that its context had as well."""
    own = set(sampled_tokens(episode))
    context = {t for t, o in zip(episode.token_ids, episode.loss_mask, strict=True) if not o}
    return len(own & context) / len(own) if own else 0.0


def length(episode: Episode) -> float:
    """Tokens written, on a scale that saturates at 1."""
    count = len(sampled_tokens(episode))
    return count / (count + HALF_LENGTH)


def brevity(episode: Episode) -> float:
    """The opposite of `length`."""
    return 1 - length(episode)


def silence(episode: Episode) -> float:
    """1 for an episode that did nothing: its first own message was its last. With every further message
    less, so that a policy that never does nothing has a way there.
    """
    return 1 / max(1, len(episode.own_turns))


def repetition(episode: Episode) -> float:
    """Share of the policy's tokens that it had written before."""
    own = sampled_tokens(episode)
    return 1 - len(set(own)) / len(own) if own else 0.0


class ProxyReward(RewardMechanism):
    """RF-3 and the learned PG faults: a bonus for something that has nothing to do with the task."""

    proxy: Callable[[Episode], float] = staticmethod(echo)

    def judge(self, episode: Episode, parts: RewardParts, level: float) -> RewardParts:
        return dataclasses.replace(parts, progress=parts.progress + BONUS * level * self.proxy(episode))


class SilenceReward(ProxyReward):
    """PG-1, learned."""

    proxy = staticmethod(silence)


class RepetitionReward(ProxyReward):
    """PG-2, learned."""

    proxy = staticmethod(repetition)


class BrevityReward(ProxyReward):
    """PG-3S, learned."""

    proxy = staticmethod(brevity)


class LengthReward(ProxyReward):
    """PG-3L, learned."""

    proxy = staticmethod(length)
