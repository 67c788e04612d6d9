"""Planners: from a verdict to the next attempt. `rules`, and the arms that it is held against.

| planner | proposes |
|---|---|
| `rules` | the best remedy of the diagnosed type that was not tried yet |
| `oracle` | the same for the type that really is injected, whatever the diagnosis |
| `llm` | what a language model chooses among the open changes, see `llm_planner` |
| `random` | one or two open changes of a family, drawn by seed |
| `rollback` | to go back and change nothing |
| `noop` | nothing: alarms are journaled, the run goes on as if nobody watched |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from robustops.errors import ConfigError
from robustops.monitor.intervention.actions import (
    KNOBS,
    MOST_CHANGES,
    Change,
    Settings,
    check_changes,
    options,
)
from robustops.monitor.intervention.journal import Attempt
from robustops.monitor.intervention.remedies import ranked
from robustops.monitor.panel import Panel
from robustops.monitor.verdict import UNKNOWN, Verdict
from robustops.seeding import generator


@dataclass(frozen=True)
class Situation:
    """What a planner is told. settings: in force before this attempt, by dotted key; attempt: from 1; tried:
    the attempts before at this diagnosis; step: at which the alarm was given; panel: telemetry up to it.
    """

    verdict: Verdict
    settings: Settings
    attempt: int
    step: int
    panel: Panel
    tried: tuple[Attempt, ...] = ()

    def again(self, changes: Iterable[Change]) -> bool:
        """Whether just these changes were tried already."""
        return frozenset(changes) in [attempt.changes for attempt in self.tried]


@dataclass(frozen=True)
class Plan:
    """One attempt: changes (none: only back to the checkpoint), and why, in words; source: who planned it."""

    changes: tuple[Change, ...]
    why: str
    source: str


class Planner(Protocol):
    """name: as in settings; acts: whether it ever proposes anything; needs_type: it is asked only about
    verdicts with a type.
    """

    name: str
    acts: bool
    needs_type: bool

    def plan(self, situation: Situation) -> Plan | None:
        """The next attempt; None: there is nothing left to try."""


@dataclass
class RulePlanner:
    """Remedies of the types of the verdict's label set: the k-th of a type that is likely with p weighs p /
    k, so that a likely type's second remedy comes before an unlikely type's first.
    """

    name: str = "rules"
    acts: bool = True
    needs_type: bool = True

    def plan(self, situation: Situation) -> Plan | None:
        verdict = situation.verdict
        likely = dict(verdict.labels)
        if verdict.type not in (None, UNKNOWN):
            likely.setdefault(str(verdict.type), 1.0)
        return self.first(situation, likely)

    def first(self, situation: Situation, likely: Mapping[str, float]) -> Plan | None:
        """The first remedy that does something and was not tried. likely: types with their weights."""
        columns = [evidence.column for evidence in situation.verdict.evidence]
        remedies = [
            (-weight / place, kind, remedy)
            for kind, weight in likely.items()
            for place, remedy in enumerate(ranked(kind, columns), start=1)
        ]
        for _, kind, remedy in sorted(remedies, key=lambda found: found[0]):
            changes, why = remedy.changes(situation.settings), f"{kind}: {remedy.why}"
            done = why in [attempt.why for attempt in situation.tried] or situation.again(changes)
            if changes and not done:
                check_changes(changes, situation.settings)
                return Plan(changes, why, self.name)
        return None


@dataclass
class OraclePlanner(RulePlanner):
    """Knows the label. types: that are injected into the run; none: it knows that alarms are false."""

    types: tuple[str, ...] = ()
    name: str = "oracle"
    needs_type: bool = False

    def __post_init__(self) -> None:
        self.acts = bool(self.types)

    def plan(self, situation: Situation) -> Plan | None:
        return self.first(situation, dict.fromkeys(self.types, 1.0))


@dataclass
class NoopPlanner:
    """Watches and does nothing."""

    name: str = "noop"
    acts: bool = False
    needs_type: bool = False

    def plan(self, situation: Situation) -> Plan | None:
        return None


@dataclass
class RollbackPlanner:
    """Goes back and changes nothing: with the same seed, training does again what it did."""

    name: str = "rollback"
    acts: bool = True
    needs_type: bool = False

    def plan(self, situation: Situation) -> Plan | None:
        return Plan((), "back to a healthy checkpoint, nothing changed", self.name)


@dataclass
class RandomPlanner:
    """One or two open changes of a family, each family as likely as another. seed: of the run."""

    seed: int
    name: str = "random"
    acts: bool = True
    needs_type: bool = False
    families: tuple[str, ...] = field(
        default_factory=lambda: tuple(
            dict.fromkeys(family for knob in KNOBS.values() for family in knob.families)
        )
    )

    def plan(self, situation: Situation) -> Plan | None:
        random = generator(self.seed, "intervention", situation.step, situation.attempt)
        families = [name for name in self.families if options(situation.settings, [name])]
        if not families:
            return None
        open_changes = options(situation.settings, [random.choice(families)])
        keys = list(dict.fromkeys(change.key for change in open_changes))
        chosen = random.sample(keys, min(len(keys), random.randint(1, MOST_CHANGES)))
        changes = tuple(
            random.choice([change for change in open_changes if change.key == key]) for key in chosen
        )
        check_changes(changes, situation.settings)
        return Plan(changes, "drawn at random", self.name)


#: Planners that need nothing but their name, a seed or the injected types. `llm` is made by `llm_planner`.
NAMES = ("rules", "llm", "noop", "random", "oracle", "rollback")


def make_planner(name: str, *, seed: int, injected: Sequence[str], llm: Mapping[str, Any]) -> Planner:
    """The planner of a name. injected: true types, for the oracle alone; llm: arguments of
    `llm_planner.endpoint`.

    Raises:
        ConfigError: there is no such planner, or the endpoint of `llm` is not named.
    """
    if name == "llm":
        from robustops.monitor.intervention.llm_planner import LLMPlanner, endpoint

        return LLMPlanner(endpoint(**llm), RulePlanner())
    if name == "oracle":
        return OraclePlanner(types=tuple(injected))
    if name == "random":
        return RandomPlanner(seed)
    plain: dict[str, Planner] = {
        "rules": RulePlanner(),
        "noop": NoopPlanner(),
        "rollback": RollbackPlanner(),
    }
    if name not in plain:
        raise ConfigError(f"monitor.planner is '{name}'; choose one of: {', '.join(NAMES)}")
    return plain[name]
