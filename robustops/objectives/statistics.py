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

from robustops.errors import TrainingError
from robustops.objectives.losses import policy_loss, truncated_importance


@dataclass(frozen=True)
class TrainedTokens:
    """Values of trained tokens only, 1-D and of equal lengths, no gradient.

    log_probs: trained policy; old_log_probs: the policy before the step, as the ratio uses it;
    sampler_log_probs: as the sampler reported them; ref_log_probs: frozen reference, None without one;
    entropy: nats; advantages: as used in the loss, after local credit; weights: of each token in the loss.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    sampler_log_probs: Tensor
    entropy: Tensor
    advantages: Tensor
    ref_log_probs: Tensor | None = None
    weights: Tensor | None = None

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
        weights: Tensor | None = None,
    ) -> TrainedTokens:
        """The tokens under `mask` of padded (batch, seq) tensors, on the CPU."""

        def pick(values: Tensor) -> Tensor:
            return values.detach()[mask].cpu()

        return cls(
            pick(log_probs),
            pick(old_log_probs),
            pick(sampler_log_probs),
            pick(entropy),
            pick(advantages),
            None if ref_log_probs is None else pick(ref_log_probs),
            None if weights is None else pick(weights),
        )


def join(batches: Sequence[TrainedTokens]) -> TrainedTokens:
    """The tokens of several micro-batches as one; reference and weights are dropped unless all have them."""
    return TrainedTokens(
        log_probs=_concat([b.log_probs for b in batches]),
        old_log_probs=_concat([b.old_log_probs for b in batches]),
        sampler_log_probs=_concat([b.sampler_log_probs for b in batches]),
        entropy=_concat([b.entropy for b in batches]),
        advantages=_concat([b.advantages for b in batches]),
        ref_log_probs=_concat_all([b.ref_log_probs for b in batches]),
        weights=_concat_all([b.weights for b in batches]),
    )


def policy_statistics(tokens: TrainedTokens, *, clip_low: float, clip_high: float) -> dict[str, float]:
    """Ratio, clipping, KL, entropy and log-prob numbers over the step's trained tokens.

    ratio_*: exp(log_probs - old_log_probs), p99 by nearest rank; clip_frac = clip_low + clip_high: shares of
    tokens at which the lower / upper clip binds; kl_old, kl_old_k3: from the sampling to the trained policy
    by k1 and k3; kl_ref_k1, kl_ref_k3, kl_ref_max: to the reference, NaN without one; all in nats a token.
    Ratios and k3 are in float64 without the loss's caps: they say what is there.
    """
    new, old = tokens.log_probs.double(), tokens.old_log_probs.double()
    ratio = (new - old).exp()
    up = (ratio > 1 + clip_high) & (tokens.advantages > 0)
    down = (ratio < 1 - clip_low) & (tokens.advantages < 0)
    numbers = {
        "ratio_mean": mean(ratio),
        "ratio_max": largest(ratio),
        "ratio_min": -largest(-ratio),
        "ratio_p99": quantile(ratio, 0.99),
        "clip_frac": mean((up | down).double()),
        "clip_low": mean(down.double()),
        "clip_high": mean(up.double()),
        "kl_old": kl_old(tokens),
        "kl_old_k3": mean(_k3(old, new)),
        "entropy": mean(tokens.entropy),
        "log_prob_mean": mean(new),
    }
    return numbers | _reference_statistics(new, tokens.ref_log_probs)


def kl_old(tokens: TrainedTokens) -> float:
    """KL from the sampling to the trained policy by k1, in nats a token."""
    return mean(tokens.old_log_probs.double() - tokens.log_probs.double())


def sampler_gap(trainer_log_probs: Tensor, sampler_log_probs: Tensor) -> dict[str, float]:
    """How far the trainer's recomputed log-probs are from the sampler's, same weights and same tokens.

    Takes 1-D values of the trained tokens; a mismatch that is NaN stays NaN.
    """
    gap = (trainer_log_probs.double() - sampler_log_probs.double()).abs()
    return {"samp_logp_absdiff_mean": mean(gap), "samp_logp_absdiff_max": largest(gap)}


def importance_statistics(trainer_log_probs: Tensor, sampler_log_probs: Tensor) -> dict[str, float]:
    """Of the importance weights w = p_trainer / p_sampler of 1-D trained tokens, before any cap.

    is_ratio_ess: effective sample size (sum w)^2 / (n sum w^2), a share of the tokens.
    """
    weights = _importance(trainer_log_probs, sampler_log_probs)
    scaled = weights / weights.max() if weights.numel() else weights  # the squares must not overflow
    return {
        "is_ratio_mean": mean(weights),
        "is_ratio_min": -largest(-weights),
        "is_ratio_max": largest(weights),
        "is_ratio_ess": mean(scaled) ** 2 / mean(scaled**2) if weights.numel() else math.nan,
    }


def capped_share(trainer_log_probs: Tensor, sampler_log_probs: Tensor, cap: float) -> float:
    """Share of the tokens whose importance weight is beyond the cap."""
    return mean((_importance(trainer_log_probs, sampler_log_probs) > cap).double())


def _importance(trainer_log_probs: Tensor, sampler_log_probs: Tensor) -> Tensor:
    return (trainer_log_probs.double() - sampler_log_probs.double()).exp()


def surrogate(
    tokens: TrainedTokens, *, clip_low: float, clip_high: float, importance_cap: float | None
) -> float:
    """The policy's part of the loss of one update, weighted as in it, without the KL; NaN without tokens.

    Raises TrainingError where the tokens carry no weights.
    """
    if tokens.weights is None:
        raise TrainingError("these tokens carry no loss weights; select them with weights=")
    if not tokens.weights.numel():
        return math.nan
    mask = torch.ones_like(tokens.log_probs, dtype=torch.bool)
    old, advantages = tokens.old_log_probs, tokens.advantages
    terms = policy_loss(tokens.log_probs, old, advantages, mask, clip_low=clip_low, clip_high=clip_high).loss
    if importance_cap is not None:
        terms = terms * truncated_importance(old, tokens.sampler_log_probs, mask, importance_cap)
    return float((terms * tokens.weights).double().sum())


def nonfinite_values(tokens: TrainedTokens) -> int:
    """How many values of the tokens are NaN or infinite, whatever they are of."""
    columns = (
        *(tokens.log_probs, tokens.old_log_probs, tokens.sampler_log_probs, tokens.entropy),
        *(tokens.advantages, tokens.ref_log_probs),
    )
    return sum(int((~column.isfinite()).sum()) for column in columns if column is not None)


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


def quantile(values: Tensor, share: float) -> float:
    """The least value that this share of them does not exceed; NaN where there is nothing, or a NaN."""
    if not values.numel() or bool(values.isnan().any()):
        return math.nan
    return float(values.kthvalue(max(1, math.ceil(share * values.numel()))).values)


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


def _concat_all(parts: Sequence[Tensor | None]) -> Tensor | None:
    """None unless all parts are there."""
    there = [part for part in parts if part is not None]
    return _concat(there) if len(there) == len(parts) else None


def _concat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.zeros(0)
