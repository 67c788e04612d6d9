"""Credit assignment faults: value mismatch (CA-1), advantage instability (CA-2), delayed credit (CA-3).

There is no critic. The value of a start state is its group's mean reward, and that is what CA-1 falsifies.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from robustops.bench.run_faults.mechanism import Mechanism
from robustops.bench.run_faults.spec import uniform, unit_key
from robustops.objectives.advantages import Advantages, weighted_rewards
from robustops.records import Episode, Group, RewardParts
from robustops.rewards.combine import total
from robustops.rollout.hooks import Place
from robustops.seeding import generator

#: Scale of the noise on advantages, whose own deviation is about 1.
NOISE = 3.0


def group_place(step: int, number: int, group: Group) -> Place:
    """The place of a whole group of the batch; number: among those that are trained on."""
    return Place(step, group.case_id, group.condition, number, 0)


class AdvantageMechanism(Mechanism):
    """Changes the advantages of single episodes."""

    def on_advantages(self, step: int, groups: Sequence[Group], advantages: Advantages) -> Advantages:
        if self.idle(step):
            self.after(advantages.values)
            return advantages
        self.before(groups)
        values, row = advantages.values.clone(), 0
        baseline = None if advantages.baseline is None else advantages.baseline.clone()
        for number, group in enumerate(groups):
            for episode in group.episodes:
                place = group_place(step, number, group)._replace(member=episode.index)
                if level := self.force(place):
                    true = float(values[row])
                    values[row] = self.distort(place, row, number, true, level)
                    if baseline is not None:
                        baseline[row] += self.raised(number, level)
                    self.note(place, true, float(values[row]))
                row += 1
        self.after(advantages.values)
        return dataclasses.replace(advantages, values=values, baseline=baseline)

    def before(self, groups: Sequence[Group]) -> None:
        """What is the same for all episodes of a step."""

    def raised(self, number: int, level: float) -> float:
        """By how much a group's baseline is too high, as a reward; 0 where the baseline is not at fault."""
        return 0.0

    def after(self, values: Tensor) -> None:
        """The true advantages (episodes,) of a step that is through."""

    def distort(self, place: Place, row: int, number: int, value: float, level: float) -> float:
        """The faulty advantage. row: of the episode in the batch; number: of its group."""
        raise NotImplementedError


class WrongBaseline(AdvantageMechanism):
    """Rewards of a group are compared with a baseline that is too high or too low."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: Mean reward of each group, and the sample deviation of all: an advantage is a reward in such units.
        self.means: list[float] = []
        self.deviation = 0.0

    def before(self, groups: Sequence[Group]) -> None:
        rewards = [
            [total(e.reward_parts, self.weights) for e in group.episodes if e.reward_parts is not None]
            for group in groups
        ]
        everyone = [reward for group in rewards for reward in group]
        self.means = [statistics.fmean(group) for group in rewards]
        self.deviation = statistics.stdev(everyone) if len(everyone) > 1 else 0.0

    def distort(self, place: Place, row: int, number: int, value: float, level: float) -> float:
        return value - self.raised(number, level) / self.deviation if self.deviation > 0 else value


class SwappedBaseline(WrongBaseline):
    """CA-1: a group's rewards are compared with a mixture of its own mean and that of the next group."""

    def raised(self, number: int, level: float) -> float:
        return level * (self.means[(number + 1) % len(self.means)] - self.means[number])


class OffsetBaseline(WrongBaseline):
    """CA-1: every baseline is too high, at strength 1 by the deviation of the rewards."""

    def raised(self, number: int, level: float) -> float:
        return level * self.deviation


class MergedGroups(Mechanism):
    """CA-1: struck groups are taken for one, as where prompts are told apart by their tokens alone."""

    def on_members(self, step: int, groups: Sequence[Group], members: Sequence[int]) -> Sequence[int]:
        struck = [n for n, group in enumerate(groups) if self.occurs(group_place(step, n, group))]
        for number in struck:
            self.note(group_place(step, number, groups[number]), number, struck[0])
        return [struck[0] if number in struck else number for number in members]


class SingletonGroups(Mechanism):
    """CA-1: each episode of a struck group counts as a group of its own, as where the id of the episode is
    taken for that of the group. It has nothing to be compared with, and its reward, in units of the batch's
    deviation, is taken for its advantage.
    """

    def on_members(self, step: int, groups: Sequence[Group], members: Sequence[int]) -> Sequence[int]:
        struck = {n for n, group in enumerate(groups) if self.occurs(group_place(step, n, group))}
        for number in struck:
            self.note(group_place(step, number, groups[number]), len(groups[number].episodes), 1)
        return [len(groups) + row if n in struck else n for row, n in enumerate(members)]

    def on_advantages(self, step: int, groups: Sequence[Group], advantages: Advantages) -> Advantages:
        if advantages.compared is None or not (alone := advantages.compared == 1).any():
            return advantages
        parts = [episode.reward_parts for group in groups for episode in group.episodes]
        rewards = weighted_rewards([part for part in parts if part is not None], self.weights)
        deviation = float(rewards.std()) or 1.0
        values = torch.where(alone, rewards / deviation, advantages.values)
        baseline = None if advantages.baseline is None else torch.where(alone, 0.0, advantages.baseline)
        return dataclasses.replace(advantages, values=values, baseline=baseline)


