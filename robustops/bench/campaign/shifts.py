"""Benign shifts: runs in which something changes at a step and nothing is wrong (hard negatives)."""

from __future__ import annotations

from robustops.bench.campaign.layout import BASE_GROUPS

SHIFTS = ("lr_decay", "curriculum", "prompt_mix", "resume")
#: Runs of each.
SHIFT_RUNS = 15
#: First and last step at which one may begin.
SHIFT_ONSETS = (8, 16)
#: Templates with three operations.
_HARDER = "{two_pairs:1,nested:1}"
#: Every template still comes, some three times as often as others.
_OTHER_MIX = "{product_and_term:1,sum_times:3,chain:3,two_pairs:1,nested:1}"


def shift_groups() -> list[tuple[int, str]]:
    """(seed group, shift) of each benign run: spread over the base groups, at most two in one."""
    runs = [shift for shift in SHIFTS for _ in range(SHIFT_RUNS)]
    # 48 groups, then a quarter of them again, every fourth one; 11 has no factor in common with 48.
    return sorted((place * 11 % BASE_GROUPS, shift) for place, shift in enumerate(runs))


def shift_overrides(shift: str, onset: int) -> tuple[str, ...]:
    """What makes the shift begin with step `onset`. A resumed run has a checkpoint of the step before."""
    return {
        "lr_decay": ("grpo.schedule=linear", f"grpo.decay_from={onset}"),
        "curriculum": (f"grpo.curriculum=[{{step:{onset},weights:{_HARDER}}}]",),
        "prompt_mix": (f"grpo.curriculum=[{{step:{onset},weights:{_OTHER_MIX}}}]",),
        "resume": (f"grpo.checkpoint_every={onset - 1}",),
    }[shift]
