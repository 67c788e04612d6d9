"""The parts of the GRPO stage as its settings describe them."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from robustops.learning.groups import GroupPlan
from robustops.learning.grpo_loss import GRPOLoss
from robustops.learning.grpo_module import Optimisation
from robustops.learning.value_head import Critic, ValueHead
from robustops.objectives.advantage_guards import AdvantageGuards
from robustops.objectives.credit import NO_LOCAL_CREDIT, LocalCredit
from robustops.settings import CreditSettings, GRPOSettings
from robustops.tasks.curriculum import parse_curriculum


def group_plan(grpo: GRPOSettings) -> GroupPlan:
    """What a step samples."""
    return GroupPlan(
        grpo.groups,
        grpo.fault_groups,
        grpo.group_size,
        grpo.refill_rounds,
        grpo.dynamic_sampling,
        grpo.zero_signal_wait,
        grpo.zero_signal_capacity,
        grpo.case_draw == "signal",
        parse_curriculum(grpo.curriculum),
    )


def grpo_loss(grpo: GRPOSettings, temperature: float) -> GRPOLoss:
    """Coefficients of the loss; temperature: the sampler's."""
    return GRPOLoss(
        grpo.kl,
        grpo.kl_estimator,
        grpo.clip_low,
        grpo.clip_high,
        temperature,
        grpo.importance_cap,
        grpo.aggregation,
        grpo.overlong,
        grpo.entropy,
    )


def optimisation(grpo: GRPOSettings) -> Optimisation:
    """How the optimiser goes about a step."""
    return Optimisation(
        learning_rate=grpo.learning_rate,
        warmup_steps=grpo.warmup_steps,
        decay_steps=grpo.steps if grpo.schedule == "linear" else None,
        decay_from=grpo.decay_from,
        adam_epsilon=grpo.adam_epsilon,
        weight_decay=grpo.weight_decay,
        grad_clip=grpo.grad_clip,
        epochs=grpo.epochs,
        mini_batches=grpo.mini_batches,
        micro_batch_tokens=grpo.micro_batch_tokens,
        share_prefix=grpo.share_prefix,
        whole_updates=grpo.whole_updates,
    )


def advantage_guards(grpo: GRPOSettings) -> AdvantageGuards:
    """What advantages are held to."""
    return AdvantageGuards(grpo.advantage_guard, grpo.advantage_clip, grpo.regroup, grpo.even_credit)


def critic(grpo: GRPOSettings, model: PreTrainedModel) -> Critic | None:
    """The value head that stands in for group means, None: there is none."""
    if not grpo.value_head:
        return None
    width = model.config.get_text_config().hidden_size
    return Critic(ValueHead(width, grpo.value_learning_rate), grpo.value_least_ev, grpo.whiten)


def local_credit(credit: CreditSettings) -> LocalCredit:
    """How an advantage is laid on tokens."""
    if not credit.enabled:
        return NO_LOCAL_CREDIT
    quality: Any = credit.quality
    return LocalCredit(credit.bad_cap, credit.stop_cap, credit.cut_cap, quality)