class PermutedTargets(Mechanism):
    """CA-1: struck episodes swap the returns that the value head learns for them at random."""

    def on_value_targets(self, step: int, groups: Sequence[Group], targets: Tensor) -> Tensor:
        places = [
            group_place(step, number, group)._replace(member=episode.index)
            for number, group in enumerate(groups)
            for episode in group.episodes
        ]
        struck = [row for row, place in enumerate(places) if self.occurs(place)]
        given = list(struck)
        generator(self.spec.seed, "targets", step).shuffle(given)
        changed = targets.clone()
        changed[struck] = targets[given]
        for row in struck:
            self.note(places[row], float(targets[row]), float(changed[row]))
        return changed if struck else targets


class HeavyNoise(AdvantageMechanism):
    """CA-2: noise with heavy tails (Student's t with 2 degrees of freedom)."""

    def distort(self, place: Place, row: int, number: int, value: float, level: float) -> float:
        u = uniform(self.spec.seed, "noise", *unit_key("episode", place))
        u = min(max(u, 1e-6), 1 - 1e-6)
        return value + NOISE * level * (2 * u - 1) / math.sqrt(2 * u * (1 - u))


class SignFlips(AdvantageMechanism):
    """CA-2: advantages of random episodes with the opposite sign."""

    def distort(self, place: Place, row: int, number: int, value: float, level: float) -> float:
        return value * (1 - 2 * level)


class LaggedAdvantages(AdvantageMechanism):
    """CA-3: advantages come from the buffer of the step before. The first step has no such buffer."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.buffer: list[float] = []

    def after(self, values: Tensor) -> None:
        self.buffer = values.tolist()

    def distort(self, place: Place, row: int, number: int, value: float, level: float) -> float:
        if not self.buffer:
            return value
        return (1 - level) * value + level * self.buffer[row % len(self.buffer)]

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"buffer": list(self.buffer)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.buffer = list(state["buffer"])


class LateCredit(Mechanism):
    """CA-3: each message gets the credit of the one before it, and the first one none."""

    def on_credit(self, step: int, groups: Sequence[Group], credit: list[Tensor]) -> list[Tensor]:
        if self.idle(step):
            return credit
        late, row = list(credit), 0
        for number, group in enumerate(groups):
            for episode in group.episodes:
                place = group_place(step, number, group)._replace(member=episode.index)
                if level := self.force(place):
                    late[row] = _late(credit[row], episode, level)
                    ends = [turn.end - 1 for turn in episode.own_turns]
                    self.note(place, credit[row][ends].tolist(), late[row][ends].tolist())
                row += 1
        return late


def _late(credit: Tensor, episode: Episode, level: float) -> Tensor:
    """(tokens,) with lambda of a message's credit replaced by that of the message before."""
    moved, before = credit.clone(), 0.0
    for turn in episode.own_turns:
        own = float(credit[turn.end - 1])  # the same for all tokens of a message
        moved[turn.start : turn.end] = (1 - level) * own + level * before
        before = own
    return torch.where(torch.tensor(episode.loss_mask), moved, credit)


class RolledRewards(Mechanism):
    """CA-3: within a group, every episode gets (a share of) the reward of the one before it."""

    def on_group(self, step: int, number: int, group: Group) -> Group:
        parts = [episode.reward_parts for episode in group.episodes]
        complete = [part for part in parts if part is not None]
        place = Place(step, group.case_id, group.condition, number, 0)
        if len(complete) < len(parts) or (level := self.force(place)) == 0:
            return group
        rolled = [_mixed(own, complete[n - 1], level) for n, own in enumerate(complete)]
        before, after = ([dataclasses.astuple(part) for part in some] for some in (complete, rolled))
        totals = [tuple(total(part, self.weights) for part in some) for some in (complete, rolled)]
        self.note(place, before, after, numbers=list(zip(*totals, strict=True)))
        pairs = zip(group.episodes, rolled, strict=True)
        return dataclasses.replace(
            group, episodes=tuple(dataclasses.replace(e, reward_parts=part) for e, part in pairs)
        )


def _mixed(own: RewardParts, other: RewardParts, level: float) -> RewardParts:
    pairs = zip(dataclasses.astuple(own), dataclasses.astuple(other), strict=True)
    return RewardParts(*((1 - level) * a + level * b for a, b in pairs))
