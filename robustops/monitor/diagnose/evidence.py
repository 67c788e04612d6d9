"""Why a diagnosis says what it says: what broke and moved first, and which signals speak for the type."""

from __future__ import annotations

from dataclasses import replace

from robustops.monitor.detect.explain import about
from robustops.monitor.diagnose import fingerprint as fingerprints
from robustops.monitor.diagnose.learned import Learned, Reading
from robustops.monitor.panel import Panel
from robustops.monitor.verdict import Evidence

#: Signals that speak most for a type, which are shown besides what moved first.
SPEAKING = 3


def evidence_for(learned: Learned, panel: Panel, reading: Reading, kind: str) -> tuple[Evidence, ...]:
    """In order of steps: broken exact invariants and what moved most (`detect.explain`), and signals that
    speak for this type and are not among them.
    """
    fitted = learned.detector.fitted
    explained = learned.detector.explain(panel).evidence
    shown = {one.column for one in explained}
    chosen = [name for name in speaking(learned, reading, kind) if name not in shown][:SPEAKING]
    more = [
        replace(one, text=f"{one.text}; it speaks for {kind}")
        for one in about(fitted.model, panel, chosen, reading.fingerprint.onset)
        if one.column not in shown
    ]
    return tuple(sorted([*explained, *more], key=lambda one: one.step))


def speaking(learned: Learned, reading: Reading, kind: str) -> list[str]:
    """Signals by what their entries add to the score of a type against the other types, those that add."""
    total: dict[str, float] = {}
    added = learned.classifier.contributions(reading.row, kind)
    for entry, value in zip(reading.fingerprint.names(), added, strict=True):
        view, _, signal = entry.split(":", 2)
        if view != fingerprints.EXACT:
            total[signal] = total.get(signal, 0.0) + float(value)
    return [name for name in sorted(total, key=lambda n: -total[n]) if total[name] > 0]
