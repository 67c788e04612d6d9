"""Log-probs of trained tokens under a policy, without logits for the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from robustops.learning.batching import Sequences


@dataclass(frozen=True)
class TokenScores:
    """log_probs, entropy: (batch, seq), zero where `loss_mask` is False; entropy in nats, no gradient."""

    log_probs: Tensor
    entropy: Tensor


def score_tokens(model: PreTrainedModel, batch: Sequences, *, temperature: float = 1.0) -> TokenScores:
    """Score the tokens under `loss_mask`, each given the tokens before it.

    Logits are computed at trained positions only: an episode is mostly prompt and tool replies. The
    temperature is that of the sampler, so that ratios compare like with like. Position 0 has no
    prefix and is never scored.
    """
    hidden = model.base_model(
        input_ids=batch.token_ids, attention_mask=batch.attention_mask.long(), use_cache=False
    ).last_hidden_state
    chosen = batch.loss_mask[:, 1:]
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    logits = head(hidden[:, :-1][chosen]).float() / temperature
    normaliser = torch.logsumexp(logits, dim=-1)
    targets = batch.token_ids[:, 1:][chosen]
    log_probs = logits.gather(-1, targets[:, None])[:, 0] - normaliser
    with torch.no_grad():
        entropy = normaliser - (torch.softmax(logits, dim=-1) * logits).sum(dim=-1)
    return TokenScores(_scatter(log_probs, batch.loss_mask), _scatter(entropy, batch.loss_mask))


def _scatter(values: Tensor, loss_mask: Tensor) -> Tensor:
    """Put values of the chosen positions 1.. back into a (batch, seq) tensor of zeros."""
    full = values.new_zeros(loss_mask.shape)
    where = loss_mask.clone()
    where[:, 0] = False
    return full.masked_scatter(where, values)
