"""Families and types of run faults (RFT-FaultBench, table I), as verdicts name them.

The same names as in the catalogue of the benchmark, which the monitor does not load; a test compares them.
"""

from __future__ import annotations

from robustops.errors import unknown_name

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
