"""Made-up runs with the identities and the noise of real ones, for tests of detectors."""

import numpy as np

from robustops.monitor.panel import Panel
from robustops.seeding import array_generator

EPISODES, GROUPS = 64, 8


def run(seed: int, steps: int = 40, rate: float | None = None) -> Panel:
    """A healthy run: rewards and lengths follow the step's success, KL the learning rate."""
    rng = array_generator(seed, "made-up run")
    rate = float(rng.choice([2e-4, 3e-4, 4e-4])) if rate is None else rate
    time = np.arange(1, steps + 1)
    successes = rng.binomial(EPISODES, np.clip(0.45 + 0.1 * rng.standard_normal(steps), 0.05, 0.95))
    share = successes / EPISODES
    progress = share + 0.1 + 0.02 * rng.standard_normal(steps)
    silent = rng.binomial(GROUPS, 0.2, steps) / GROUPS
    reward = share + 0.3 * progress + 0.1 * share
    cut = rng.binomial(EPISODES, 0.03, steps) / EPISODES
    calls = 3 + 0.3 * share + 0.1 * rng.standard_normal(steps)
    unreadable = rng.binomial(EPISODES, 0.02, steps) / EPISODES
    grad = 0.8 * np.exp(0.2 * rng.standard_normal(steps))
    columns = {
        "reward_mean": reward,
        "reward_max": np.full(steps, 1.4),
        "rewards.success.mean": share,
        "rewards.success.std": np.sqrt(share * (1 - share) * EPISODES / (EPISODES - 1)),
        "rewards.progress.mean": progress,
        "success_mean": share,
        "reward_success_gap": reward / 1.4 - share,
        "zero_signal_frac": silent,
        "kl_ref_k3": rate * time * 10 * np.exp(0.3 * rng.standard_normal(steps)),
        "entropy": 0.12 + 0.02 * rng.standard_normal(steps),
        "grad_norm": grad,
        "update_norm_rel": rate * 4 * np.exp(0.05 * rng.standard_normal(steps)),
        "samp_logp_absdiff_mean": 1e-7 * np.exp(0.3 * rng.standard_normal(steps)),
        "adv_mean": 1e-17 * rng.standard_normal(steps),
        "adv_group_mean_absmax": 1e-16 * rng.random(steps),
        "adv_std": np.sqrt(1 - silent),
        "adv_reward_corr": 1 - 0.02 * rng.random(steps),
        "adv_reward_lag1_corr": np.where(time > 1, 0.1 * rng.standard_normal(steps), np.nan),
        "len_mean": 20 + 2 * calls + rng.standard_normal(steps),
        "trunc_frac": cut,
        "no_answer_frac": cut,
        "turns_mean": calls / (1 - unreadable) + 1 - cut / 2,
        "tool_calls_mean": calls,
        "invalid_call_frac": unreadable,
        "obs_roundtrip_mismatch_frac": np.zeros(steps),
        "lr": np.full(steps, rate),
        "kl_coef": np.full(steps, 0.01),
    }
    return Panel(time, columns, f"made-up run {seed}")


def runs(count: int, first: int = 0, steps: int = 40) -> list[Panel]:
    return [run(seed, steps) for seed in range(first, first + count)]


def changed(panel: Panel, **columns: object) -> Panel:
    """With other values in some columns."""
    new = {name.replace("__", "."): np.asarray(v, dtype=np.float64) for name, v in columns.items()}
    return Panel(panel.steps, {**panel.columns, **new}, panel.source)


def shifted(panel: Panel, column: str, by: float, start: int) -> Panel:
    """With a constant added to a column from row `start` on."""
    values = panel[column].copy()
    values[start:] += by
    return changed(panel, **{column.replace(".", "__"): values})
