"""Which seed group has which mode and mechanism of a type: balanced by construction, without drawing."""

from __future__ import annotations

from collections.abc import Sequence

from robustops.bench.run_faults.entries import FaultType, MechanismInfo

HARD_MODES = ("weak", "intermittent", "ramp", "delayed")
MODES = ("easy", *HARD_MODES)
RUNS_OF_MODE = {"easy": 20, **dict.fromkeys(HARD_MODES, 7)}
BASE_GROUPS = sum(RUNS_OF_MODE.values())
#: Two types that follow each other are so many groups apart in the sequence of modes.
_SHIFT = 3


def modes_of(place: int) -> list[str]:
    """The mode of the type at this place of the catalogue in each of the 48 base groups.

    Types are shifted against each other: in every group 6 or 7 of them are easy, and every mode occurs.
    """
    in_order = [mode for mode, count in RUNS_OF_MODE.items() for _ in range(count)]
    rows = BASE_GROUPS // _SHIFT
    # Modes are dealt to the residues of the shift, then spread within each of them by a step of 5.
    spread = [in_order[_SHIFT * (n // _SHIFT * 5 % rows) + n % _SHIFT] for n in range(BASE_GROUPS)]
    return [spread[(group + _SHIFT * place) % BASE_GROUPS] for group in range(BASE_GROUPS)]


def mechanisms_of(fault: FaultType, modes: Sequence[str]) -> list[MechanismInfo]:
    """The mechanism of each run of a type, given their modes: the main one in every other run of a mode, the
    others in turn in those between.
    """
    # experiment=faultbench has no value head, so what only concerns one cannot be injected.
    main, *others = [m for m in fault.mechanisms if not m.needs_critic]
    chosen: list[MechanismInfo] = [main] * len(modes)
    if not others:
        return chosen
    turn = 0
    for number, mode in enumerate(MODES):
        places = [place for place, own in enumerate(modes) if own == mode]
        for place in places[1 - number % 2 :: 2]:
            chosen[place] = others[turn % len(others)]
            turn += 1
    return chosen
