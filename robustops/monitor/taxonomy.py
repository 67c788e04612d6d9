"""Families and types of run faults (RFT-FaultBench, table I), as verdicts name them.

The same names as in the catalogue of the benchmark, which the monitor does not load; a test compares them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from robustops.errors import unknown_name
from robustops.monitor.verdict import UNKNOWN

#: Family -> its types, in the order of the paper's table.
FAMILIES: dict[str, tuple[str, ...]] = {
    "reward": ("reward_spike", "reward_collapse", "reward_hacking"),
    "generation": ("empty_response", "repetition_collapse", "length_short", "length_long"),
    "optimisation": ("kl_explosion", "update_freeze", "entropy_collapse"),
    "credit": ("value_mismatch", "advantage_instability", "delayed_credit"),
    "environment": ("tool_call_error", "observation_corruption", "termination_error"),
}
#: All types.
TYPES: tuple[str, ...] = tuple(name for types in FAMILIES.values() for name in types)
#: Type -> its code in the paper.
CODES: dict[str, str] = dict(
    zip(
        TYPES,
        (
            *("RF-1", "RF-2", "RF-3"),
            *("PG-1", "PG-2", "PG-3S", "PG-3L"),
            *("OD-1", "OD-2", "OD-3"),
            *("CA-1", "CA-2", "CA-3"),
            *("TE-1", "TE-2", "TE-3"),
        ),
        strict=True,
    )
)
#: Type -> its family.
FAMILY_OF: dict[str, str] = {name: family for family, types in FAMILIES.items() for name in types}


def family_of(name: str) -> str:
    """Family of a type; ConfigError for a name that is no type."""
    if name not in FAMILY_OF:
        raise unknown_name("run fault", name, TYPES)
    return FAMILY_OF[name]


def cause_of(labels: Mapping[str, float]) -> tuple[str, str]:
    """(family, type) of a label set, types with their weights. Several types with as much leave the type
    unknown, and the family is that of most of them.
    """
    if not labels:
        return UNKNOWN, UNKNOWN
    best = max(labels.values())
    leaders = [kind for kind, share in labels.items() if share > 0.999 * best]
    (family, _), *_ = Counter(family_of(kind) for kind in leaders).most_common(1)
    return family, leaders[0] if len(leaders) == 1 else UNKNOWN
