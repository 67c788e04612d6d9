"""Fitted monitors that come with the package, a folder each, and which of them a run may be judged by.

A run is like the healthy runs of a profile where it agrees with them in every setting of `ALIKE`: these
decide what telemetry looks like. Learning rate and KL weight may differ, a profile is conditioned on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robustops.monitor.detect.files import read_versioned
from robustops.monitor.fitted import ABOUT, KIND, VERSION, FittedMonitor, is_fitted

FOLDER = Path(__file__).parent
#: Settings by dotted key.
ALIKE = (
    *("domain.name", "model.name", "fault.subtypes", "reward.name", "sampler.name"),
    *(f"grpo.{name}" for name in ("groups", "fault_groups", "group_size", "epochs", "mini_batches")),
    *(f"grpo.{name}" for name in ("dynamic_sampling", "whiten", "adam_epsilon", "staleness")),
)


def alike(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a profile of runs with these settings (by dotted key) holds for, as in `about["settings"]`."""
    return {key: settings.get(key) for key in ALIKE}


def misfits(about: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """In which settings a run is not as the healthy runs of a profile, in words."""
    return [
        f"{key} is {settings.get(key)}, {value} there"
        for key, value in about.get("settings", {}).items()
        if settings.get(key) != value
    ]


def shipped(settings: Mapping[str, Any]) -> FittedMonitor | None:
    """The first profile of the package for a run with these settings, None: there is none."""
    for folder in sorted(path for path in FOLDER.iterdir() if is_fitted(path)):
        if not misfits(read_versioned(folder / ABOUT, KIND, VERSION)["about"], settings):
            return FittedMonitor.load(folder)
    return None
