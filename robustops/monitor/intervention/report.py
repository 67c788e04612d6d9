"""What was done about a run, for its summary and for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from robustops.monitor.intervention.actions import text_of
from robustops.monitor.intervention.journal import Entry, State
from robustops.monitor.verdict import UNKNOWN

#: What an entry's kind is called in a sentence.
_SAID = {
    "accept": "kept",
    "revert": "taken back",
    "pause": "paused",
    "resume": "started again",
    "none": "passed over",
}


def interventions(entries: Sequence[Entry]) -> dict[str, Any]:
    """Further keys of the `health` part of `summary.json`.

    `state`: untouched | on_trial | repaired (an attempt was kept) | paused; `in_force`: changes to the run's
    settings; `repeated_steps`: steps done again; `interventions`: the decisions in order.
    """
    state = State()
    for entry in entries:
        state = state.after(entry)
    return {
        "state": _state(state, entries),
        "in_force": state.changes,
        "repeated_steps": sum(e.step - (e.target or 0) for e in entries if e.kind == "rollback"),
        "interventions": [_body(entry) for entry in entries],
    }


def _state(state: State, entries: Iterable[Entry]) -> str:
    if state.paused is not None:
        return "paused"
    if state.trial is not None:
        return "on_trial"
    return "repaired" if any(entry.kind == "accept" for entry in entries) else "untouched"


def _body(entry: Entry) -> dict[str, Any]:
    names = ("stage", "step", "kind", "attempt", "label", "target", "reason", "planner")
    evidence = [one["text"] for one in entry.verdict.get("evidence", ())]
    body = {name: getattr(entry, name) for name in names}
    return {**body, "changes": dict(entry.changes), "onset": entry.verdict.get("onset"), "evidence": evidence}


def sentences(health: Mapping[str, Any]) -> list[str]:
    """The `health` part of a summary for a person: one line a decision, then how it stands."""
    lines = [_sentence(one) for one in health.get("interventions", ())]
    if lines:
        changed = ", ".join(f"{key}={text_of(value)}" for key, value in health["in_force"].items())
        lines.append(f"monitor: {health['state'].replace('_', ' ')}; changed settings: {changed or 'none'}")
    return lines


def _sentence(one: Mapping[str, Any]) -> str:
    label, step = one["label"] or UNKNOWN, one["step"]
    if one["kind"] == "rollback":
        changes = ", ".join(f"{key}={text_of(value)}" for key, value in one["changes"].items())
        return (
            f"monitor: step {step}: {label} since step {one['onset']}; back to step {one['target']}, attempt "
            f"{one['attempt']}: {changes or 'no change'} ({one['reason']})"
        )
    attempt = f"attempt {one['attempt']} at {label} is " if one["attempt"] else ""
    return f"monitor: step {step}: {attempt}{_SAID[one['kind']]}: {one['reason']}"
