"""What all mechanisms have in common: they are hooks that strike units by their own draws and keep a log.

A mechanism never reads the configuration. The knobs that counter it stand behind it on the data's way (a
reward is bounded after it was spiked, a stop token is forbidden after it was favoured), so that they work on
an injected fault as they would on a real one, and only for what they really do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robustops.bench.run_faults.exposure import ExposureLog, Pair
from robustops.bench.run_faults.spec import Key, RunFaultSpec, unit_key
from robustops.learning.hooks import TrainingHooks
from robustops.rewards.combine import RewardWeights
from robustops.rollout.hooks import Place


class Mechanism(TrainingHooks):
    """One mechanism at work. weights: of the reward parts, to say what a baseline is."""

    def __init__(self, spec: RunFaultSpec, log: ExposureLog, weights: RewardWeights | None = None) -> None:
        self.spec = spec
        self.log = log
        self.weights = weights or RewardWeights()

    def idle(self, step: int) -> bool:
        """Whether the step lies outside the window: a hook then returns what it was given."""
        return self.spec.level(step) == 0

    def force(self, place: Place, token: int = 0) -> float:
        """Lambda of the unit at this place; notes it in the log."""
        if self.idle(place.step):
            return 0.0
        key = unit_key(self.spec.unit, place, token)
        level = self.spec.intensity(place.step, key)
        self.log.seen(place.step, key, struck=level > 0)
        return level

    def occurs(self, place: Place) -> bool:
        """All or nothing: whether a unit is struck, with lambda as the probability."""
        level = self.force(place)
        return level > 0 and self.spec.happens(unit_key(self.spec.unit, place), level)

    def note(
        self,
        place: Place,
        before: object,
        after: object,
        token: int = 0,
        numbers: Sequence[Pair] | None = None,
    ) -> None:
        """What a struck unit's value was and has become. numbers: that measure it, before and after; None:
        the values themselves, where they are numbers.
        """
        key: Key = (*unit_key("turn", place), token)
        if numbers is None:
            plain = _is_number(before) and _is_number(after)
            numbers = [(before, after)] if plain else []  # type: ignore[list-item]
        self.log.changed(place.step, key, before, after, numbers)

    def begin(self, steps_done: int) -> None:
        self.log.begin(steps_done)

    def end_step(self, step: int) -> None:
        self.log.end_step(step)

    def state_dict(self) -> dict[str, Any]:
        return {"exposure": self.log.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.log.load_state_dict(state["exposure"])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def step_place(step: int) -> Place:
    """The place of what concerns a whole step."""
    return Place(step, "", "", 0, 0)
