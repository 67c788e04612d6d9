"""A verdict on a run from its telemetry: calibrated on healthy runs where there are enough of them, else by
rules that need none.

By rules `healthy` means that the log shows enough to tell and nothing was found; a log that shows less is
`not_observed`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from robustops.errors import ConfigError
from robustops.monitor.fitted import FittedMonitor
from robustops.monitor.panel import Panel
from robustops.monitor.symptoms.changes import changes
from robustops.monitor.symptoms.facts import facts
from robustops.monitor.symptoms.finding import Finding
from robustops.monitor.taxonomy import cause_of
from robustops.monitor.verdict import ALARM, Verdict

#: Rows without which a run is not called healthy: the horizon of RFT-FaultBench.
ENOUGH_ROWS = 20
#: What has to be seen for `healthy`, each by one of its columns: reward, how far or how random the policy is,
#: its updates, what it writes.
NEEDED: dict[str, tuple[str, ...]] = {
    "reward": ("reward_mean",),
    "policy": ("entropy", "kl_ref_k3", "kl_ref_k1"),
    "updates": ("grad_norm", "update_norm_rel"),
    "answers": ("len_mean",),
}
#: What further says which fault it is, or shows faults that nothing else shows.
HELPFUL: dict[str, tuple[str, ...]] = {
    "distance to the reference": ("kl_ref_k3", "kl_ref_k1"),
    "entropy": ("entropy",),
    "signal": ("zero_signal_frac", "group_reward_std_mean", "adv_max"),
    "advantages": ("adv_reward_corr",),
    "cut answers": ("trunc_frac",),
    "sampler": ("samp_logp_absdiff_mean", "is_ratio_ess"),
    "weights": ("update_norm_rel",),
    "success": ("success_mean",),
}
#: What a finding loses in weight for the diagnosis with each row after the first mover, and the least that is
#: left: what follows later may be a consequence.
_LOSS_A_ROW, _LEAST_WEIGHT = 0.1, 0.4
#: Share of the likeliest type's votes that puts another one into the label set.
_IN_SET = 0.4
#: Share of healthy runs that may show a change before it tells nothing.
_COMMON = 0.05


def judge(
    panel: Panel,
    *,
    horizon: int | None = None,
    profile: FittedMonitor | Sequence[Panel] = (),
    growing: bool = False,
) -> Verdict:
    """What the telemetry of a run says.

    Args:
        panel: of a finished or a growing run.
        horizon: judge only the first so many steps.
        profile: what was learned from healthy runs of the same task and trainer, or panels of a few such
            runs. Changes that more than one in twenty of these shows are no findings, and `p_value` is then
            the share (conformal, k + 1 of n + 1) that looks as bad.
        growing: more rows will come, so that the first one alone proves less.

    Raises:
        ConfigError: the panel has no row, or the horizon is no positive number.
    """
    if horizon is not None and horizon < 1:
        raise ConfigError(f"horizon is {horizon}; it must be at least 1 step, or null for the whole log")
    if not len(panel):
        raise ConfigError(f"{panel.source or 'the panel'} has no row to judge")
    panel = within(panel, horizon)
    found = findings(panel, growing=growing)
    if isinstance(profile, FittedMonitor):
        return profile.judge(panel, growing=growing)
    p_value = float("nan")
    if profile:
        healthy = [findings(within(other, horizon)) for other in profile]
        found = _uncommon(found, healthy)
        as_bad = sum(_badness(_uncommon(other, healthy)) >= _badness(found) for other in healthy)
        p_value = (as_bad + 1) / (len(healthy) + 1)
    return verdict_of(panel, found, p_value)


def findings(panel: Panel, *, growing: bool = False) -> list[Finding]:
    """Everything that rules find, first mover first, then the most severe."""
    found = facts(panel, growing=growing) + changes(panel)
    return sorted(found, key=lambda f: (f.evidence.step, -f.severity, f.evidence.column))


def unseen(panel: Panel) -> list[str]:
    """Why a run without findings cannot be called healthy, in words; empty where it can."""
    reasons = []
    if len(panel) < ENOUGH_ROWS:
        reasons.append(
            f"the log has {len(panel)} of the {ENOUGH_ROWS} rows that it takes to call a run healthy"
        )
    for what, columns in NEEDED.items():
        if not any(panel.observed(column) for column in columns):
            reasons.append(f"nothing is logged of the {what} ({' or '.join(columns)})")
    return reasons


def missing(panel: Panel) -> tuple[str, ...]:
    """Columns that would tell more, the first one of each kind of which the source has none."""
    wanted = (*NEEDED.values(), *HELPFUL.values())
    absent = [columns[0] for columns in wanted if not any(column in panel.columns for column in columns)]
    return tuple(dict.fromkeys(absent))


def within(panel: Panel, horizon: int | None) -> Panel:
    """Its first so many steps; None: all of them."""
    return panel if horizon is None else panel.until(int(panel.steps[0]) + horizon - 1)


def verdict_of(panel: Panel, found: Sequence[Finding], p_value: float = float("nan")) -> Verdict:
    """What findings (of `findings`, of the same panel) come to."""
    evidence = tuple(finding.evidence for finding in found)
    severity = max((finding.severity for finding in found), default=0.0)
    if severity < ALARM:
        state = "not_observed" if unseen(panel) else "healthy"
        return Verdict(state, severity=severity, p_value=p_value, evidence=evidence, missing=missing(panel))  # type: ignore[arg-type]
    onset = min(f.evidence.step for f in found if f.severity >= ALARM)
    labels = _labels(panel, found)
    family, kind = cause_of(labels)
    return Verdict(
        *("anomalous", onset, family, kind, labels, severity, p_value, evidence),
        missing(panel),
    )


def _labels(panel: Panel, found: Sequence[Finding]) -> dict[str, float]:
    """Types that the findings speak for, likeliest first, their shares of the votes. No type where values
    stopped being finite before anything else: none of the 16 is that.
    """
    rows = {finding.rule: int(np.searchsorted(panel.steps, finding.evidence.step)) for finding in found}
    first = min(rows[f.rule] for f in found if f.severity >= ALARM)
    numeric = [rows[f.rule] for f in found if f.evidence.invariant == "numerics"]
    if numeric and min(numeric) <= first:
        return {}
    # One invariant speaks once for a type, however many of its columns move.
    votes: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for finding in found:
        late = max(0, rows[finding.rule] - first)
        weight = max(_LEAST_WEIGHT, 1 - _LOSS_A_ROW * late) * finding.severity
        for kind, vote in finding.votes.items():
            spoken = votes[kind]
            spoken[finding.evidence.invariant] = max(spoken[finding.evidence.invariant], vote * weight)
    ranked = sorted(
        ((kind, sum(spoken.values())) for kind, spoken in votes.items()), key=lambda pair: -pair[1]
    )
    kept = [(kind, vote) for kind, vote in ranked if vote >= _IN_SET * ranked[0][1]]
    total = sum(vote for _, vote in kept)
    return {kind: vote / total for kind, vote in kept}


def _uncommon(found: Sequence[Finding], healthy: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Without changes that healthy runs show as well. Facts stay: a healthy run does not show them."""
    shown = [{finding.rule for finding in other} for other in healthy]
    return [f for f in found if f.exact or sum(f.rule in rules for rules in shown) <= _COMMON * len(healthy)]


def _badness(found: Sequence[Finding]) -> float:
    return sum(finding.severity for finding in found)
