"""Limits on the tokens that may be sampled next: a shortest message, and a price on repetition."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from robustops.rollout.hf_session import Session


def constrained(logits: Tensor, sessions: Sequence[Session], stop_ids: Collection[int]) -> Tensor:
    """Logits (rows, vocabulary) under the limits of each session's request; the same tensor without any.

    A stop token is impossible before `min_new_tokens` tokens. A token that the message already has is made
    less likely by `repetition_penalty` (Keskar et al., 2019: positive logits are divided by it, negative
    ones multiplied); context does not count, since an agent has to copy ids from it.
    """
    changed: Tensor | None = None
    for row, session in enumerate(sessions):
        request = session.request
        assert request is not None
        short = len(session.new_ids) < request.min_new_tokens
        repeats = request.repetition_penalty != 1 and bool(session.new_ids)
        if not (short or repeats):
            continue
        changed = logits.clone() if changed is None else changed
        if repeats:
            seen = torch.tensor(sorted(set(session.new_ids)), device=logits.device)
            values = changed[row, seen]
            penalty = request.repetition_penalty
            changed[row, seen] = torch.where(values > 0, values / penalty, values * penalty)
        if short:
            changed[row, sorted(stop_ids)] = -torch.inf
    return logits if changed is None else changed
