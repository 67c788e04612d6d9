"""The trained half of a GRPO step's record, from what its updates left behind (`monitor.schema`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from robustops.learning.grpo_loss import GRPOLoss
from robustops.monitor.schema import SCHEMA_VERSION
from robustops.objectives.advantage_statistics import (
    advantage_statistics,
    baseline_statistics,
    lagged_correlation,
)
from robustops.objectives.advantages import Advantages, weighted_rewards
from robustops.objectives.statistics import (
    TrainedTokens,
    capped_share,
    importance_statistics,
    join,
    kl_old,
    nonfinite_values,
    policy_statistics,
    sampler_gap,
    surrogate,
)
from robustops.records import RewardParts
from robustops.rewards.combine import RewardWeights


@dataclass
class Updates:
    """What the updates of one step were. Lists have one entry for each update that trained on something.

    count: all updates of the step; rate: learning rate of the last one.
    """

    count: int = 0
    rate: float = math.nan
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    tokens: list[TrainedTokens] = field(default_factory=list)

    def add(self, loss: float, norm: float, rate: float, trained: Sequence[TrainedTokens]) -> None:
        """One update. trained: its tokens by micro-batch; none: it had nothing to train on."""
        self.count += 1
        self.rate = rate
        if trained:
            self.losses.append(loss)
            self.norms.append(norm)
            self.tokens.append(join(trained))


def update_statistics(updates: Updates, loss: GRPOLoss, epochs: int, *, reference: bool) -> dict[str, float]:
    """Of the updates and of the trained tokens; numbers beyond the schema are named `train/...`.

    epochs: passes over the step's episodes, of which the last gives kl_old; reference: the loss has a KL.
    """
    metrics = {
        "lr": updates.rate,
        "kl_coef": loss.kl if reference else 0.0,
        "skipped_updates": float(updates.count - len(updates.losses)),
    }
    if not updates.tokens:
        return metrics
    everyone = join(updates.tokens)
    clips = {"clip_low": loss.clip_low, "clip_high": loss.clip_high}
    found = policy_statistics(everyone, **clips)
    last = updates.tokens[-(len(updates.tokens) // epochs) :]
    parts = [surrogate(one, **clips, importance_cap=loss.importance_cap) for one in updates.tokens]
    metrics |= {
        "grad_norm": sum(updates.norms) / len(updates.norms),
        "grad_nonfinite": 0.0,  # the norm is finite, or the step would have ended in an error
        "policy_loss": sum(parts) / len(parts),
        "nan_count": float(nonfinite_values(everyone)),
        **_under_schema_names(found),
        "kl_old": kl_old(join(last)) if len(last) < len(updates.tokens) else found["kl_old"],
        **_sampler_statistics(updates.tokens, loss.importance_cap),
    }
    return metrics | {"train/loss": sum(updates.losses) / len(updates.losses)}


#: Token numbers beyond the schema.
_FURTHER = ("ratio_min", "kl_old_k3", "kl_ref_max", "log_prob_mean")


def _under_schema_names(numbers: dict[str, float]) -> dict[str, float]:
    return {f"train/{name}" if name in _FURTHER else name: value for name, value in numbers.items()}


def _sampler_statistics(tokens: Sequence[TrainedTokens], cap: float | None) -> dict[str, float]:
    """Sampler against trainer, both before the step's first update."""
    if cap is None:  # the old log-probs are the sampler's: only the first update's pass is the trainer's
        return _both(tokens[0].log_probs, tokens[0].sampler_log_probs)
    everyone = join(tokens)
    share = capped_share(everyone.old_log_probs, everyone.sampler_log_probs, cap)
    return {
        **_both(everyone.old_log_probs, everyone.sampler_log_probs),
        "train/importance_capped_frac": share,
    }


def _both(trainer: Tensor, sampler: Tensor) -> dict[str, float]:
    return sampler_gap(trainer, sampler) | importance_statistics(trainer, sampler)


class AdvantageTelemetry:
    """Numbers of the advantages; remembers R - b of the last step that trained on something.

    A checkpoint takes `state` along.
    """

    def __init__(self) -> None:
        self._earlier: Tensor | None = None

    def statistics(
        self,
        parts: Sequence[RewardParts],
        advantages: Advantages,
        groups: Sequence[int],
        weights: RewardWeights | None,
    ) -> dict[str, float]:
        """Of one step, once a step. groups: number of each episode's group."""
        rewards = weighted_rewards(parts, weights)
        numbers = {
            **advantage_statistics(advantages.values, groups),
            **baseline_statistics(rewards, advantages, groups),
            "adv_reward_lag1_corr": lagged_correlation(advantages.values, self._earlier),
        }
        self._earlier = None if advantages.baseline is None else rewards - advantages.baseline.double()
        return numbers

    @property
    def state(self) -> list[float] | None:
        """What the next step is compared with."""
        return None if self._earlier is None else self._earlier.tolist()

    @state.setter
    def state(self, values: list[float] | None) -> None:
        self._earlier = None if values is None else torch.tensor(values, dtype=torch.float64)


def step_facts(
    policy_version: int, *, reference: bool, whole_weights: bool, value_head: bool = False
) -> dict[str, Any]:
    """Facts of a GRPO step's line, beside those of its rollouts."""
    lacks = [] if value_head else ["value_head"]
    if not reference:
        lacks.append("reference")
    if not whole_weights:
        lacks.append("whole_weights")
    return {
        "schema_version": SCHEMA_VERSION,
        "value_source": "value_head" if value_head else "group_mean",
        "policy_version": policy_version,
        "lacks": lacks,
    }
