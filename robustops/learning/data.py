"""What the training loops iterate over: one item an optimiser step, derived from the step's number.

Nothing depends on how often an iterator was made or where it stood, so that a run that was stopped and
resumed goes on with exactly the steps it still owes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning import LightningDataModule
from torch.utils.data import DataLoader, IterableDataset

from robustops.learning.batching import Sequences, filler, pad, rank_micro_batches
from robustops.records import Episode, Group
from robustops.seeding import shuffled_passes


@dataclass(frozen=True)
class Demonstration:
    """One conversation to imitate.

    loss_mask: True on the tokens of valid assistant decisions; decisions: spans (start, end) of those
    decisions in token_ids, end exclusive.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    decisions: tuple[tuple[int, int], ...]


@dataclass
class RolloutTicket:
    """The place of one GRPO step: `RolloutCallback` fills it before the module sees it.

    groups: to be trained on; metrics, facts: of what was sampled, for the step's record.
    """

    step: int
    groups: list[Group] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DemonstrationBatch:
    """One SFT step: this process's micro-batches, and all demonstrations, which their `rows` point into."""

    step: int
    parts: tuple[Sequences, ...]
    demonstrations: tuple[Demonstration, ...]


class StepDataset(IterableDataset[object]):
    """Items for steps `start()` .. steps - 1."""

    def __init__(self, steps: int, start: Callable[[], int], make: Callable[[int], object]) -> None:
        self.steps, self.start, self.make = steps, start, make

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[object]:
        return (self.make(step) for step in range(self.start(), self.steps))


class StepData(LightningDataModule):
    """Feeds `make(step)` for every step that is still to do. updates: optimiser updates of a step."""

    def __init__(self, steps: int, make: Callable[[int], object], updates: int = 1) -> None:
        super().__init__()
        self.steps, self.make, self.updates = steps, make, updates

    def train_dataloader(self) -> DataLoader[object]:
        return DataLoader(StepDataset(self.steps, self._done, self.make), batch_size=None)

    def _done(self) -> int:
        return int(self.trainer.global_step) // self.updates if self.trainer is not None else 0


class DemonstrationSchedule:
    """Which demonstrations a step trains on: every epoch is a fresh permutation of all of them.

    size: of a step, over all processes; budget: padded tokens of a micro-batch; world: the process whose
    micro-batches these are, and the number of processes.
    """

    def __init__(
        self,
        demonstrations: Sequence[Demonstration],
        size: int,
        budget: int,
        seed: int,
        world: tuple[int, int] = (0, 1),
    ) -> None:
        self.demonstrations = demonstrations
        self.size = min(size, len(demonstrations))
        self.budget = budget
        self.seed = seed
        self.world = world

    def step(self, step: int) -> DemonstrationBatch:
        """The batch of one step; the same step is always the same batch."""
        chosen = [self.demonstrations[i] for i in self._indices(step)]
        lengths = [len(d.token_ids) for d in chosen]
        parts = tuple(
            pad([chosen[i].token_ids for i in rows], [chosen[i].loss_mask for i in rows], rows)
            if rows
            else filler()
            for rows in rank_micro_batches(lengths, self.budget, *self.world)
        )
        return DemonstrationBatch(step, parts, tuple(chosen))

    def _indices(self, step: int) -> list[int]:
        places = range(step * self.size, (step + 1) * self.size)
        return shuffled_passes(places, len(self.demonstrations), self.seed, "epoch")


def demonstration(episode: Episode, valid: Sequence[bool]) -> Demonstration:
    """An episode as a demonstration; only turns marked valid (one flag a turn) are trained."""
    mask = [False] * len(episode.token_ids)
    spans = []
    for turn, keep in zip(episode.turns, valid, strict=True):
        if keep:
            mask[turn.start : turn.end] = episode.loss_mask[turn.start : turn.end]
            spans.append((turn.start, turn.end))
    return Demonstration(episode.token_ids, tuple(mask), tuple(spans))
