"""What the sampler of transformers models knows of one episode in flight."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from robustops.rollout.cascade import CachedPrefix
from robustops.rollout.sampler import NOT_FINITE, Completion, Request


@dataclass
class Session:
    """One episode. slot: its place in the cache; cached: tokens whose keys and values are there, those of
    `prefix` included, which other episodes read as well.

    request: the message that is being sampled, None between two turns; uniforms: one number in [0, 1) for
    each token of the message.
    """

    slot: int
    tokens: list[int] = field(default_factory=list)
    cached: int = 0
    prefix: CachedPrefix | None = None
    request: Request | None = None
    uniforms: list[float] = field(default_factory=list)
    new_ids: list[int] = field(default_factory=list)
    new_log_probs: list[float] = field(default_factory=list)

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.cached

    @property
    def shared(self) -> int:
        """Tokens of its prefix."""
        return 0 if self.prefix is None else self.prefix.length

    @property
    def own(self) -> int:
        """Cached tokens in its slot."""
        return self.cached - self.shared

    @property
    def expected(self) -> int:
        """Tokens there are once the message that is being sampled is as long as it may be."""
        return len(self.tokens) + len(self.uniforms) - len(self.new_ids)

    @property
    def uniform(self) -> float:
        """That of the next token."""
        return self.uniforms[len(self.new_ids)]

    def begin(self, request: Request) -> None:
        """Sample this message next. What is cached of an equal start stays; the last token is fed in any
        case, since the first choice depends on what it gives.
        """
        old, self.tokens = self.tokens, list(request.token_ids)
        if self.tokens[: self.cached] != old[: self.cached]:
            self.forget()
        self.cached = min(self.cached, len(self.tokens) - 1)
        if self.own < 0:
            self.forget()
        self.request = request
        self.uniforms = np.random.default_rng(request.seed).random(request.max_new_tokens).tolist()
        self.new_ids, self.new_log_probs = [], []

    def forget(self) -> None:
        """Nothing of it is cached any more."""
        self.cached, self.prefix = 0, None

    def add(self, token: int, log_prob: float, stop_ids: Collection[int]) -> Completion | None:
        """Take a sampled token; the message if that completes it, or shows that the weights are broken."""
        assert self.request is not None
        if not math.isfinite(log_prob):
            return self._end(Completion(self.request.session, error=NOT_FINITE))
        self.tokens.append(token)
        self.new_ids.append(token)
        self.new_log_probs.append(log_prob)
        stopped = token in stop_ids and not self.request.never_stops
        if not stopped and len(self.new_ids) < self.request.max_new_tokens:
            return None
        ids, log_probs = tuple(self.new_ids), tuple(self.new_log_probs)
        return self._end(Completion(self.request.session, ids, log_probs, stopped))

    def _end(self, completion: Completion) -> Completion:
        self.request = None
        return completion
