"""What is injected, how strongly, how often and when."""

from __future__ import annotations

from dataclasses import dataclass

from robustops.errors import ConfigError
from robustops.rollout.hooks import Place
from robustops.seeding import child_seed

#: What is struck or spared as a whole, from the largest to the smallest.
UNITS = ("step", "group", "episode", "turn", "token")
#: A unit by stable facts.
Key = tuple[str | int, ...]

_SEEDS = 2.0**63


def unit_key(unit: str, place: Place, token: int = 0) -> Key:
    """The unit that a message, reply or token belongs to."""
    parts: tuple[Key, ...] = (
        (place.step,),
        (place.case_id, place.condition, place.group),
        (place.member, place.attempt),
        (place.turn, place.asked),
        (token,),
    )
    return tuple(part for own in parts[: UNITS.index(unit) + 1] for part in own)


def uniform(seed: int, *names: str | int) -> float:
    """A number in [0, 1) that depends on the seed and the names only."""
    return child_seed(seed, *names) / _SEEDS


@dataclass(frozen=True)
class RunFaultSpec:
    """One injection.

    fault, mechanism: names of the catalogue; strength: in [0, 1], of the mechanism's largest effect;
    probability: that a unit is struck; unit: of `UNITS`; onset: first step that may be struck, from 1; ramp:
    steps over which the strength grows; end: first step that is spared again, None: never; seed: of the
    injector's own random numbers.
    """

    fault: str
    mechanism: str
    strength: float = 1.0
    probability: float = 1.0
    unit: str = "episode"
    onset: int = 1
    ramp: int = 0
    end: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("strength", "probability"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"run_fault.{name} is {getattr(self, name)}; give 0 to 1")
        if self.unit not in UNITS:
            raise ConfigError(f"run_fault.unit is '{self.unit}'; choose one of: {', '.join(UNITS)}")
        if self.end is not None and self.end <= self.onset:
            raise ConfigError(
                f"run_fault.end={self.end} leaves no step to strike after run_fault.onset={self.onset}; give "
                "a later end, or null"
            )

    def level(self, step: int) -> float:
        """Strength x clip((step - onset + 1) / max(ramp, 1), 0, 1) from onset to before end, else 0."""
        if step < self.onset or (self.end is not None and step >= self.end):
            return 0.0
        return self.strength * min(1.0, (step - self.onset + 1) / max(self.ramp, 1))

    def strikes(self, key: Key) -> bool:
        """The unit's own draw: true with `probability`."""
        return uniform(self.seed, self.fault, self.mechanism, "strikes", *key) < self.probability

    def intensity(self, step: int, key: Key) -> float:
        """Lambda of a unit: its level where it is struck, else 0."""
        level = self.level(step)
        return level if level > 0 and self.strikes(key) else 0.0

    def happens(self, key: Key, share: float, *names: str | int) -> bool:
        """A further draw of a unit: true with probability `share`, for effects that are all or nothing."""
        return uniform(self.seed, self.fault, self.mechanism, "happens", *names, *key) < share
