"""Group-relative policy optimisation of tool-using episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor
from transformers import PreTrainedModel

from robustops.learning.batching import Sequences, micro_batches, pad, pad_values, padding_share
from robustops.learning.data import RolloutTicket
from robustops.learning.forward import score_tokens
from robustops.learning.optimisation import adamw, update
from robustops.objectives.credit import spread
from robustops.objectives.losses import episode_token_weights, kl_k3, policy_loss
from robustops.objectives.statistics import (
    TrainedTokens,
    advantage_statistics,
    join,
    policy_statistics,
    reward_statistics,
    sampler_gap,
)
from robustops.records import Episode, RewardParts
from robustops.rewards.combine import RewardWeights
from robustops.rewards.parts import bad_turns

#: Advantages (episodes,) of raw parts and group numbers: `objectives.advantages.aggregate` or `.component`.
Normalise = Callable[[Sequence[RewardParts], Sequence[int]], Tensor]


@dataclass(frozen=True)
class GRPOLoss:
    """Coefficients. kl: weight of the KL to the reference policy; the ratio is clipped to
    [1 - clip_low, 1 + clip_high]; temperature: that of the sampler; aggregation: what weighs the same
    within a flow, every `token` or every `trajectory`.
    """

    kl: float = 0.001
    clip_low: float = 0.2
    clip_high: float = 0.28
    temperature: float = 1.0
    aggregation: str = "token"


@dataclass(frozen=True)
class _Batch:
    """One micro-batch; per-token tensors are (batch, seq)."""

    sequences: Sequences
    old_log_probs: Tensor
    advantages: Tensor
    weights: Tensor


class GRPOModule(LightningModule):
    """Trains on the groups that `RolloutCallback` put into the step's ticket.

    reference: the frozen SFT policy (not part of the module's state); normalise: the order of reward
    normalisation; reward_weights: of the reported rewards; decay_steps: the learning rate
    decays linearly to a tenth over so many steps (None: constant). Clean and fault flow are means of equal
    weight. A step without any group leaves the weights as they are.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        reference: PreTrainedModel,
        normalise: Normalise,
        loss: GRPOLoss,
        *,
        learning_rate: float,
        warmup_steps: int = 0,
        decay_steps: int | None = None,
        adam_epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        grad_clip: float = 1.0,
        micro_batch_tokens: int = 8192,
        reward_weights: RewardWeights | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self._reference = [reference]
        self.normalise = normalise
        self.loss = loss
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.decay_steps = decay_steps
        self.adam_epsilon = adam_epsilon
        self.weight_decay = weight_decay
        self.grad_clip = grad_clip
        self.micro_batch_tokens = micro_batch_tokens
        self.reward_weights = reward_weights
        self.step_metrics: dict[str, float] = {}

    def configure_optimizers(self) -> Any:
        return adamw(
            self,
            self.learning_rate,
            self.weight_decay,
            self.warmup_steps,
            self.decay_steps,
            self.adam_epsilon,
        )

    def on_train_start(self) -> None:
        # Dropout would make the recomputed log-probs disagree with the sampled ones.
        self.model.train(False)
        self._reference[0].to(self.device)  # type: ignore[arg-type]

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Micro-batches are moved one by one."""
        return batch

    def training_step(self, ticket: RolloutTicket, batch_idx: int) -> None:
        episodes = [episode for group in ticket.groups for episode in group.episodes]
        metrics = {**ticket.metrics, "train/episodes": float(len(episodes))}
        if episodes:
            values, metrics_of_rewards = self._advantages(ticket, episodes)
            metrics.update(metrics_of_rewards)
            metrics.update(self._backward(episodes, values))
        norm, used = update(self, self.grad_clip, loss=metrics.get("train/loss", 0.0))
        self.step_metrics = {**metrics, "train/grad_norm": norm, "train/learning_rate": used}

    # ---------------------------------------------------------------------------------------------
    def _advantages(
        self, ticket: RolloutTicket, episodes: Sequence[Episode]
    ) -> tuple[list[Tensor], dict[str, float]]:
        """Per-token advantages, one (seq,) tensor an episode, and numbers about them."""
        groups = [number for number, group in enumerate(ticket.groups) for _ in group.episodes]
        parts = [episode.reward_parts for episode in episodes if episode.reward_parts is not None]
        assert len(parts) == len(episodes), "accepted groups carry reward parts"
        values = self.normalise(parts, groups)
        rewards = reward_statistics(parts, groups, self.reward_weights)
        numbers = {**rewards, **advantage_statistics(values)}
        spans = spread(values, episodes, [bad_turns(episode) for episode in episodes])
        return spans, {f"train/{name}": value for name, value in numbers.items()}

    def _backward(self, episodes: Sequence[Episode], advantages: Sequence[Tensor]) -> dict[str, float]:
        """Accumulate the step's gradient over micro-batches."""
        lengths = [len(episode.token_ids) for episode in episodes]
        rows = micro_batches(lengths, self.micro_batch_tokens)
        weights = episode_token_weights(
            [sum(episode.loss_mask) for episode in episodes],
            [episode.condition == "fault" for episode in episodes],
            self.loss.aggregation,
        )
        total, tokens = 0.0, []
        for chosen in rows:
            batch = self._batch(
                [episodes[i] for i in chosen], [advantages[i] for i in chosen], [weights[i] for i in chosen]
            )
            loss, trained = self._loss(batch)
            self.manual_backward(loss)
            total += loss.item()
            tokens.append(trained)
        everyone = join(tokens)
        numbers = {
            "loss": total,
            "tokens": float(len(everyone.log_probs)),
            "padding_share": padding_share(lengths, rows),
            **policy_statistics(everyone, clip_low=self.loss.clip_low, clip_high=self.loss.clip_high),
            **sampler_gap(everyone.log_probs, everyone.old_log_probs),
        }
        return {f"train/{name}": value for name, value in numbers.items()}

    def _batch(
        self, episodes: Sequence[Episode], advantages: Sequence[Tensor], weights: Sequence[float]
    ) -> _Batch:
        sequences = pad(
            [e.token_ids for e in episodes], [e.loss_mask for e in episodes], range(len(episodes))
        )
        width = sequences.token_ids.shape[1]
        return _Batch(
            sequences.to(self.device),
            pad_values([episode.old_log_probs for episode in episodes], width).to(self.device),
            pad_values([values.tolist() for values in advantages], width).to(self.device),
            (torch.tensor(weights)[:, None] * sequences.loss_mask).to(self.device),
        )

    def _loss(self, batch: _Batch) -> tuple[Tensor, TrainedTokens]:
        """This micro-batch's share of the step's loss, and its trained tokens."""
        mask, temperature = batch.sequences.loss_mask, self.loss.temperature
        scores = score_tokens(self.model, batch.sequences, temperature=temperature)
        with torch.no_grad():
            reference = score_tokens(self._reference[0], batch.sequences, temperature=temperature)
        policy = policy_loss(
            scores.log_probs,
            batch.old_log_probs,
            batch.advantages,
            mask,
            clip_low=self.loss.clip_low,
            clip_high=self.loss.clip_high,
        )
        kl = kl_k3(scores.log_probs, reference.log_probs, mask)
        loss = ((policy.loss + self.loss.kl * kl) * batch.weights).sum()
        trained = TrainedTokens.select(
            mask,
            log_probs=scores.log_probs,
            old_log_probs=batch.old_log_probs,
            ref_log_probs=reference.log_probs,
            entropy=scores.entropy,
            advantages=batch.advantages,
        )
        return loss, trained
