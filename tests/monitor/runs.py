"""Panels and logs for tests of the monitor."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from robustops.monitor.panel import Panel
from robustops.seeding import child_seed

#: Logs of real runs, where the checkout has them beside it.
SHARED = Path(os.environ.get("ROBUSTOPS_SHARED", Path(__file__).resolve().parents[2] / ".." / "shared"))
FAILED_RUNS = SHARED / "data" / "failed_runs"


def healthy_panel(rows: int = 40, seed: int = 0, **replaced: object) -> Panel:
    """A run that learns slowly, with noise; `replaced` columns take the place of its own, None: absent."""
    random = np.random.default_rng(child_seed(seed, "healthy panel"))
    time = np.arange(rows)

    def noisy(level: np.ndarray | float, share: float = 0.05) -> np.ndarray:
        return level * (1 + share * random.standard_normal(rows))

    columns = {
        "reward_mean": noisy(0.4 + 0.3 * time / rows),
        "reward_min": np.zeros(rows),
        "reward_max": np.ones(rows),
        "zero_signal_frac": np.full(rows, 0.25),
        "kl_ref_k3": noisy(0.001 + 0.002 * time),
        "entropy": noisy(0.8 - 0.3 * time / rows),
        "grad_norm": noisy(0.5),
        "update_norm_rel": noisy(1e-3),
        "lr": np.full(rows, 1e-6),
        "len_mean": noisy(200.0),
        "trunc_frac": np.full(rows, 0.02),
        "adv_min": np.full(rows, -1.5),
        "adv_max": np.full(rows, 1.4),
    }
    chosen = {**columns, **replaced}
    kept = {name: np.asarray(values, float) for name, values in chosen.items() if values is not None}
    return Panel(np.arange(1, rows + 1), kept, "a run")


def step_to(rows: int, at: int, before: float, after: float) -> np.ndarray:
    """`before` up to row `at`, `after` from it on."""
    return np.where(np.arange(rows) < at, before, after)
