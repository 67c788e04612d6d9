"""A judge that knows one failure by one column, so that a verdict changes only if a knob does work."""

from __future__ import annotations

import numpy as np

from robustops.monitor.panel import Panel
from robustops.monitor.verdict import Verdict

#: No sound episode is worth more: success 1, progress 0.3, quality 0.1.
MOST = 1.4 + 1e-6


def judge(panel: Panel) -> Verdict:
    """Anomalous where the newest step has a reward that there cannot be."""
    high = panel["reward_max"] > MOST
    if not len(panel) or not high[-1]:
        return Verdict("healthy")
    onset = int(panel.steps[np.flatnonzero(high)[0]])
    return Verdict("anomalous", onset, "reward", "reward_spike", {"reward_spike": 1.0}, 0.9, 0.01)


def blind(panel: Panel) -> Verdict:
    """Sees nothing."""
    return Verdict("healthy")


def puzzled(panel: Panel) -> Verdict:
    """Sees what `judge` sees, and knows no cause."""
    found = judge(panel)
    return found if found.verdict == "healthy" else Verdict("anomalous", found.onset, p_value=0.01)


def severity(panel: Panel) -> float:
    """How far the largest reward is beyond what there can be."""
    return max(0.0, float(np.nanmax(panel["reward_max"])) - MOST)
