"""Places in a training run where something may look on or step in; by default nothing does.

Steps are numbered as in the telemetry, from 1. A hook set with a state keeps it in `state_dict`, which goes
with every checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from robustops.learning.grpo_loss import GRPOLoss
from robustops.objectives.advantages import Advantages
from robustops.records import Group
from robustops.rollout.hooks import RolloutHooks


class TrainingHooks(RolloutHooks):
    """Does nothing. Override what is to be watched or changed, here and in `RolloutHooks`.

    holds_weights: `on_sync` may say no, so that the sampler needs weights of its own.
    """

    holds_weights: bool = False

    def on_group(self, step: int, number: int, group: Group) -> Group:
        """A group whose rewards have just been computed, before anything depends on them. number: as
        `Place.group`. Change `Episode.reward_parts`; success is what the state checks say.
        """
        return group

    def on_members(self, step: int, groups: Sequence[Group], members: Sequence[int]) -> Sequence[int]:
        """(episodes,) which group each of the groups' episodes, in order, is normalised within."""
        return members

    def on_advantages(self, step: int, groups: Sequence[Group], advantages: Advantages) -> Advantages:
        """Advantages (episodes,) of the groups' episodes in order, before they are laid on tokens."""
        return advantages

    def on_value_targets(self, step: int, groups: Sequence[Group], targets: Tensor) -> Tensor:
        """Returns (episodes,) that a value head is to learn, where there is one."""
        return targets

    def on_value_update(self, step: int, optimizer: Optimizer) -> bool:
        """Before an update of a value head, as `on_update`."""
        return True

    def on_credit(self, step: int, groups: Sequence[Group], credit: list[Tensor]) -> list[Tensor]:
        """Advantages of the tokens of each of the groups' episodes, (tokens,) each, before the loss."""
        return credit

    def on_loss(self, step: int, loss: GRPOLoss) -> GRPOLoss:
        """The coefficients that this step's loss is computed with."""
        return loss

    def on_gradient(self, step: int, parameters: Sequence[Parameter]) -> None:
        """Gradients of one update, before their norm is taken and clipped; change them in place."""

    def on_update(self, step: int, optimizer: Optimizer | LightningOptimizer) -> bool:
        """Before an update; False: it is not made. Learning rates may be changed, for this update only."""
        return True

    def on_sync(self, step: int) -> bool:
        """Before the sampler gets the weights that it will sample this step with; False: it keeps its own."""
        return True

    def begin(self, steps_done: int) -> None:
        """A fit begins, or goes on after so many steps; what was written beyond them is void."""

    def end_step(self, step: int) -> None:
        """The step is complete."""

    def state_dict(self) -> dict[str, Any]:
        """What must go on exactly after a resume."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""


#: Shared by all who were given none: it has no state.
NO_TRAINING_HOOKS = TrainingHooks()


class HooksCallback(Callback):
    """Tells hooks of the steps, and takes their state along with checkpoints.

    Let it come after `RolloutCallback`, whose checkpoint waits for episodes that are sampled ahead.
    """

    def __init__(self, hooks: TrainingHooks) -> None:
        self.hooks = hooks

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done: Any = pl_module.steps_done
        self.hooks.begin(done)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        done: Any = pl_module.steps_done
        self.hooks.end_step(done)

    def state_dict(self) -> dict[str, Any]:
        return self.hooks.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.hooks.load_state_dict(state_dict)
