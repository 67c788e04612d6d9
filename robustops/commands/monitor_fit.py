"""`robustops monitor fit=...`: learn from logs of healthy runs what the run monitor judges others by."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robustops.commands.show import place, show_line
from robustops.errors import ConfigError
from robustops.monitor.detect.conformal import least_runs
from robustops.monitor.fitted import ALPHA, FittedMonitor
from robustops.monitor.panel import Panel
from robustops.monitor.profiles import alike
from robustops.settings import MonitorCommandSettings
from robustops.tracking.run_record import read_record


def fit(settings: MonitorCommandSettings, panels: Sequence[Panel]) -> dict[str, Any]:
    """Learn from the panels and write the profile; returns what `format=json` prints.

    Raises:
        ConfigError: no folder to write to, too few runs, or runs whose settings differ in what a profile
            holds for.
    """
    if settings.profile is None:
        raise ConfigError("fit needs profile=FOLDER, where to write what was learned")
    if len(panels) < least_runs(ALPHA):
        raise ConfigError(
            f"{len(panels)} healthy runs cannot be calibrated to {ALPHA:.0%} false alarms; give "
            f"{least_runs(ALPHA)} or more"
        )
    folder = Path(settings.profile)
    held = _held_for(settings.fit or "")
    fitted = FittedMonitor.fit(panels, about={"runs": len(panels), "settings": held})
    fitted.save(folder)
    bound = fitted.calibration.rate_bound(ALPHA)
    if settings.format == "text":
        show_line(
            f"{place(folder)}: {len(panels)} healthy runs of {fitted.steps} steps; an alarm for {ALPHA:.0%} "
            f"of healthy runs, with 95 % confidence for less than {bound:.0%}"
        )
    return {"profile": str(folder), "runs": len(panels), "steps": fitted.steps, "false_alarm_bound": bound}


def _held_for(path: str) -> dict[str, Any]:
    """Of our own run folders, the settings in which they have to agree; nothing of other logs."""
    found: dict[str, dict[str, Any]] = {}
    for folder in sorted(Path(path).iterdir()):
        record = read_record(folder) if folder.is_dir() else None
        if record is not None:
            body = alike(record["settings"])
            found.setdefault(json.dumps(body, sort_keys=True), body)
    if len(found) > 1:
        one, other, *_ = found.values()
        differ = ", ".join(key for key in one if one[key] != other[key])
        raise ConfigError(f"the runs in {path} differ in {differ}; one profile is of runs that agree in that")
    return next(iter(found.values()), {})
