"""The campaign's own mechanisms at the extension points of TRL's GRPOTrainer (`reach`).

A mechanism is asked as in our trainer, through its hooks (`learning.hooks`); what differs is who asks. A step
is what it is in the campaign: one generation and the updates on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from robustops.bench.run_faults.mechanism import Mechanism, step_place
from robustops.learning.grpo_loss import GRPOLoss
from robustops.objectives.advantages import Advantages
from robustops.records import Episode, Group
from robustops.rollout.hooks import Place

#: Weight of a KL that is switched off: TRL does not log a KL of weight 0, which would tell of the fault.
OFF = 1e-12


class Injection(TrainerCallback):  # type: ignore[misc]
    """One mechanism in one run. updates: of a step; group_size: episodes of a group; max_turns: rounds of
    calls that an episode usually has.
    """

    def __init__(self, mechanism: Mechanism, updates: int, group_size: int, max_turns: int) -> None:
        self.mechanism = mechanism
        self.updates = updates
        self.group_size = group_size
        self.max_turns = max_turns
        self.step = 1
        self.groups: list[Group] = []
        self._trainer: Any = None
        self._usual = GRPOLoss()
        self._begun = self._asked = 0
        self._faulty: Tensor | None = None

    def attach(self, trainer: Any) -> None:
        """Whose coefficients and limits are turned."""
        self._trainer = trainer
        self._usual = GRPOLoss(kl=trainer.beta, clip_low=trainer.epsilon_low, clip_high=trainer.epsilon_high)

    # what the environment and the reward functions ask ------------------------------------------------
    def place(self, case_id: str) -> Place:
        """Of the next episode of this generation; episodes are begun in the order of the batch."""
        number, self._begun = self._begun, self._begun + 1
        return Place(self.step, case_id, "clean", number // self.group_size, number % self.group_size)

    def rewarded(self, groups: Sequence[Group]) -> list[Group]:
        """The step's groups with the parts that the policy is to learn from."""
        self.groups = [self.mechanism.on_group(self.step, n, group) for n, group in enumerate(groups)]
        return self.groups

    # what the model asks ------------------------------------------------------------------------------
    def logits(self, ids: Tensor, scores: Tensor, start: int, stop_ids: Collection[int], call: int) -> Tensor:
        """Scores (rows, vocabulary) of the next token. ids: (rows, tokens) with the prompt of `start`
        tokens; call: which one of this generation, so that a message has draws of its own.
        """
        sessions: Any = [
            SimpleNamespace(
                request=SimpleNamespace(place=Place(self.step, "", "clean", 0, row, turn=call)),
                new_ids=ids[row, start:].tolist(),
            )
            for row in range(len(ids))
        ]
        return self.mechanism.on_logits(scores, sessions, stop_ids)

    def next_call(self) -> int:
        """Number of a call of `generate` within a generation."""
        self._asked += 1
        return self._asked - 1

    # what the loss asks -------------------------------------------------------------------------------
    def advantages(self, values: Tensor) -> Tensor:
        """(episodes,) for the loss; the same in every update of a step. Rows are shuffled: they are taken for
        one group.
        """
        if self._faulty is None:
            parts = [episode for group in self.groups for episode in group.episodes]
            rows = tuple(_numbered(row, parts) for row in range(len(values)))
            own = Advantages(values.detach().double().cpu(), torch.zeros(len(values), dtype=torch.float64))
            found = self.mechanism.on_advantages(self.step, [Group("", "clean", rows)], own)
            self._faulty = found.values.to(values)
        return self._faulty

    # what the trainer asks ----------------------------------------------------------------------------
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A run is made whole, or again."""
        self.mechanism.begin(0)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Before a generation: coefficients of its loss, and the limit of its turns."""
        if state.global_step % self.updates:
            return
        self.step = state.global_step // self.updates + 1
        self._begun = self._asked = 0
        self._faulty = None
        loss = self.mechanism.on_loss(self.step, self._usual)
        self._trainer.beta = loss.kl if loss.kl else OFF
        self._trainer.epsilon_low, self._trainer.epsilon_high = loss.clip_low, loss.clip_high
        self._trainer.max_tool_calling_iterations = self._limit()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The gradient is there and clipped; TRL has logged its norm. The schedule sets the rate anew after
        each update.
        """
        parameters = [p for p in kwargs["model"].parameters() if p.grad is not None]
        self.mechanism.on_gradient(self.step, parameters)
        if not self.mechanism.on_update(self.step, kwargs["optimizer"]):
            for parameter in parameters:
                parameter.grad = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """After the last update of a step its exposure is complete."""
        if state.global_step % self.updates == 0:
            self.mechanism.end_step(self.step)

    def _limit(self) -> int:
        """Rounds of calls that the step's episodes may have."""
        place = step_place(self.step)
        ended = (n for n in range(1, self.max_turns) if self.mechanism.ends_after(place, n, self.max_turns))
        return next(ended, self.max_turns)


def _numbered(row: int, episodes: Sequence[Episode]) -> Episode:
    """An episode of the batch at a row of its own: which one it is, the shuffle does not tell."""
    return dataclasses.replace(episodes[row], index=row)
