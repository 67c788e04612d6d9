"""Token losses: clipped policy loss, KL to the reference, flow weights, SFT token weights.

All functions return values per token, or weights per token, and never divide by the size of a
micro-batch: a loss is the plain sum over tokens of weight x term, so that splitting a batch into
micro-batches in any way changes neither the loss nor its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from robustops.errors import TrainingError
from robustops.objectives.masking import keep, masked_mean

#: Policy log-ratios are cut here before exp (veRL does the same): beyond it a ratio carries no gradient.
MAX_LOG_RATIO = 20.0
#: The k3 estimator is exact up to this log-ratio and goes on as its tangent: finite, with a bounded pull.
MAX_KL_LOG_RATIO = 10.0


@dataclass(frozen=True)
class PolicyTerms:
    """Per-token results, (batch, seq), all 0 / False outside the mask; only `loss` carries a gradient.

    loss: to be minimised, before any weight; ratio: importance ratio as used; clip_low / clip_high:
    where the lower / upper clip binds.
    """

    loss: Tensor
    ratio: Tensor
    clip_low: Tensor
    clip_high: Tensor


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    level: Literal["token", "sequence"] = "token",
) -> PolicyTerms:
    """PPO's clipped surrogate `-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)` of each token.

    Args:
        log_probs: (batch, seq) nats under the trained policy.
        old_log_probs: (batch, seq) nats under the sampling policy, no gradient.
        advantages: (batch, seq), so that local credit can differ within an episode.
        mask: (batch, seq) bool, True = trained; what is masked may be anything, inf and NaN included.
        clip_low: distance of the lower clip from 1.
        clip_high: distance of the upper clip from 1; larger than `clip_low` is DAPO's clip-higher.
        level: `token`: each token has its own ratio; `sequence`: every token of a row takes the row's
            ratio, exp of the mean log-ratio over its trained tokens (GSPO).
    """
    log_ratio = keep(log_probs, mask).float() - keep(old_log_probs, mask).float()
    if level == "sequence":
        log_ratio = masked_mean(log_ratio, mask, dim=-1)[..., None].expand_as(log_ratio)
    elif level != "token":
        raise TrainingError(f"unknown ratio level '{level}'; choose one of: sequence, token")
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    advantages = keep(advantages, mask).float()
    free = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss = keep(-torch.minimum(free, clipped), mask)
    binds = (clipped < free) & mask
    return PolicyTerms(
        loss=loss,
        ratio=keep(ratio, mask).detach(),
        clip_low=binds & (ratio < 1),
        clip_high=binds & (ratio > 1),
    )


def kl_k3(log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor | None = None) -> Tensor:
    """Schulman's k3 estimate of KL(policy || reference) of each token, in nats.

    `exp(d) - d - 1` with `d = ref_log_probs - log_probs`: never negative, 0 where they agree. Above
    `MAX_KL_LOG_RATIO` it continues as its tangent, so that no log-ratio overflows. Same shape as given;
    0 without gradient outside `mask`.
    """
    if mask is not None:
        log_probs, ref_log_probs = keep(log_probs, mask), keep(ref_log_probs, mask)
    d = ref_log_probs.float() - log_probs.float()
    near = d.clamp(max=MAX_KL_LOG_RATIO)
    return near.exp() * (1 + d - near) - d - 1


def kl_k1(log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor | None = None) -> Tensor:
    """The plain log-ratio `log_probs - ref_log_probs` of each token: unbiased, may be negative.

    As a loss on tokens of the sampling policy its gradient has mean 0; k3 pulls towards the reference.
    """
    if mask is not None:
        log_probs, ref_log_probs = keep(log_probs, mask), keep(ref_log_probs, mask)
    return log_probs.float() - ref_log_probs.float()


#: Estimators of KL(policy || reference) by name.
KL_ESTIMATORS = {"k1": kl_k1, "k3": kl_k3}


def truncated_importance(log_probs: Tensor, sampler_log_probs: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Weight of each token against the mismatch of sampler and trainer: `min(p_trainer / p_sampler, cap)`.

    Args:
        log_probs: (batch, seq) nats, the trainer's for the weights that sampled.
        sampler_log_probs: (batch, seq) nats, as the sampler reported them.
        mask: (batch, seq) bool, True = trained.
        cap: upper bound of the weight (truncated importance sampling).

    Returns:
        (batch, seq) float32 without gradient, 0 outside the mask.
    """
    gap = keep(log_probs, mask).float() - keep(sampler_log_probs, mask).float()
    weights = gap.clamp(max=MAX_LOG_RATIO).exp().clamp(max=cap)
    return keep(weights, mask).detach()


