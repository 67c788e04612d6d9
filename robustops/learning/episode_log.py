"""Writes some of each step's episodes to `episodes.jsonl`, see `monitor.episodes`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from robustops.files import atomic_write_text
from robustops.learning.groups import StepGroups
from robustops.monitor.episodes import choose, episode_row, read_episodes, to_line


class EpisodeLog(Callback):
    """count: episodes a step; seed: of their choice, which no other random number depends on; groups: what
    the step has sampled.

    When a run resumes, what was written after its checkpoint is taken back first.
    """

    def __init__(self, path: Path, count: int, seed: int, groups: Callable[[], StepGroups]) -> None:
        self.path, self.count, self.seed, self.groups = path, count, seed, groups

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done: Any = pl_module.steps_done
        kept = [row for row in read_episodes(self.path) if row["step"] <= done]
        atomic_write_text(self.path, "".join(map(to_line, kept)))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module: Any = pl_module
        sampled, step = self.groups(), int(module.steps_done)
        advantages = _by_place(sampled, module.advantages)
        lines = []
        for place in choose(sampled.sampled, self.count, self.seed, step):
            trained = place in advantages
            row = episode_row(step, place, sampled.sampled[place[0]], advantages.get(place), trained=trained)
            lines.append(to_line(row))
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(lines))


def _by_place(sampled: StepGroups, advantages: list[float]) -> dict[tuple[int, int], float]:
    """(place of the group among those sampled, member) -> advantage, of the groups that were trained on."""
    numbers: dict[int, int] = {id(group): place for place, group in enumerate(sampled.sampled)}
    places = [
        (numbers[id(group)], member) for group in sampled.accepted for member in range(len(group.episodes))
    ]
    return dict(zip(places, advantages, strict=True)) if advantages else {}
