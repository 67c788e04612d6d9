"""The loss of a micro-batch of episodes: clipped policy loss and KL, summed with the weights of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import torch
from torch import Tensor
from transformers import PreTrainedModel

from robustops.errors import TrainingError
from robustops.learning.batching import Sequences, SharedPrefix, pad, pad_values
from robustops.learning.finite import first_bad_gradient, first_nonfinite
from robustops.learning.forward import TokenScores, score_tokens
from robustops.learning.policy import Reference
from robustops.objectives.losses import KL_ESTIMATORS, policy_loss, truncated_importance
from robustops.objectives.masking import keep
from robustops.objectives.statistics import TrainedTokens
from robustops.records import Episode


@dataclass(frozen=True)
class GRPOLoss:
    """Coefficients. kl: weight of the KL to the reference policy, by `kl_estimator`; the ratio is clipped to
    [1 - clip_low, 1 + clip_high]; temperature: that of the sampler; importance_cap: bound of the weight
    against the mismatch of sampler and trainer, None: no weight, and the sampler's log-probs are the old
    ones; aggregation: what weighs the same within a flow, every `token` or every `trajectory`; overlong:
    `mask` leaves episodes that a token budget cut off out of the loss, `keep` trains on them; entropy: weight
    of a bonus for the policy's entropy, in nats a token.
    """

    kl: float = 0.001
    kl_estimator: str = "k3"
    clip_low: float = 0.2
    clip_high: float = 0.28
    temperature: float = 1.0
    importance_cap: float | None = None
    aggregation: str = "token"
    overlong: str = "keep"
    entropy: float = 0.0


@dataclass(frozen=True)
class TrainedEpisode:
    """An episode with all that its loss needs: one advantage a token (tokens,), the weight of each of its
    trained tokens in the step; and, if they were computed before, log-probs (tokens,) of the policy before
    the step and of the reference.
    """

    episode: Episode
    advantages: Tensor
    weight: float
    old_log_probs: Tensor | None = None
    ref_log_probs: Tensor | None = None


@dataclass(frozen=True)
class LossBatch:
    """Per-token tensors are (batch, seq). old_log_probs None: those of this very forward pass; ref_log_probs
    None: still to be computed.
    """

    episodes: tuple[Episode, ...]
    sequences: Sequences
    sampler_log_probs: Tensor
    old_log_probs: Tensor | None
    advantages: Tensor
    weights: Tensor
    ref_log_probs: Tensor | None = None


def make_batch(
    rows: Sequence[TrainedEpisode],
    loss: GRPOLoss,
    device: torch.device,
    shared: tuple[SharedPrefix, ...] = (),
) -> LossBatch:
    """Pad the episodes into one batch. shared: the prefixes in it that are computed once."""
    episodes = tuple(row.episode for row in rows)
    sequences = pad([e.token_ids for e in episodes], [e.loss_mask for e in episodes], range(len(episodes)))
    sequences = replace(sequences, shared=shared)
    width = sequences.token_ids.shape[1]
    sampler = pad_values([episode.old_log_probs for episode in episodes], width).to(device)
    old: Tensor | None = sampler
    if loss.importance_cap is not None:
        old = _given([row.old_log_probs for row in rows], width, device)
    return LossBatch(
        episodes,
        sequences.to(device),
        sampler,
        old,
        pad_values([row.advantages for row in rows], width).to(device),
        (torch.tensor([row.weight for row in rows])[:, None] * sequences.loss_mask).to(device),
        _given([row.ref_log_probs for row in rows], width, device),
    )


def _given(values: Sequence[Tensor | None], width: int, device: torch.device) -> Tensor | None:
    """(batch, width), or None where a row has none."""
    there = [value for value in values if value is not None]
    return pad_values(there, width).to(device) if len(there) == len(values) else None


def scored_before(
    rows: Sequence[TrainedEpisode], tokens: TrainedTokens, *, with_old: bool
) -> list[TrainedEpisode]:
    """The episodes of one batch with what a later update of the step would compute anew: log-probs of the
    reference and, with_old, of the policy before the step. tokens: of the batch.
    """
    sizes = [sum(row.episode.loss_mask) for row in rows]
    old = torch.split(tokens.old_log_probs, sizes)
    frozen = None if tokens.ref_log_probs is None else torch.split(tokens.ref_log_probs, sizes)
    found = []
    for place, row in enumerate(rows):
        mask = torch.tensor(row.episode.loss_mask)
        filled = torch.zeros(2, len(mask))
        filled[0, mask] = old[place]
        if frozen is not None:
            filled[1, mask] = frozen[place]
        found.append(
            replace(
                row,
                old_log_probs=filled[0] if with_old else row.old_log_probs,
                ref_log_probs=None if frozen is None else filled[1],
            )
        )
    return found


def batch_loss(
    model: PreTrainedModel, reference: Reference | None, batch: LossBatch, loss: GRPOLoss, step: int
) -> tuple[Tensor, TrainedTokens]:
    """This batch's share of the step's loss (a scalar with gradient), and its trained tokens.

    Raises TrainingError, which names the token, where anything that enters the loss is not finite.
    """
    mask = batch.sequences.loss_mask
    scores, old, frozen, terms = _evaluate(model, reference, batch, loss)
    named = {
        "log-prob under the trained policy": scores.log_probs,
        "log-prob of the sampler": batch.sampler_log_probs,
        "old log-prob": old,
        "advantage": batch.advantages,
        **({} if frozen is None else {"log-prob under the reference policy": frozen}),
        "loss": terms,
    }
    if (found := first_nonfinite(named, mask)) is not None:
        name, row, position, value = found
        _stop(step, f"{name} is {value}", batch.episodes[row], position)
    trained = TrainedTokens.select(
        mask,
        log_probs=scores.log_probs,
        old_log_probs=old,
        sampler_log_probs=batch.sampler_log_probs,
        ref_log_probs=frozen,
        entropy=scores.entropy,
        advantages=batch.advantages,
        weights=batch.weights,
    )
    return (terms * batch.weights).sum(), trained


def _evaluate(
    model: PreTrainedModel, reference: Reference | None, batch: LossBatch, loss: GRPOLoss
) -> tuple[TokenScores, Tensor, Tensor | None, Tensor]:
    """Scores, and (batch, seq) old log-probs, those of the reference, and `_terms`."""
    scores = score_tokens(
        model, batch.sequences, temperature=loss.temperature, entropy_gradient=loss.entropy != 0
    )
    frozen = batch.ref_log_probs
    if frozen is None:
        frozen = reference_scores(reference, batch.sequences, loss.temperature)
    old = scores.log_probs.detach() if batch.old_log_probs is None else batch.old_log_probs
    return scores, old, frozen, _terms(scores, old, frozen, batch, loss)


def _terms(
    scores: TokenScores, old: Tensor, frozen: Tensor | None, batch: LossBatch, loss: GRPOLoss
) -> Tensor:
    """(batch, seq) loss of each token, before the step's weights."""
    mask = batch.sequences.loss_mask
    terms = policy_loss(
        scores.log_probs,
        old,
        batch.advantages,
        mask,
        clip_low=loss.clip_low,
        clip_high=loss.clip_high,
    ).loss
    if loss.importance_cap is not None:
        terms = terms * truncated_importance(old, batch.sampler_log_probs, mask, loss.importance_cap)
    if frozen is not None:
        terms = terms + loss.kl * KL_ESTIMATORS[loss.kl_estimator](scores.log_probs, frozen, mask)
    if loss.entropy != 0:
        terms = terms - loss.entropy * keep(scores.entropy, mask)
    return terms