def flow_weights(clean: int, fault: int) -> tuple[float, float]:
    """Weight of one clean and of one fault item, from the counts of the *whole* step.

    Each flow is averaged over its own items and the two averages count one half each; a flow that is
    alone counts whole; a flow without items has weight 0.
    """
    if clean < 0 or fault < 0:
        raise TrainingError(f"counts cannot be negative: {clean} clean, {fault} fault")
    share = 0.5 if clean and fault else 1.0
    return share / clean if clean else 0.0, share / fault if fault else 0.0


def flow_loss(clean_sum: Tensor, clean_count: int, fault_sum: Tensor, fault_count: int) -> Tensor:
    """Equal-weight mean of the two flows' token means, from their token sums; 0 where both are empty."""
    clean_weight, fault_weight = flow_weights(clean_count, fault_count)
    return clean_weight * clean_sum + fault_weight * fault_sum


def episode_token_weights(
    tokens: Sequence[int], is_fault: Sequence[bool], aggregation: str = "token"
) -> list[float]:
    """Weight of one token of each episode, from the *whole* step; they sum to 1 over all tokens.

    Args:
        tokens: trained tokens of each episode.
        is_fault: the flow each belongs to; the two flows count one half each (see `flow_weights`).
        aggregation: `token`: every token of a flow weighs the same (RobustOps), so long episodes weigh
            more; `trajectory`: every episode of a flow weighs the same, shared among its tokens.
    """
    if aggregation not in ("token", "trajectory"):
        raise TrainingError(f"unknown aggregation '{aggregation}'; choose one of: token, trajectory")
    sizes = [count if aggregation == "token" else min(count, 1) for count in tokens]
    totals = [sum(n for n, f in zip(sizes, is_fault, strict=True) if f == flow) for flow in (False, True)]
    clean, fault = flow_weights(*totals)
    shares = [fault if flow else clean for flow in is_fault]
    if aggregation == "token":
        return shares
    return [share / count if count else 0.0 for share, count in zip(shares, tokens, strict=True)]


def sft_token_weights(loss_mask: Sequence[bool], decisions: Sequence[tuple[int, int]]) -> Tensor:
    """Weights of one trajectory's tokens: shared equally among its decisions, then among their tokens.

    Args:
        loss_mask: one bool a token, True = may be trained.
        decisions: spans (start, end exclusive) of the valid assistant decisions. A span without a
            trained token is no decision; tokens outside all spans are not trained.

    Returns:
        (tokens,) float32 that sums to 1, or all 0 where there is no valid decision. Position 0 has no
        prefix to be predicted from and never counts.
    """
    mask = torch.tensor(loss_mask, dtype=torch.bool)
    mask[:1] = False
    weights = torch.zeros(len(mask))
    taken = torch.zeros_like(mask)
    valid = []
    for start, end in decisions:
        if not 0 <= start < end <= len(mask) or bool(taken[start:end].any()):
            raise TrainingError(
                f"decision span {start}:{end} overlaps another or lies outside the {len(mask)} tokens"
            )
        taken[start:end] = True
        if bool(mask[start:end].any()):
            valid.append((start, end))
    for start, end in valid:
        chosen = mask[start:end]
        weights[start:end] = chosen / (len(valid) * chosen.sum())
    return weights
