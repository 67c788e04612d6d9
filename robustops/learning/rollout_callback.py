"""RolloutCallback: owns the sampler, fills every step's ticket, hands new weights to the sampler."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from robustops.learning.data import RolloutTicket
from robustops.learning.groups import GroupMaker, StepGroups
from robustops.learning.samplers import named_weights
from robustops.records import Episode
from robustops.rollout.sampler import Sampler


class RolloutCallback(Callback):
    """Samples the groups of a step before the module trains on them.

    The sampler always holds the current weights: they are synchronised after every optimiser step, and
    before the first one of a (resumed) run. `sampled` keeps the step's episodes for the run store.
    """

    def __init__(self, maker: GroupMaker, sampler: Sampler) -> None:
        self.maker = maker
        self.sampler = sampler
        self.sampled: StepGroups = StepGroups()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._sync(trainer, pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutTicket, batch_idx: int
    ) -> None:
        self.sampled = self.maker.step(batch.step)
        batch.groups = self.sampled.accepted
        batch.metrics = rollout_metrics(self.sampled)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._sync(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        return self.maker.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.maker.load_state_dict(state_dict)

    def _sync(self, trainer: Trainer, pl_module: LightningModule) -> None:
        model: Any = pl_module.model
        self.sampler.sync(named_weights(model), trainer.global_step)


def rollout_metrics(sampled: StepGroups) -> dict[str, float]:
    """What one step sampled, before any group was filtered out."""
    metrics: dict[str, float] = {f"rollout/{name}": float(n) for name, n in sorted(sampled.counts.items())}
    metrics["rollout/groups_sampled"] = float(len(sampled.sampled))
    metrics["rollout/groups_accepted"] = float(len(sampled.accepted))
    everyone = [episode for group in sampled.sampled for episode in group.episodes]
    metrics["rollout/episodes"] = float(len(everyone))
    metrics["rollout/invalid_episodes"] = float(sum(e.error is not None for e in everyone))
    for condition in sorted({group.condition for group in sampled.sampled}):
        valid = [e for e in everyone if e.condition == condition and e.error is None]
        if valid:
            metrics.update({f"{condition}/{k}": v for k, v in episode_metrics(valid).items()})
    return metrics


def episode_metrics(episodes: list[Episode]) -> dict[str, float]:
    """Means over valid episodes: reward parts, calls, tokens, shares of each way to stop."""
    count = len(episodes)
    parts = [e.reward_parts for e in episodes if e.reward_parts is not None]
    metrics = {
        "success": sum(p.success for p in parts) / count,
        "progress": sum(p.progress for p in parts) / count,
        "quality": sum(p.quality for p in parts) / count,
        "tool_calls": sum(sum(t.call is not None for t in e.own_turns) for e in episodes) / count,
        "completion_tokens": sum(sum(e.loss_mask) for e in episodes) / count,
    }
    for stop in ("final_answer", "max_turns", "context", "answer_budget"):
        metrics[f"stop_{stop}"] = sum(e.stop == stop for e in episodes) / count
    return metrics
