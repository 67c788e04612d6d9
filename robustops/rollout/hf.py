"""Sampling with a transformers model: continuous batching over a slot cache.

Episodes enter and leave the batch on their own: while some decode, others wait for nothing but their own
tool. The history of an episode stays cached between its turns, and episodes that start from the same
tokens share one prefill.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from robustops.errors import ConfigError, SamplerError
from robustops.rollout.prefix_stats import PrefixStats
from robustops.rollout.sampler import NOT_FINITE, Completion, NamedWeights, Request
from robustops.rollout.slot_cache import SlotCache


@dataclass
class _Session:
    """One episode in flight. cached: tokens whose keys and values are in the slot."""

    slot: int
    tokens: list[int] = field(default_factory=list)
    cached: int = 0
    request: Request | None = None
    uniforms: np.ndarray = field(default_factory=lambda: np.zeros(0))
    new_ids: list[int] = field(default_factory=list)
    new_log_probs: list[float] = field(default_factory=list)

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.cached


class HFSampler:
    """Samples from a transformers causal language model in this process.

    model: shared with the trainer or a copy of it (`sync` then loads the weights); stop_ids: end-of-turn
    tokens; temperature: 0 is greedy; max_in_flight: slots, i.e. episodes sampled at once; prefill_tokens:
    most tokens of one prefill pass.
    """

    produces_tokens = True

    def __init__(
        self,
        model: PreTrainedModel,
        stop_ids: set[int],
        *,
        temperature: float = 1.0,
        max_in_flight: int = 64,
        prefill_tokens: int = 8192,
        shared: bool = True,
    ) -> None:
        if (attention := model.config._attn_implementation) != "sdpa":
            raise ConfigError(
                f"sampler=hf masks each slot by itself, which attention '{attention}' does not know; "
                "load the model with attn_implementation='sdpa'"
            )
        self.model = model
        self.stop_ids = stop_ids
        self.temperature = temperature
        self.prefill_tokens = prefill_tokens
        self.shared = shared
        self.weight_version = 0
        self.device = next(model.parameters()).device
        self.max_in_flight = max_in_flight
        # The argument's name changed in transformers 5.2x; some models still have the old one.
        known = inspect.signature(model.base_model.forward).parameters
        self._cache_name = "cache" if "cache" in known else "past_key_values"
        self._prefixes = PrefixStats()
        self._reset()

    def _reset(self) -> None:
        self._cache = SlotCache(self.model.config.num_hidden_layers, self.max_in_flight)
        self._free = list(range(self.max_in_flight))[::-1]
        self._queue: deque[Request] = deque()
        self._sessions: dict[int, _Session] = {}

    # the contract -------------------------------------------------------------------------------
    def submit(self, request: Request) -> None:
        self._queue.append(request)

    def poll(self) -> list[Completion]:
        self._admit()
        active = [s for s in self._sessions.values() if s.request is not None]
        if not active:
            return []
        waiting = [s for s in active if s.pending > 1]
        decoding = [s for s in active if s.pending == 1]
        training = self.model.training
        self.model.eval()  # type: ignore[no-untyped-call]
        try:
            with torch.inference_mode():
                self._compact()
                if waiting and (not decoding or len(waiting) * 6 >= len(active)):
                    return self._prefill(waiting)
                return self._decode(decoding)
        except torch.OutOfMemoryError as error:
            raise SamplerError(
                f"no memory left for {len(active)} episodes in flight; lower sampler.max_in_flight, "
                "sampler.prefill_tokens or the context limit"
            ) from error
        finally:
            self.model.train(training)

    def release(self, session: int) -> None:
        if (ended := self._sessions.pop(session, None)) is not None:
            self._give_back(ended.slot)
        self._queue = deque(request for request in self._queue if request.session != session)

    def sync(self, weights: NamedWeights, version: int) -> None:
        if self._queue or any(s.request is not None for s in self._sessions.values()):
            raise SamplerError("weights cannot change while requests are in flight; poll until none is left")
        if not self.shared:
            self._load(dict(weights))
        for session in self._sessions.values():
            session.cached = 0
        self.weight_version = version

    def close(self) -> None:
        self._reset()

    def prefix_cache_stats(self) -> dict[str, float]:
        """Context tokens of requests, and those not read again for them, since the last call; see
        `PrefixStats`.
        """
        return self._prefixes.take()

    def _load(self, weights: dict[str, Tensor]) -> None:
        """Copy weights in by name; a name too few or too many is an error, not a half-updated policy."""
        missing = sorted({name for name, _ in self.model.named_parameters()} - weights.keys())
        unknown = sorted(weights.keys() - self.model.state_dict().keys())
        if missing or unknown:
            raise SamplerError(
                f"weights do not fit the sampled model: {len(missing)} names missing {missing[:3]}, "
                f"{len(unknown)} unknown {unknown[:3]}; pass the whole state_dict of the same model class"
            )
        self.model.load_state_dict(weights, strict=False)

    # steps --------------------------------------------------------------------------------------
    def _admit(self) -> None:
        """Give queued requests to their session, or a slot to a new one.

        Where none is free, a session that asks for nothing loses its slot: should it go on, its history
        is read again.
        """
        if not self._queue:
            return
        waiting = deque[Request]()
        for request in self._queue:
            if (session := self._sessions.get(request.session)) is not None:
                self._begin(session, request)
            else:
                waiting.append(request)
        idle = deque(key for key, session in self._sessions.items() if session.request is None)
        while waiting and (self._free or idle):
            slot = self._free.pop() if self._free else self._sessions.pop(idle.popleft()).slot
            request = waiting.popleft()
            session = self._sessions[request.session] = _Session(slot)
            self._begin(session, request)
        self._queue = waiting

    def _compact(self) -> None:
        """Move the sessions of the highest slots into free lower ones, since a pass over all slots costs
        what the highest one in use makes it cost.
        """
        while self._free and self._sessions:
            last = max(self._sessions.values(), key=lambda session: session.slot)
            if last.slot < self._free[-1]:
                return
            source, last.slot = last.slot, self._free.pop()
            if last.cached:
                self._cache.copy_slot(source, last.slot, last.cached)
            self._give_back(source)

    def _give_back(self, slot: int) -> None:
        """Lower slots go out first: a used sampler then hands them out as a fresh one does."""
        self._free.append(slot)
        self._free.sort(reverse=True)

    def _begin(self, session: _Session, request: Request) -> None:
        old, session.tokens = session.tokens, list(request.token_ids)
        if session.tokens[: session.cached] != old[: session.cached]:
            session.cached = 0
        session.cached = min(session.cached, len(session.tokens) - 1)
        self._prefixes.add(len(session.tokens), session.cached)
        session.request = request
        session.uniforms = np.random.default_rng(request.seed).random(request.max_new_tokens)
        session.new_ids, session.new_log_probs = [], []

    def _prefill(self, waiting: list[_Session]) -> list[Completion]:
        """Feed all waiting tokens of as many sessions as fit; equal starts are computed once."""
        waiting = sorted(waiting, key=lambda s: s.pending)
        leaders: dict[tuple[int, ...], _Session] = {}
        followers: list[tuple[_Session, _Session]] = []
        for session in waiting:
            key = tuple(session.tokens)
            if session.cached == 0 and key in leaders:
                followers.append((session, leaders[key]))
                continue
            widest = max(session.pending, max((s.pending for s in leaders.values()), default=0))
            narrow = widest > 2 * min((s.pending for s in leaders.values()), default=widest) + 64
            if leaders and ((len(leaders) + 1) * widest > self.prefill_tokens or narrow):
                break
            leaders[key if session.cached == 0 else (session.slot, -1)] = session
        batch = list(leaders.values())
        logits = self._forward(batch, max(s.pending for s in batch))
        rows = {id(session): row for row, session in enumerate(batch)}
        for session, leader in followers:
            self._cache.copy_slot(leader.slot, session.slot, len(leader.tokens))
            session.cached = len(session.tokens)
            self._prefixes.add(0, len(session.tokens))
        everyone = [*batch, *(session for session, _ in followers)]
        source = [rows[id(s)] for s in batch] + [rows[id(leader)] for _, leader in followers]
        return self._choose(everyone, logits[source])

    def _decode(self, decoding: list[_Session]) -> list[Completion]:
        return self._choose(decoding, self._forward(decoding, 1))

    def _forward(self, batch: list[_Session], width: int) -> Tensor:
        """Logits (batch, vocabulary) of the token after each session's last one."""
        highest = max(s.slot for s in batch) + 1
        if width == 1 and len(batch) * 3 >= highest:
            return self._forward_all(batch, highest)
        rows = torch.tensor([s.slot for s in batch], device=self.device)
        starts = torch.tensor([s.cached for s in batch], device=self.device)
        ids = torch.zeros(len(batch), width, dtype=torch.long, device=self.device)
        last = torch.tensor([s.pending - 1 for s in batch], device=self.device)
        for row, session in enumerate(batch):
            ids[row, : session.pending] = torch.tensor(session.tokens[session.cached :])
        logits = self._logits(ids, rows, starts, last)
        for session in batch:
            session.cached = len(session.tokens)
        return logits

    def _forward_all(self, batch: list[_Session], highest: int) -> Tensor:
        """One token for every slot below `highest`: idle slots compute in vain, but nothing is copied.

        An idle slot writes at its own end, where its next real token will overwrite it.
        """
        ids = torch.zeros(highest, 1, dtype=torch.long)
        starts = torch.zeros(highest, dtype=torch.long)
        for session in self._sessions.values():
            if session.slot < highest:
                starts[session.slot] = session.cached
        for session in batch:
            ids[session.slot, 0] = session.tokens[-1]
        rows = torch.arange(highest, device=self.device)
        last = torch.zeros(highest, dtype=torch.long, device=self.device)
        logits = self._logits(ids.to(self.device), rows, starts.to(self.device), last)
        for session in batch:
            session.cached = len(session.tokens)
        return logits[torch.tensor([s.slot for s in batch], device=self.device)]

    def _logits(self, ids: Tensor, rows: Tensor, starts: Tensor, last: Tensor) -> Tensor:
        positions, mask = self._cache.aim(rows, starts, ids.shape[1])
        hidden = self.model.base_model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{self._cache_name: self._cache},
        ).last_hidden_state
        chosen = hidden[torch.arange(len(rows), device=self.device), last]
        logits: Tensor = self.model.get_output_embeddings()(chosen)  # type: ignore[no-untyped-call]
        return logits.float()

    def _choose(self, batch: list[_Session], logits: Tensor) -> list[Completion]:
        """Sample one token for each session; return the messages that are complete."""
        log_probs = torch.log_softmax(logits / (self.temperature or 1.0), dim=-1)
        tokens = log_probs.argmax(dim=-1) if self.temperature == 0 else self._draw(log_probs, batch)
        chosen = log_probs.gather(1, tokens[:, None])[:, 0].tolist()
        done = []
        for session, token, log_prob in zip(batch, tokens.tolist(), chosen, strict=True):
            request = session.request
            assert request is not None
            if not math.isfinite(log_prob):
                session.request = None
                done.append(Completion(request.session, error=NOT_FINITE))
                continue
            session.tokens.append(token)
            session.new_ids.append(token)
            session.new_log_probs.append(log_prob)
            stopped = token in self.stop_ids
            if stopped or len(session.new_ids) >= request.max_new_tokens:
                session.request = None
                done.append(
                    Completion(request.session, tuple(session.new_ids), tuple(session.new_log_probs), stopped)
                )
        return done

    def _draw(self, log_probs: Tensor, batch: list[_Session]) -> Tensor:
        """Inverse-CDF sampling from each session's own stream of uniforms."""
        uniforms = torch.tensor(
            [s.uniforms[len(s.new_ids)] for s in batch], dtype=torch.float64, device=self.device
        )
        cumulative = log_probs.double().exp().cumsum(dim=-1)
        targets = uniforms[:, None] * cumulative[:, -1:]
        return torch.searchsorted(cumulative, targets, right=True)[:, 0].clamp(max=log_probs.shape[1] - 1)
