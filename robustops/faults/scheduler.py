"""Chooses which fault an episode gets: balanced over mechanisms by what has really been injected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from robustops.errors import ConfigError
from robustops.faults.plan import FAMILIES, SINGLE, FaultPlan, check_subtypes, family_of
from robustops.faults.wrapper import Opportunity
from robustops.seeding import generator

#: Pairs (repetition cap, weight).
Caps = tuple[tuple[int, float], ...]
DEFAULT_CAPS: Caps = ((1, 0.6), (2, 0.3), (3, 0.1))


@dataclass(frozen=True)
class Choice:
    """A fault and the call that it strikes."""

    plan: FaultPlan
    opportunity: Opportunity


def check_caps(caps: Sequence[Sequence[float]]) -> Caps:
    """Repetition caps as pairs; ConfigError for caps below 1 or weights that are no weights."""
    pairs = tuple((int(cap), float(weight)) for cap, weight in caps)
    if not pairs or any(cap < 1 or weight < 0 for cap, weight in pairs) or sum(w for _, w in pairs) <= 0:
        raise ConfigError(f"fault caps {pairs}: give pairs (cap >= 1, weight >= 0) with some weight above 0")
    return pairs


def draw_cap(subtype: str, caps: Caps, rng: Random) -> int:
    """A repetition cap; always 1 for mechanisms that strike once only."""
    drawn = rng.choices([cap for cap, _ in caps], [weight for _, weight in caps])[0]
    return 1 if subtype in SINGLE else drawn


class FaultScheduler:
    """Balances families, then the mechanisms of a family, by actual injections.

    Among the opportunities it is shown it takes the eligible family with the fewest injections so far,
    then that family's eligible mechanism with the fewest, then any call at which it is eligible. Equal
    counts are settled by (seed, step, slot), so that the order of requests changes no draw.
    """

    def __init__(
        self, subtypes: Sequence[str], caps: Sequence[Sequence[float]] = DEFAULT_CAPS, seed: int = 0
    ) -> None:
        self.subtypes = check_subtypes(tuple(subtypes))
        self.caps = check_caps(caps)
        self.seed = seed
        self.injected: dict[str, int] = dict.fromkeys(self.subtypes, 0)

    def choose(self, opportunities: Sequence[Opportunity], step: int, slot: int) -> Choice | None:
        """The fault for one episode, or None where none of the mechanisms is eligible at any call."""
        seen = {name for opportunity in opportunities for name in opportunity.subtypes}
        names = [name for name in self.subtypes if name in seen]
        if not names:
            return None
        rng = generator(self.seed, "scheduler", step, slot)
        families = [f for f in FAMILIES if any(family_of(name) == f for name in names)]
        family = _fewest(families, self.family_counts(), rng)
        subtype = _fewest([n for n in names if family_of(n) == family], self.injected, rng)
        opportunity = rng.choice([o for o in opportunities if subtype in o.subtypes])
        return Choice(opportunity.plan(subtype, draw_cap(subtype, self.caps, rng)), opportunity)

    def record(self, subtype: str) -> None:
        """Count an injection that has taken place."""
        if subtype not in self.injected:
            raise ConfigError(f"fault '{subtype}' is not scheduled here: {', '.join(self.subtypes)}")
        self.injected[subtype] += 1

    def family_counts(self) -> dict[str, int]:
        """Injections so far by family."""
        return {
            family: sum(self.injected.get(subtype, 0) for subtype in subtypes)
            for family, subtypes in FAMILIES.items()
        }

    def state_dict(self) -> dict[str, Any]:
        return {"injected": dict(self.injected)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting from a checkpoint; ConfigError if it was made with other mechanisms."""
        injected = {str(name): int(count) for name, count in state["injected"].items()}
        if set(injected) != set(self.subtypes):
            raise ConfigError(
                f"the checkpoint scheduled the faults {sorted(injected)}, this run schedules "
                f"{sorted(self.subtypes)}; resume with the same fault setting"
            )
        self.injected = injected


def _fewest(names: Sequence[str], counts: dict[str, int], rng: Random) -> str:
    lowest = min(counts[name] for name in names)
    return rng.choice([name for name in names if counts[name] == lowest])
