"""Names of the tool faults and the plan that says which one an episode gets."""

from __future__ import annotations

from dataclasses import dataclass

from robustops.errors import ConfigError, unknown_name
from robustops.records import Record

#: Family -> its mechanisms (RobustOps: five families, seven runtime subtypes).
FAMILIES: dict[str, tuple[str, ...]] = {
    "known_not_executed": ("temporary_refusal",),
    "incomplete_read": ("missing_rows", "truncated_body"),
    "reply_mixup": ("other_request", "other_object"),
    "unknown_commit": ("lost_receipt",),
    "ignored_filter": ("filter_dropped",),
}
#: All mechanisms, in the order of their families.
SUBTYPES: tuple[str, ...] = tuple(name for names in FAMILIES.values() for name in names)
#: Families that never occur in training data.
HELD_OUT: tuple[str, ...] = ("ignored_filter",)
#: Families that SFT and GRPO may meet.
TRAINED: tuple[str, ...] = tuple(name for name in FAMILIES if name not in HELD_OUT)
#: Mechanisms that strike once only: after a lost receipt the same write is executed normally.
SINGLE: frozenset[str] = frozenset({"lost_receipt"})

_FAMILY_OF = {subtype: family for family, subtypes in FAMILIES.items() for subtype in subtypes}


def family_of(subtype: str) -> str:
    """The family of a mechanism; ConfigError for an unknown name."""
    if subtype not in _FAMILY_OF:
        raise unknown_name("fault subtype", subtype, SUBTYPES)
    return _FAMILY_OF[subtype]


def fault_choices(name: str) -> tuple[str, ...]:
    """The mechanisms behind a choice of the config group `fault`: none, a family, `trained` or `all`."""
    choices: dict[str, tuple[str, ...]] = {
        "none": (),
        **FAMILIES,
        "trained": tuple(subtype for family in TRAINED for subtype in FAMILIES[family]),
        "all": SUBTYPES,
    }
    if name not in choices:
        raise unknown_name("fault", name, choices)
    return choices[name]


def check_subtypes(subtypes: tuple[str, ...]) -> tuple[str, ...]:
    """The names unchanged; ConfigError at the first one that is unknown."""
    for subtype in subtypes:
        family_of(subtype)
    return subtypes


@dataclass(frozen=True)
class FaultPlan(Record):
    """The one fault of an episode.

    opportunity: at which of the episode's calls that are eligible for `subtype` it strikes, from 0;
    cap: how often at most it strikes when the same call is repeated (a lost receipt: once at any cap).
    """

    subtype: str
    opportunity: int = 0
    cap: int = 1

    def __post_init__(self) -> None:
        family_of(self.subtype)
        if self.opportunity < 0:
            raise ConfigError(f"fault opportunity {self.opportunity} is negative; the first one is 0")
        if self.cap < 1:
            raise ConfigError(f"fault repetition cap {self.cap} is below 1; use no plan for no fault")

    @property
    def family(self) -> str:
        return family_of(self.subtype)

    @property
    def repetitions(self) -> int:
        """The cap that applies: 1 for mechanisms that strike once only."""
        return 1 if self.subtype in SINGLE else self.cap
