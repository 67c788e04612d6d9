"""What the catalogue says of a type and of a mechanism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Counter:
    """A value of a real setting that works against a mechanism. disconnects: nothing of it reaches the
    policy; weakens: less does.
    """

    key: str
    value: Any
    effect: Literal["disconnects", "weakens"]


@dataclass(frozen=True)
class MechanismInfo:
    """units: what it can strike, the usual one first; quantity: the column of the telemetry that it moves
    itself, before anything is learned from it, direction: up (1) or down (-1); countered_by: knobs, which
    stand behind the mechanism on the data's way; learned: the type's signature follows only as the policy
    learns; grad_effect: whether it reaches the gradient at all; needs_logits: works only where the sampler
    offers them (hf); needs_critic: only with grpo.value_head.
    """

    name: str
    site: str
    units: tuple[str, ...]
    quantity: str
    direction: int
    countered_by: tuple[Counter, ...]
    learned: bool = False
    grad_effect: bool = True
    needs_logits: bool = False
    needs_critic: bool = False


@dataclass(frozen=True)
class FaultType:
    """code: as in the paper; signature: what it looks like in a run's records."""

    name: str
    code: str
    family: str
    signature: str
    mechanisms: tuple[MechanismInfo, ...]


def disconnects(key: str, value: Any) -> Counter:
    """A setting under which the policy becomes what it would be without the fault."""
    return Counter(key, value, "disconnects")


def weakens(key: str, value: Any) -> Counter:
    """A setting under which the fault does less."""
    return Counter(key, value, "weakens")