@torch.no_grad()
def reference_scores(reference: Reference | None, batch: Sequences, temperature: float) -> Tensor | None:
    """(batch, seq) log-probs under the frozen policy; None without one."""
    if reference is None:
        return None
    with reference.active() as frozen:
        return score_tokens(frozen, batch, temperature=temperature, with_entropy=False).log_probs


def explain_gradient(
    model: PreTrainedModel,
    reference: Reference | None,
    rows: Sequence[TrainedEpisode],
    loss: GRPOLoss,
    step: int,
    device: torch.device,
) -> None:
    """Raise TrainingError for the first token whose loss has a gradient that is not finite.

    Goes through the episodes one by one; returns if each of them has a finite gradient by itself.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    for row in rows:
        batch = make_batch([row], loss, device)
        mask = batch.sequences.loss_mask
        scores, _, _, each = _evaluate(model, reference, batch, loss)
        terms = (each * batch.weights)[mask]
        place = first_bad_gradient(terms, scores.log_probs, mask, parameters) if terms.numel() else None
        if place is not None:
            position = int(mask[0].nonzero()[place])
            _stop(step, "the gradient is not finite", row.episode, position)


def _stop(step: int, what: str, episode: Episode, position: int) -> NoReturn:
    raise TrainingError(
        f"step {step}: {what} at token {position} (id {episode.token_ids[position]}) of episode "
        f"{episode.index} of {episode.case_id} ({episode.condition}); no update was made. The last "
        "checkpoint is untouched: inspect the episode in run.db, then resume, or start a run of its own with "
        "a lower learning rate"
    )
