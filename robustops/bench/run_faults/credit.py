"""Credit assignment faults: value mismatch (CA-1), advantage instability (CA-2), delayed credit (CA-3).

There is no critic. The value of a start state is its group's mean reward, and that is what CA-1 falsifies.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from robustops.bench.run_faults.mechanism import Mechanism
from robustops.bench.run_faults.spec import uniform, unit_key
from robustops.objectives.advantages import Advantages
from robustops.records import Group, RewardParts
from robustops.rewards.combine import total
from robustops.rollout.hooks import Place

#: Scale of the noise on advantages, whose own deviation is about 1.
NOISE = 3.0


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
                place = Place(step, group.case_id, group.condition, number, episode.index)
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
