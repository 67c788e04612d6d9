"""Panels drawn for tests of single methods."""

from __future__ import annotations

import numpy as np

from robustops.monitor.panel import Panel
from robustops.seeding import array_generator

COLUMNS = ("reward_mean", "kl_ref_k3", "entropy", "len_mean", "grad_norm")


def healthy_panel(number: int, steps: int = 20) -> Panel:
    """A reward that rises, a KL that grows, and noise."""
    rng = array_generator(number, "panel")
    rise = np.linspace(0.0, 1.0, steps)
    columns = {
        name: rise * (place % 2) + 0.1 * rng.standard_normal(steps) for place, name in enumerate(COLUMNS)
    }
    return Panel(np.arange(1, steps + 1), columns, f"run {number}")


def changed(panel: Panel, column: str, by: float, since: int = 10) -> Panel:
    """The same with a column moved from a step on."""
    moved = panel[column] + by * (panel.steps >= since)
    return Panel(panel.steps, {**panel.columns, column: moved}, panel.source)


def healthy_panels(count: int = 24, steps: int = 20) -> list[Panel]:
    """Of different numbers."""
    return [healthy_panel(number, steps) for number in range(count)]
