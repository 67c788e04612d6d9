"""Numbers of one optimiser step for its telemetry line.

Everything is computed from the trained tokens of the whole step, collected as 1-D tensors over its
micro-batches, so that the batching order does not change a number (beyond rounding). A quantity that
could not be observed is NaN, never 0, and a NaN among the values shows up as NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from robustops.objectives.advantages import Groups, has_signal
from robustops.records import RewardParts
from robustops.rewards.combine import RewardWeights, total


@dataclass(frozen=True)
class TrainedTokens:
    """Values of trained tokens only, 1-D and of equal lengths, no gradient.

    log_probs: trained policy; old_log_probs: the policy before the step, as the ratio uses it;
    sampler_log_probs: as the sampler reported them; ref_log_probs: frozen reference, None without one;
    entropy: nats; advantages: as used in the loss, after local credit.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    sampler_log_probs: Tensor
    entropy: Tensor
    advantages: Tensor
    ref_log_probs: Tensor | None = None

    @classmethod
    def select(
        cls,
        mask: Tensor,
        *,
        log_probs: Tensor,
        old_log_probs: Tensor,
        sampler_log_probs: Tensor,
        entropy: Tensor,
        advantages: Tensor,
        ref_log_probs: Tensor | None = None,
    ) -> TrainedTokens:
        """The tokens under `mask` of padded (batch, seq) tensors, on the CPU."""

        def pick(values: Tensor) -> Tensor:
            return values.detach()[mask].cpu()

        reference = None if ref_log_probs is None else pick(ref_log_probs)
        return cls(
            pick(log_probs),
            pick(old_log_probs),
            pick(sampler_log_probs),
            pick(entropy),
            pick(advantages),
            reference,
        )


def join(batches: Sequence[TrainedTokens]) -> TrainedTokens:
    """The tokens of several micro-batches as one; the reference is dropped unless all have it."""
    references = [b.ref_log_probs for b in batches if b.ref_log_probs is not None]
    whole = len(references) == len(batches)
    return TrainedTokens(
        log_probs=_concat([b.log_probs for b in batches]),
        old_log_probs=_concat([b.old_log_probs for b in batches]),
        sampler_log_probs=_concat([b.sampler_log_probs for b in batches]),
        entropy=_concat([b.entropy for b in batches]),
        advantages=_concat([b.advantages for b in batches]),
        ref_log_probs=_concat(references) if whole else None,
    )


def policy_statistics(tokens: TrainedTokens, *, clip_low: float, clip_high: float) -> dict[str, float]:
    """Ratio, clipping, KL, entropy and log-prob numbers over the step's trained tokens.

    ratio_*: exp(log_probs - old_log_probs); clip_frac = clip_low + clip_high: shares of tokens at which
    the lower / upper clip binds; kl_old, kl_old_k3: from the sampling to the trained policy by k1 and
    k3; kl_ref_k1, kl_ref_k3, kl_ref_max: to the reference, NaN without one; all in nats a token. Ratios
    and k3 are in float64 without the loss's caps: they say what is there.
    """
    new, old = tokens.log_probs.double(), tokens.old_log_probs.double()
    ratio = (new - old).exp()
    up = (ratio > 1 + clip_high) & (tokens.advantages > 0)
    down = (ratio < 1 - clip_low) & (tokens.advantages < 0)
    numbers = {
        "ratio_mean": mean(ratio),
        "ratio_max": largest(ratio),
        "ratio_min": -largest(-ratio),
        "clip_frac": mean((up | down).double()),
        "clip_low": mean(down.double()),
        "clip_high": mean(up.double()),
        "kl_old": mean(old - new),
        "kl_old_k3": mean(_k3(old, new)),
        "entropy": mean(tokens.entropy),
        "log_prob_mean": mean(new),
    }
    return numbers | _reference_statistics(new, tokens.ref_log_probs)


def sampler_gap(trainer_log_probs: Tensor, sampler_log_probs: Tensor) -> dict[str, float]:
    """How far the trainer's recomputed log-probs are from the sampler's, same weights and same tokens.

    Takes 1-D values of the trained tokens; a mismatch that is NaN stays NaN.
    """
    gap = (trainer_log_probs.double() - sampler_log_probs.double()).abs()
    return {"samp_logp_absdiff_mean": mean(gap), "samp_logp_absdiff_max": largest(gap)}


