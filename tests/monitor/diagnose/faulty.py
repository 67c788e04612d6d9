"""Made-up faulty runs: what each type does to the columns of a made-up healthy run."""

from __future__ import annotations

from functools import cache

import numpy as np

from robustops.monitor.diagnose.diagnosis import OwnDiagnosis
from robustops.monitor.panel import Panel
from robustops.seeding import array_generator
from tests.monitor.detect.runs import changed, run, runs

KINDS = ("reward_spike", "entropy_collapse", "length_long", "kl_explosion", "value_mismatch")
SEEDS = range(500, 516)


def faulty(kind: str, seed: int, start: int = 5, strength: float = 1.0, steps: int = 40) -> Panel:
    """A run that is the healthy one of its seed until row `start`."""
    panel = run(seed, steps)
    after = (np.arange(steps) >= start) * strength
    late = after * np.clip(np.arange(steps) - start - 3, 0, None) / 10
    if kind == "reward_spike":
        return changed(panel, reward_mean=panel["reward_mean"] + 0.6 * after)
    if kind == "entropy_collapse":
        return changed(
            panel, entropy=panel["entropy"] - 0.08 * after, grad_norm=panel["grad_norm"] * np.exp(-late)
        )
    if kind == "length_long":
        return changed(panel, len_mean=panel["len_mean"] + 8 * after, entropy=panel["entropy"] + 0.05 * late)
    if kind == "kl_explosion":
        return changed(
            panel,
            kl_ref_k3=panel["kl_ref_k3"] * np.exp(2 * after),
            grad_norm=panel["grad_norm"] * np.exp(after),
        )
    if kind == "value_mismatch":
        return changed(panel, adv_group_mean_absmax=panel["adv_group_mean_absmax"] + 0.1 * after)
    raise ValueError(kind)


def unseen(seed: int) -> Panel:
    """Of no type of the above: replies are falsified."""
    panel = run(seed)
    after = np.arange(len(panel)) >= 5
    return changed(
        panel,
        obs_roundtrip_mismatch_frac=0.3 * after,
        tool_calls_mean=panel["tool_calls_mean"] + 3.0 * after,
        invalid_call_frac=panel["invalid_call_frac"] + 0.5 * after,
    )


def training() -> tuple[list[Panel], list[str]]:
    """Runs of every kind, of the same seeds, with onsets and strengths of their own."""
    panels, labels = [], []
    for kind in KINDS:
        for seed in SEEDS:
            rng = array_generator(seed, "faulty", kind)
            panels.append(faulty(kind, seed, int(rng.integers(3, 13)), float(rng.uniform(0.5, 1.5))))
            labels.append(kind)
    return panels, labels


@cache
def diagnoser() -> OwnDiagnosis:
    """Fitted on `training`."""
    made = OwnDiagnosis()
    made.fit(*training(), runs(30))
    return made
