"""How the campaign injects each mechanism: which knob makes it weaker, and what the others are.

knob        mechanisms
strength    whose effect on a unit is a matter of degree: added to a reward, a logit, a rate
probability whose effect on a unit is all or nothing, or jumps (a whole number of tokens or turns): the share
            of units that are struck is then what a user would see
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from robustops.bench.run_faults.catalog import all_mechanisms
from robustops.errors import unknown_name

STRENGTH, PROBABILITY = "strength", "probability"


@dataclass(frozen=True)
class Design:
    """quantity, direction: of the catalogue; knob: strength or probability; strength, probability: the value
    of the one that is not the knob; unit: null for the mechanism's own; whole: its effect accumulates, so
    that only whole runs tell it.
    """

    fault: str
    mechanism: str
    quantity: str
    direction: int
    knob: str = STRENGTH
    strength: float = 1.0
    probability: float = 1.0
    unit: str | None = None
    whole: bool = False


_SHARE: dict[str, Any] = {"knob": PROBABILITY}
#: What differs from the usual: full strength at most, every unit.
_SPECIAL: dict[str, dict[str, Any]] = {
    "episode_spike": {"probability": 0.5},  # of all episodes it would be the uniform spike
    "zeroed_episodes": _SHARE,
    "verifier_down": {**_SHARE, "unit": "group"},  # a verifier of a task fails; by steps they would be a few
    "stop_at_once": _SHARE,
    "empty_reply": _SHARE,
    "stuck_decoder": _SHARE,
    "token_cut": _SHARE,
    "missed_stop": _SHARE,
    "kl_sign": {"whole": True},
    "skipped_updates": _SHARE,
    "stale_sampler": _SHARE,
    "entropy_penalty": {"whole": True},
    "sign_flips": _SHARE,
    "merged_groups": _SHARE,
    "singleton_groups": _SHARE,
    "lagged_advantages": _SHARE,
    "rolled_rewards": _SHARE,
    "tool_outage": _SHARE,
    "rejected_call": _SHARE,
    "digit_noise": _SHARE,
    "stale_reply": _SHARE,
    "truncated_reply": _SHARE,
    "early_done": _SHARE,
    "stop_ignored": _SHARE,
    "turn_limit": {**_SHARE, "strength": 0.6},  # 3 turns of 8; at 1 it would be early_done
}


def designs() -> list[Design]:
    """Of every mechanism that the campaign's runs, which have no value head, can meet; in the order of the
    catalogue.
    """
    return [
        Design(fault.name, info.name, info.quantity, info.direction, **_SPECIAL.get(info.name, {}))
        for fault, info in all_mechanisms()
        if not info.needs_critic
    ]


def design_of(mechanism: str) -> Design:
    """ConfigError for a name that the catalogue does not have."""
    known = {design.mechanism: design for design in designs()}
    if mechanism not in known:
        raise unknown_name("mechanism", mechanism, known)
    return known[mechanism]
