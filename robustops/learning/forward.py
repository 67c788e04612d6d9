"""Log-probs of trained tokens under a policy, without logits for the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from robustops.learning.batching import Sequences
from robustops.learning.processes import gather_objects, partitioned
from robustops.learning.shared_prefix import trained_states

#: Most logits (positions x vocabulary) held at once; 2^25 in float32 are 128 MiB.
MAX_LOGITS = 2**25


@dataclass(frozen=True)
class TokenScores:
    """log_probs, entropy: (batch, seq), zero where `loss_mask` is False; entropy in nats at temperature 1
    whatever that of the log-probs, without gradient unless asked for; NaN at trained tokens where it was
    not computed.
    """

    log_probs: Tensor
    entropy: Tensor


def score_tokens(
    model: PreTrainedModel,
    batch: Sequences,
    *,
    temperature: float = 1.0,
    max_logits: int = MAX_LOGITS,
    with_entropy: bool = True,
    entropy_gradient: bool = False,
) -> TokenScores:
    """Score the tokens under `loss_mask`, each given the tokens before it.

    Logits are computed at trained positions only: an episode is mostly prompt and tool replies. Where they
    are more than `max_logits`, they are computed a slice at a time, and again in the backward pass. The
    temperature is that of the sampler, so that ratios compare like with like. Position 0 has no prefix and
    is never scored. A model whose weights are spread over processes (ZeRO-3) is scored by all of them
    together, each on a batch of its own. Prefixes in `batch.shared` are computed once: only for models of
    which `shared_prefix.can_share` holds. entropy_gradient: the entropy carries a gradient, for a loss that
    contains it.
    """
    chosen = batch.loss_mask[:, 1:]
    if batch.shared:
        states = trained_states(model, batch)
    else:
        # Padding is on the right, where causal attention does not look: it needs no mask.
        hidden = model.base_model(input_ids=batch.token_ids, use_cache=False).last_hidden_state
        states = hidden[:, :-1][chosen]
    targets = batch.token_ids[:, 1:][chosen]
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    rows = max(1, max_logits // model.config.vocab_size)
    slices = _slices(head, len(states), rows)
    if slices == 1:
        log_probs, entropy = _score(head, states, targets, temperature, with_entropy, entropy_gradient)
    else:
        scored = [
            checkpoint(
                _score,
                head,
                states[at:to],
                targets[at:to],
                temperature,
                with_entropy,
                entropy_gradient,
                use_reentrant=False,
            )
            for at, to in ((number * rows, (number + 1) * rows) for number in range(slices))
        ]
        log_probs, entropy = (torch.cat(columns) for columns in zip(*scored, strict=True))
    return TokenScores(_scatter(log_probs, batch.loss_mask), _scatter(entropy, batch.loss_mask))


def _slices(head: Any, positions: int, rows: int) -> int:
    """Calls of the head. Processes that it is spread over must all call it as often, some on nothing."""
    slices = max(1, -(-positions // rows))
    if partitioned(head):
        slices = max(max(part) for part in gather_objects([slices]))
    return slices


def _score(
    head: Callable[[Tensor], Tensor],
    states: Tensor,
    targets: Tensor,
    temperature: float,
    with_entropy: bool,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """(positions,) log-probs of the targets and entropies."""
    raw = head(states).float()
    logits = raw / temperature if temperature != 1 else raw
    # The exp kernel of logsumexp takes 15 times as long where probabilities underflow; this one does not.
    if entropy_gradient:
        log_probs = torch.log_softmax(logits, dim=-1)
        chosen = log_probs.gather(-1, targets[:, None])[:, 0]
    else:
        chosen, log_probs = _ChosenLogProbs.apply(logits, targets)  # type: ignore[no-untyped-call]
    if not with_entropy:
        return chosen, torch.full_like(chosen, torch.nan)
    if entropy_gradient and torch.is_grad_enabled():
        plain = log_probs if temperature == 1 else torch.log_softmax(raw, dim=-1)
        return chosen, -(torch.softmax(raw, dim=-1) * plain).sum(dim=-1)
    with torch.no_grad():
        plain = log_probs if temperature == 1 else torch.log_softmax(raw, dim=-1)
        return chosen, -torch.softmax(raw, dim=-1).mul_(plain).sum(dim=-1)  # one copy of the logits less


class _ChosenLogProbs(torch.autograd.Function):
    """(positions,) log-probs of the targets; (positions, vocabulary) of all tokens, these without gradient.

    The backward pass makes one tensor of the size of the logits; those of gather and log_softmax make two.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = torch.log_softmax(logits, dim=-1)
        ctx.save_for_backward(log_probs, targets)
        ctx.mark_non_differentiable(log_probs)
        ctx.set_materialize_grads(False)
        return log_probs.gather(-1, targets[:, None])[:, 0], log_probs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, None]:
        if gradient is None:
            return None, None
        log_probs, targets = ctx.saved_tensors
        gradient = gradient[:, None]
        # The exp of log-probs that underflow would be slow, their softmax, which is the same, is not.
        found = torch.softmax(log_probs, dim=-1).mul_(-gradient)
        return found.scatter_add_(-1, targets[:, None], gradient), None


def _scatter(values: Tensor, loss_mask: Tensor) -> Tensor:
    """Put values of the chosen positions 1.. back into a (batch, seq) tensor of zeros."""
    full = values.new_zeros(loss_mask.shape)
    where = loss_mask.clone()
    where[:, 0] = False
    return full.masked_scatter(where, values)
