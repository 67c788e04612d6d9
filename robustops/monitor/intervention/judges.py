"""Judges that need no healthy runs to compare with: exact facts and wide bounds.

A judge is any function from a panel to a verdict; one that was calibrated on healthy runs takes this one's
place (`monitor.detector`). Each rule names the type that it stands for, and speaks only after it has held for
some steps in a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robustops.monitor.panel import Panel
from robustops.monitor.verdict import Evidence, Verdict


@dataclass(frozen=True)
class Rule:
    """A column that leaves [low, high] for `steps` steps in a row. invariant, meaning: for messages."""

    column: str
    low: float
    high: float
    steps: int
    kind: str
    family: str
    invariant: str
    severity: float
    meaning: str

    def broken(self, panel: Panel) -> NDArray[np.bool_]:
        """(T,) where the value lies outside; a value that was not observed does not."""
        values = panel[self.column]
        with np.errstate(invalid="ignore"):
            return (values < self.low) | (values > self.high)

    def onset(self, panel: Panel) -> int | None:
        """First step of the stretch that the panel ends with, if it is long enough."""
        broken = self.broken(panel)
        if len(broken) < self.steps or not broken[-self.steps :].all():
            return None
        whole = np.flatnonzero(~broken)
        first = int(whole[-1]) + 1 if len(whole) else 0
        return int(panel.steps[first])


_INF = float("inf")
RULES = (
    Rule(
        "obs_roundtrip_mismatch_frac",
        -_INF,
        0.0,
        2,
        "observation_corruption",
        "environment",
        "tool_consistency",
        1.0,
        "replies are not what the worlds said",
    ),
    Rule(
        "samp_logp_absdiff_mean",
        -_INF,
        0.05,
        2,
        "update_freeze",
        "optimisation",
        "optimisation_consistency",
        0.8,
        "sampler and trainer disagree on the same weights",
    ),
    Rule("kl_ref_k3", -_INF, 0.5, 2, "kl_explosion", "optimisation", "kl", 0.8, "the policy has drifted far"),
    Rule(
        "clip_frac",
        -_INF,
        0.5,
        2,
        "kl_explosion",
        "optimisation",
        "kl",
        0.6,
        "most tokens are beyond the clip",
    ),
)


#: Columns that tell mechanisms of a type apart, and how many times their earlier median is out of the usual.
TELLING = {"kl_explosion": ("update_norm_rel", "grad_norm")}
TIMES = 5.0


def exact_rules(panel: Panel) -> Verdict:
    """What the rules say of a run after the panel's last step."""
    if not len(panel) or not any(panel.observed(rule.column) for rule in RULES):
        return Verdict("not_observed", missing=tuple(dict.fromkeys(rule.column for rule in RULES)))
    fired = [(onset, rule) for rule in RULES if (onset := rule.onset(panel)) is not None]
    if not fired:
        return Verdict("healthy")
    fired.sort(key=lambda found: (-found[1].severity, found[0]))
    onset, worst = fired[0]
    return Verdict(
        "anomalous",
        onset=onset,
        family=worst.family,
        type=worst.kind,
        labels={worst.kind: 1.0},
        severity=worst.severity,
        evidence=(
            *_telling(panel, onset, worst),
            *(_evidence(panel, begun, rule) for begun, rule in fired),
        ),
    )


def _telling(panel: Panel, onset: int, rule: Rule) -> list[Evidence]:
    """Further columns that jumped with the onset: they only say which remedy comes first."""
    found = []
    for column in TELLING.get(rule.kind, ()):
        values = panel[column]
        before, value = values[(panel.steps < onset) & np.isfinite(values)], values[panel.steps == onset][0]
        if len(before) and value > TIMES * np.median(before):
            usual = float(np.median(before))
            text = f"{column} is {value:.4g} at step {onset}, {usual:.4g} before"
            score = float(value / usual) if usual > 0 else float("inf")
            found.append(Evidence(rule.invariant, column, onset, float(value), 0.0, usual, score, text))
    return found


def _evidence(panel: Panel, onset: int, rule: Rule) -> Evidence:
    value = float(panel[rule.column][panel.steps == onset][0])
    text = (
        f"{rule.column} is {value:.4g} at step {onset}, outside {rule.low:g} .. {rule.high:g}: {rule.meaning}"
    )
    return Evidence(rule.invariant, rule.column, onset, value, rule.low, rule.high, float("inf"), text)
