"""A verdict in words, for lines on a screen and titles of pictures."""

from __future__ import annotations

from robustops.monitor.verdict import Verdict


def headline(verdict: Verdict) -> str:
    """The verdict in a line."""
    if verdict.verdict != "anomalous":
        return verdict.verdict.replace("_", " ")
    kind = verdict.type if verdict.type == verdict.family else f"{verdict.family} / {verdict.type}"
    return f"anomalous from step {verdict.onset}: {kind}"
