"""The frozen strengths: what `run_fault.*` values make a mechanism easy, or hard in one of four ways.

`strengths.yaml` is written by the pilot (`campaign.pilot`) and committed before any detector is fitted. For
each mechanism it holds quantity, direction and unit of the effect, and for each mode

    strength, probability, unit, ramp    values of run_fault.*; unit null: the mechanism's own
    d, error, pairs                      effect as measured by the pilot, its standard error, number of seeds
    fitted                               effect by the response law through all measurements of the mechanism
    reached                              whether `fitted` lies where the difficulty wants it

and for all of them the pilot's seeds, steps and commit. measured: false marks guesses, and lets a mechanism
that the file does not have be guessed, too.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from robustops.bench.campaign.designs import STRENGTH, Design, design_of
from robustops.errors import ConfigError, unknown_name

PATH = Path(__file__).with_name("strengths.yaml")
#: Steps of a ramp; share of the units that an intermittent fault strikes, and its part of the easy strength.
RAMP, SHARE, OF_EASY = 20, 0.3, 0.7
#: Of a mode, in the order of the file.
VALUES = ("strength", "probability", "unit", "ramp")


@cache
def frozen(path: Path = PATH) -> dict[str, Any]:
    """The whole file; ConfigError where it is none."""
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(body["mechanisms"], dict) or not isinstance(body["measured"], bool):
            raise TypeError("no mapping of mechanisms")
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} holds no strengths ({error}); write it with robustops bench stage=pilot"
        ) from error
    return dict(body)


def entry(mechanism: str, path: Path = PATH) -> dict[str, Any]:
    """All that the file says of a mechanism."""
    known = frozen(path)["mechanisms"]
    if mechanism not in known:
        raise unknown_name("mechanism with frozen strengths", mechanism, known)
    return dict(known[mechanism])


def injection(
    fault: str, mechanism: str, mode: str, path: Path = PATH
) -> dict[str, float | int | str | None]:
    """Values of `run_fault.*` for a mechanism in a mode: strength, probability, unit and ramp."""
    if not frozen(path)["measured"] and mechanism not in frozen(path)["mechanisms"]:
        return guessed(design_of(mechanism), mode)
    found = entry(mechanism, path)
    if found["fault"] != fault:
        raise ConfigError(f"mechanism {mechanism} belongs to run_fault={found['fault']}, not to {fault}")
    if mode not in found["modes"]:
        raise unknown_name("mode", mode, found["modes"])
    values = found["modes"][mode]
    return {name: values[name] for name in VALUES}


def guessed(design: Design, mode: str) -> dict[str, float | int | str | None]:
    """Values that nobody has measured: full, a fifth, and three more ways to be hard to see."""
    knobs = {"easy": 1.0, "weak": 0.2, "intermittent": OF_EASY, "ramp": 0.5, "delayed": 0.25}
    if mode not in knobs:
        raise unknown_name("mode", mode, knobs)
    knob = knobs[mode]
    strength, probability = (knob, design.probability) if design.knob == STRENGTH else (design.strength, knob)
    if mode == "intermittent":
        strength, probability = OF_EASY * design.strength, SHARE
    return {
        "strength": strength,
        "probability": probability,
        "unit": design.unit,
        "ramp": RAMP if mode == "ramp" else 0,
    }


def written(body: dict[str, Any]) -> str:
    """The text of a file with this content."""
    text: str = yaml.safe_dump(body, sort_keys=False, width=200, default_flow_style=None)
    return "# Written by robustops bench stage=pilot; see strengths.py.\n" + text
