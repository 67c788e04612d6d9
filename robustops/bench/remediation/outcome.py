"""What a case came to: one line of `remediation/cases.jsonl`, see `bench.evaluation.remediation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robustops.bench.campaign.folders import folder_of
from robustops.bench.evaluation.runs import Label
from robustops.bench.remediation.case import CASE, TELEMETRY, parts_of, read_journal
from robustops.files import read_json
from robustops.monitor.intervention.actions import comparable
from robustops.monitor.intervention.journal import Entry, State
from robustops.monitor.intervention.report import interventions
from robustops.monitor.panel import Panel
from robustops.monitor.telemetry import read_telemetry

#: Steps at a run's end over which its success is taken: one step has 64 episodes.
LAST = 10
Severity = Callable[[Panel], float]


def outcome(
    campaign: Path,
    folder: Path,
    label: Label,
    control: str,
    severity: Severity,
) -> dict[str, Any]:
    """The line of one case. folder: of the case; control: run_id of the healthy run of the same group.

    Severities, before and after, are of the columns that the settings in force at the end do not set by
    themselves (`monitor.intervention.actions.comparable`); `severity_plain_*` are of all of them as they are.
    """
    run_id, arm = parts_of(folder.name)
    recorded, mine = _panel(folder_of(campaign, run_id)), _panel(folder)
    twin = _panel(folder_of(campaign, control))
    entries, facts = read_journal(folder), read_json(folder / CASE, what="facts of a case")
    found, state = interventions(entries), State()
    for entry in entries:
        state = state.after(entry)
    after = mine
    if state.forced:
        own = read_json(folder_of(campaign, run_id) / "run.json", what="run record")["settings"]
        after = comparable(mine, state.forced, own)
    before = recorded.only(after.columns)
    if facts["broke_off"]:  # whatever its telemetry looked like until then, it was not mended
        after = before
    return {
        "run_id": run_id,
        "arm": arm,
        "severity_before": severity(before),
        "severity_after": severity(after),
        "success_control": success(twin, len(recorded)),
        "success_before": success(recorded, len(recorded)),
        "success_after": success(mine, len(recorded)),
        "telemetry": str((folder / TELEMETRY).relative_to(campaign)),
        "severity_plain_before": severity(recorded),
        "severity_plain_after": severity(mine),
        "kind": label.kind,
        "fault": label.fault,
        "mechanism": label.mechanism,
        "difficulty": label.difficulty,
        "state": "broke_off" if facts["broke_off"] else _state(arm, found["state"], entries),
        "changes": found["in_force"],
        **_decisions(entries),
        "repeated_steps": found["repeated_steps"],
        **{name: facts[name] for name in ("trained", "same_prefix")},
    }


def success(panel: Panel, steps: int) -> float:
    """Mean success of the last `LAST` of so many steps; those that a run did not reach have none."""
    last = range(max(1, steps - LAST + 1), steps + 1)
    by_step = dict(zip(map(int, panel.steps), panel["success_mean"], strict=True))
    return float(np.mean([np.nan_to_num(by_step.get(step, 0.0)) for step in last]))


def _decisions(entries: Sequence[Entry]) -> dict[str, Any]:
    """First alarm, its diagnosis, and how many attempts there were."""
    first: Mapping[str, Any] = entries[0].verdict if entries else {}
    return {
        "alarm": entries[0].step if entries else None,
        "onset": first.get("onset"),
        "type": first.get("type"),
        "attempts": sum(entry.kind == "rollback" for entry in entries),
    }


def _state(arm: str, state: str, entries: Sequence[Entry]) -> str:
    """One of repaired | paused | on_trial | passed_over (an alarm, nothing was done) | no_alarm | rerun."""
    if state != "untouched":
        return state
    if arm == "rerun":
        return arm
    return "passed_over" if entries else "no_alarm"


def _panel(folder: Path) -> Panel:
    return Panel.of([r for r in read_telemetry(folder / TELEMETRY) if r.stage == "grpo"], str(folder))
