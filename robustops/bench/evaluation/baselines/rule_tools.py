"""Rule packages of others, fed our rows through their public interface, with their own default limits.

Neither states a false-alarm rate. Their findings are counted, critical ones twice, so that they can be
calibrated as every detector is; `threshold` 0 is what they do as shipped: any finding is an alarm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robustops.bench.evaluation.baselines.package import package
from robustops.monitor.panel import Panel, Series

_WEIGHTS = {"critical": 2.0, "warning": 1.0, "warn": 1.0, "info": 0.0}
#: Names of rlwatch's `check_step` and of our schema.
_RLWATCH = {
    "entropy": "entropy",
    "kl_divergence": "kl_ref_k3",
    "reward_mean": "reward_mean",
    "reward_std": "reward_std",
    "advantage_std": "adv_std",
    "loss": "policy_loss",
    "grad_norm": "grad_norm",
}
#: Names of rlprobe's step record and of our schema.
_RLPROBE = {
    **{name: name for name in ("reward_mean", "reward_std", "reward_min", "reward_max")},
    **{name: name for name in ("ratio_mean", "adv_mean", "adv_std", "group_reward_std_mean")},
    **{name: name for name in ("lr", "grad_norm")},
    "kl_mean": "kl_ref_k3",
    "entropy_mean": "entropy",
    "clip_fraction": "clip_frac",
    "zero_variance_group_frac": "zero_signal_frac",
    "value_loss": "vf_loss",
    "value_explained_variance": "vf_ev",
    "loss": "policy_loss",
    "weight_update_ratio": "update_norm_rel",
    "completion_len_mean": "len_mean",
    "completion_len_max": "len_max",
    "truncation_rate": "trunc_frac",
    "repetition_rate": "rep4",
}


class RLWatch:
    """Threshold rules of rlwatch (0.5: entropy, KL, reward variance, advantages, loss, gradient, drift)."""

    name = "rlwatch"
    threshold = 0.0

    def fit(self, profile: Sequence[Panel]) -> None:
        """Nothing to learn: its rules need no healthy runs."""
        package("rlwatch")

    def score(self, panel: Panel) -> float:
        return float(self.step_scores(panel).max(initial=0.0))

    def step_scores(self, panel: Panel) -> Series:
        suite = package("rlwatch.detectors").DetectorSuite(package("rlwatch.config").RLWatchConfig())
        total, totals = 0.0, np.zeros(len(panel))
        for place, step in enumerate(panel.steps.tolist()):
            alerts = suite.check_step(step, **_row(panel, place, _RLWATCH))
            total += sum(_WEIGHTS[alert.severity] for alert in alerts)
            totals[place] = total
        return totals


class RLProbe:
    """Signatures of rlprobe (0.1: 14 of them), which look at whole runs of 30 steps at least."""

    name = "rlprobe"
    threshold = 0.0

    def fit(self, profile: Sequence[Panel]) -> None:
        """Nothing to learn: its rules need no healthy runs."""
        package("rlprobe")

    def score(self, panel: Panel) -> float:
        schemas, doctor = package("rlprobe.schemas"), package("rlprobe.doctor")
        manifest = schemas.RunManifest(run_id="run", created_at="1970-01-01T00:00:00Z", algorithm="grpo")
        records = [
            schemas.StepRecord(step=step, nan_count=_count(panel, place), **_row(panel, place, _RLPROBE))
            for place, step in enumerate(panel.steps.tolist())
        ]
        findings = doctor.diagnose_view(doctor.RunView(manifest, records))
        return float(sum(_WEIGHTS[found.severity] * found.confidence for found in findings))


def _row(panel: Panel, place: int, names: Mapping[str, str]) -> dict[str, Any]:
    """The values of a step under their names; None: not observed."""
    values = {theirs: float(panel[ours][place]) for theirs, ours in names.items() if ours in panel.columns}
    return {name: None if math.isnan(value) else value for name, value in values.items()}


def _count(panel: Panel, place: int) -> int | None:
    value = float(panel["nan_count"][place])
    return None if math.isnan(value) else int(value)