def importance_statistics(tokens: TrainedTokens, cap: float) -> dict[str, float]:
    """Of the weights against the mismatch of sampler and trainer, before they are cut at `cap`.

    importance_mean, _min, _max: of p_trainer / p_sampler over the trained tokens; importance_capped_frac:
    share of tokens beyond the cap.
    """
    weights = (tokens.old_log_probs.double() - tokens.sampler_log_probs.double()).exp()
    return {
        "importance_mean": mean(weights),
        "importance_min": -largest(-weights),
        "importance_max": largest(weights),
        "importance_capped_frac": mean((weights > cap).double()),
    }


def advantage_statistics(advantages: Tensor) -> dict[str, float]:
    """Of the (episodes,) advantages before they are spread; std is the sample deviation."""
    values = advantages.double()
    return {
        "adv_mean": mean(values),
        "adv_std": deviation(values),
        "adv_min": -largest(-values),
        "adv_max": largest(values),
        "adv_absmax": largest(values.abs()),
    }


def reward_statistics(
    parts: Sequence[RewardParts], groups: Groups, weights: RewardWeights | None = None
) -> dict[str, float]:
    """Of the raw rewards of a step's episodes: after weighting, before normalisation.

    zero_signal_frac: share of the groups in which no weighted part differs.
    """
    names = (
        *("reward_mean", "reward_std", "reward_min", "reward_max", "success_mean"),
        *("progress_mean", "quality_mean", "zero_signal_frac"),
    )
    if not parts:
        return dict.fromkeys(names, math.nan)
    rewards = torch.tensor([total(part, weights) for part in parts], dtype=torch.float64)
    columns = torch.tensor([[p.success, p.progress, p.quality] for p in parts], dtype=torch.float64)
    success, progress, quality = columns.mean(dim=0).tolist()
    values = (
        *(mean(rewards), deviation(rewards), -largest(-rewards), largest(rewards)),
        *(success, progress, quality, zero_signal_share(parts, groups, weights)),
    )
    return dict(zip(names, values, strict=True))


def zero_signal_share(
    parts: Sequence[RewardParts], groups: Groups, weights: RewardWeights | None = None
) -> float:
    """Share of the groups (not of the episodes) that have no signal; NaN without groups."""
    if not parts:
        return math.nan
    signal = has_signal(parts, groups, weights)
    ids = torch.as_tensor(groups).reshape(-1)
    return 1 - len(torch.unique(ids[signal])) / len(torch.unique(ids))


def total_norm(parameters: Iterable[torch.nn.Parameter]) -> float:
    """L2 norm of all gradients together, before clipping; 0 where no parameter has one."""
    gradients = [p.grad.detach() for p in parameters if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0


def nonfinite_gradients(parameters: Iterable[torch.nn.Parameter]) -> int:
    """How many gradient entries are NaN or infinite."""
    return sum(int((~p.grad.isfinite()).sum()) for p in parameters if p.grad is not None)


def mean(values: Tensor) -> float:
    """Mean in float64; NaN where there is nothing."""
    return float(values.double().mean()) if values.numel() else math.nan


def deviation(values: Tensor) -> float:
    """Sample standard deviation; NaN below two values."""
    return float(values.double().std(correction=1)) if values.numel() > 1 else math.nan


def largest(values: Tensor) -> float:
    """Maximum (NaN wins); NaN where there is nothing."""
    return float(values.double().max()) if values.numel() else math.nan


def _reference_statistics(log_probs: Tensor, ref_log_probs: Tensor | None) -> dict[str, float]:
    if ref_log_probs is None:
        return dict.fromkeys(("kl_ref_k1", "kl_ref_k3", "kl_ref_max"), math.nan)
    k3 = _k3(log_probs, ref_log_probs.double())
    return {
        "kl_ref_k1": mean(log_probs - ref_log_probs.double()),
        "kl_ref_k3": mean(k3),
        "kl_ref_max": largest(k3),
    }


def _k3(of: Tensor, against: Tensor) -> Tensor:
    """exp(d) - d - 1 with d = against - of, an estimate of KL(of || against) on samples of `of`."""
    d = against - of
    return d.expm1() - d


def _concat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.zeros(0)
