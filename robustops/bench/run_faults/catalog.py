"""The 16 types of run faults (RFT-FaultBench, table I) and their mechanisms.

Loads nothing heavy, so that commands can check a request against it. The first mechanism of a type is its
main one: detectors that learn from it are tested on the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from robustops.bench.run_faults.entries import FaultType, MechanismInfo
from robustops.bench.run_faults.entries_policy import GENERATION, OPTIMISATION
from robustops.bench.run_faults.entries_signal import CREDIT, ENVIRONMENT, REWARD
from robustops.errors import ConfigError, unknown_name
from robustops.settings import RunFaultSettings

#: By name, in the order of the paper's table.
CATALOG: dict[str, FaultType] = {
    fault.name: fault for fault in (*REWARD, *GENERATION, *OPTIMISATION, *CREDIT, *ENVIRONMENT)
}


def all_mechanisms() -> Iterator[tuple[FaultType, MechanismInfo]]:
    """Every mechanism with its type."""
    for fault in CATALOG.values():
        for mechanism in fault.mechanisms:
            yield fault, mechanism


def fault_type(name: str) -> FaultType:
    """ConfigError for a name that is not in the catalogue."""
    if name not in CATALOG:
        raise unknown_name("run fault", name, CATALOG)
    return CATALOG[name]


def chosen(settings: RunFaultSettings) -> tuple[FaultType, MechanismInfo]:
    """The type and mechanism that settings name; ConfigError where there is no such thing, or where the
    mechanism does not know their unit.
    """
    fault = fault_type(settings.name)
    by_name = {mechanism.name: mechanism for mechanism in fault.mechanisms}
    if settings.mechanism is not None and settings.mechanism not in by_name:
        raise ConfigError(
            f"run_fault={fault.name} has no mechanism '{settings.mechanism}'; choose run_fault.mechanism="
            f"{' or '.join(by_name)}"
        )
    mechanism = by_name[settings.mechanism] if settings.mechanism else fault.mechanisms[0]
    if settings.unit is not None and settings.unit not in mechanism.units:
        raise ConfigError(
            f"run_fault.unit is '{settings.unit}'; {mechanism.name} strikes by {' or '.join(mechanism.units)}"
        )
    return fault, mechanism


def check_together(first: RunFaultSettings, second: RunFaultSettings) -> None:
    """ConfigError for two run faults that would not be two: a second one alone, the same type twice, or two
    mechanisms that push the same quantity in opposite directions.
    """
    if second.name == "none":
        return
    if first.name == "none":
        raise ConfigError(
            f"second_run_fault is {second.name} and run_fault is none; choose run_fault={second.name} alone"
        )
    if first.name == second.name:
        raise ConfigError(
            f"run_fault and second_run_fault are both {first.name}; choose another type for one of them, or "
            "more strength or probability for a single one"
        )
    (_, one), (_, other) = chosen(first), chosen(second)
    if one.quantity == other.quantity and one.direction != other.direction:
        raise ConfigError(
            f"{one.name} (run_fault={first.name}) and {other.name} (second_run_fault={second.name}) push "
            f"{one.quantity} in opposite directions and would hide each other; choose another mechanism or "
            "type for one of them"
        )
