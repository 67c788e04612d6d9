"""A small data set whose faults are as visible as the test wants them to be."""

from __future__ import annotations

from pathlib import Path

from robustops.bench.campaign.dataset import build
from robustops.bench.campaign.plan import BASE_GROUPS, planned
from robustops.seeding import generator
from tests.bench.campaign.synthetic import moved, write_campaign

STEPS = 16
TYPES = ("reward_spike", "kl_explosion", "length_long")


def visible(run, step, numbers):
    """A fault moves its mechanism's column: easy ones by ten deviations of a step, hard ones by one."""
    draw = generator(run.seed_group, "noise", step)
    for name in ("reward_mean", "kl_ref_k3", "len_mean"):
        numbers[name] += 0.05 * draw.gauss(0, 1)
    if run.kind == "fault" and step >= run.onset:
        column, direction = moved(run)
        numbers[column] += direction * (0.5 if run.difficulty == "easy" else 0.05)


def small_dataset(folder: Path, *, groups: int = 8, healthy: int = 40) -> Path:
    """Three types in some groups, and healthy groups: (groups * 4 + healthy) runs at most."""
    runs = [run for run in planned([*TYPES, "healthy"]) if run.mode != "delayed"]
    chosen = [run for run in runs if run.seed_group < groups or run.seed_group >= BASE_GROUPS]
    chosen = [run for run in chosen if run.seed_group < BASE_GROUPS + healthy]
    build(
        write_campaign(folder / "campaign", chosen, steps=STEPS, change=visible),
        folder / "data",
        partial=True,
    )
    return folder / "data"
