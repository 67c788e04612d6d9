"""Sampling with a transformers model: continuous batching over a slot cache.

Episodes enter and leave the batch on their own: while some decode, others wait for nothing but their own
tool. The history of an episode stays cached between its turns, and episodes that start from the same
tokens share one prefill.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from robustops.errors import ConfigError, SamplerError
from robustops.rollout.cascade import ARGUMENT, CachedPrefix, CascadeRows, supports_cascade
from robustops.rollout.cascade import NAME as CASCADE
from robustops.rollout.constraints import constrained
from robustops.rollout.hf_session import Session
from robustops.rollout.hooks import NO_HOOKS, RolloutHooks
from robustops.rollout.prefix_stats import PrefixStats
from robustops.rollout.sampler import Completion, NamedWeights, Request
from robustops.rollout.slot_cache import SlotCache, cache_argument

#: Tokens of a history that is worth being stored once for several sessions. Reading it takes more operations;
#: in episodes that soon are several times as long as a short prompt, these cost more than they spare.
MIN_PREFIX = 512


class HFSampler:
    """Samples from a transformers causal language model in this process.

    model: shared with the trainer or a copy of it (`sync` then loads the weights); stop_ids: end-of-turn
    tokens; temperature: 0 is greedy; max_in_flight: slots, i.e. episodes sampled at once; prefill_tokens:
    most tokens of one prefill pass; hooks: see `rollout.hooks`.
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
        hooks: RolloutHooks = NO_HOOKS,
    ) -> None:
        if (attention := model.config._attn_implementation) not in ("sdpa", CASCADE):
            raise ConfigError(
                f"sampler=hf masks each slot by itself, which attention '{attention}' does not know; "
                "load the model with attn_implementation='sdpa'"
            )
        self.cascades = supports_cascade(model)
        if self.cascades:
            model.set_attn_implementation(CASCADE)  # sdpa to the bit, but for passes that share prefixes
        self.model = model
        self.stop_ids = stop_ids
        self.temperature = temperature
        self.prefill_tokens = prefill_tokens
        self.shared = shared
        self.hooks = hooks
        self.weight_version = 0
        self.device = next(model.parameters()).device
        self.max_in_flight = max_in_flight
        self._cache_name = cache_argument(model)
        self._prefixes = PrefixStats()
        self._reset()

    def _empty_cache(self) -> SlotCache:
        return SlotCache(self.model.config.num_hidden_layers, self.max_in_flight)

    def _reset(self) -> None:
        self._cache = self._empty_cache()
        self._free = list(range(self.max_in_flight))[::-1]
        self._queue: deque[Request] = deque()
        self._sessions: dict[int, Session] = {}

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
        try:
            # Both walk all modules, which costs as much as a tenth of a small model's pass.
            if training:
                self.model.eval()  # type: ignore[no-untyped-call]
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
            if training:
                self.model.train()

    def release(self, session: int) -> None:
        if (ended := self._sessions.pop(session, None)) is not None:
            self._give_back(ended.slot)
            if not self._sessions:
                self._cache = self._empty_cache()  # the trainer has use for the memory
        self._queue = deque(request for request in self._queue if request.session != session)

    def sync(self, weights: NamedWeights, version: int) -> None:
        if self._queue or any(s.request is not None for s in self._sessions.values()):
            raise SamplerError("weights cannot change while requests are in flight; poll until none is left")
        if not self.shared:
            self._load(dict(weights))
        for session in self._sessions.values():
            session.forget()
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
            session = self._sessions[request.session] = Session(slot)
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
            if last.own:
                self._cache.copy_slot(source, [last.slot], last.own)
            self._give_back(source)

    def _give_back(self, slot: int) -> None:
        """Lower slots go out first: a used sampler then hands them out as a fresh one does."""
        self._free.append(slot)
        self._free.sort(reverse=True)

    def _begin(self, session: Session, request: Request) -> None:
        session.begin(request)
        self._prefixes.add(len(session.tokens), session.cached)

    def _prefill(self, waiting: list[Session]) -> list[Completion]:
        """Feed all waiting tokens of as many sessions as fit; equal starts are computed once."""
        if self.cascades and (twins := self._twins(waiting)):
            return self._plant(twins)
        waiting = sorted(waiting, key=lambda s: s.pending)
        leaders: dict[tuple[int, ...], Session] = {}
        followers: list[tuple[Session, Session]] = []
        full = False
        for session in waiting:
            key = tuple(session.tokens) if session.cached == 0 else (session.slot, -1)
            if key in leaders:
                followers.append((session, leaders[key]))
                continue
            # They come sorted: this one would be the widest, and the first one is the narrowest.
            narrowest = next(iter(leaders.values()), session).pending
            too_many = (len(leaders) + 1) * session.pending > self.prefill_tokens
            full = full or (bool(leaders) and (too_many or session.pending > 2 * narrowest + 64))
            if not full:
                leaders[key] = session
        batch = sorted(leaders.values(), key=lambda s: s.slot)  # slots in a row are read without a copy
        logits = self._forward(batch, max(s.pending for s in batch))
        rows = {id(session): row for row, session in enumerate(batch)}
        slots: dict[int, list[int]] = {}
        for session, leader in followers:
            slots.setdefault(leader.slot, []).append(session.slot)
            session.cached = len(session.tokens)
            self._prefixes.add(0, len(session.tokens))
        lengths = {session.slot: len(session.tokens) for session in batch}
        for slot, targets in slots.items():
            self._cache.copy_slot(slot, targets, lengths[slot])
        everyone = [*batch, *(session for session, _ in followers)]
        source = [rows[id(s)] for s in batch] + [rows[id(leader)] for _, leader in followers]
        return self._choose(everyone, logits[source])

    def _twins(self, waiting: list[Session]) -> list[list[Session]]:
        """Sessions that begin with the same long history, by history; at least two of each."""
        found: dict[tuple[int, ...], list[Session]] = {}
        for session in waiting:
            if session.cached == 0 and len(session.tokens) > MIN_PREFIX:
                found.setdefault(tuple(session.tokens), []).append(session)
        return sorted((own for own in found.values() if len(own) > 1), key=lambda own: len(own[0].tokens))

    def _plant(self, twins: list[list[Session]]) -> list[Completion]:
        """Store the histories of as many groups as fit, but for the last token, which every session feeds."""
        shortest = len(twins[0][0].tokens)
        chosen = [
            own
            for number, own in enumerate(twins, 1)
            if number == 1
            or (number * len(own[0].tokens) <= self.prefill_tokens and len(own[0].tokens) <= 2 * shortest)
        ]
        used = {session.prefix.row for session in self._sessions.values() if session.prefix is not None}
        rows = itertools.islice((row for row in itertools.count() if row not in used), len(chosen))
        prefixes = [CachedPrefix(row, len(own[0].tokens) - 1) for row, own in zip(rows, chosen, strict=True)]
        width = prefixes[-1].length
        ids = torch.tensor([own[0].tokens[:-1] + [0] * (width + 1 - len(own[0].tokens)) for own in chosen])
        positions, mask = self._cache.plant(prefixes, width, self.device)
        self._hidden(ids, positions, mask, None)
        for prefix, own in zip(prefixes, chosen, strict=True):
            for number, session in enumerate(own):
                session.prefix, session.cached = prefix, prefix.length
                self._prefixes.add(0, prefix.length if number else 0)
        return []

    def _decode(self, decoding: list[Session]) -> list[Completion]:
        return self._choose(decoding, self._forward(decoding, 1))

    def _forward(self, batch: list[Session], width: int) -> Tensor:
        """Logits (batch, vocabulary) of the token after each session's last one."""
        highest = max(s.slot for s in batch) + 1
        if width == 1 and len(batch) * 3 >= highest:
            logits = self._forward_all(batch, highest)
        else:
            ids = torch.tensor([s.tokens[s.cached :] + [0] * (width - s.pending) for s in batch])
            slots, starts = [s.slot for s in batch], [s.cached for s in batch]
            prefixes = [s.prefix for s in batch]
            logits = self._logits(ids, slots, starts, [s.pending - 1 for s in batch], prefixes)
        for session in batch:
            session.cached = len(session.tokens)
        return logits

    def _forward_all(self, batch: list[Session], highest: int) -> Tensor:
        """One token for every slot below `highest`: idle slots compute in vain, but nothing is copied.

        An idle slot writes at its own end, where its next real token will overwrite it.
        """
        ids, starts = [0] * highest, [0] * highest
        prefixes: list[CachedPrefix | None] = [None] * highest
        for session in self._sessions.values():
            if session.slot < highest:
                starts[session.slot], prefixes[session.slot] = session.cached, session.prefix
        for session in batch:
            ids[session.slot] = session.tokens[-1]
        every = list(range(highest))
        logits = self._logits(torch.tensor(ids)[:, None], every, starts, [0] * highest, prefixes)
        slots = [s.slot for s in batch]
        return logits if slots == every else logits[torch.tensor(slots, device=self.device)]

    def _logits(
        self,
        ids: Tensor,
        slots: list[int],
        starts: list[int],
        last: list[int],
        prefixes: list[CachedPrefix | None],
    ) -> Tensor:
        """Feed ids (batch, width) to `slots` from positions `starts` on; logits (batch, vocabulary) after
        the tokens `last` of each row. prefixes: what each slot continues.
        """
        sessions = self._sessions.values()
        # Room for what is asked for spares growing by copies; far more than there is may not be needed.
        length = max(min(session.expected, 2 * len(session.tokens)) - session.shared for session in sessions)
        self._cache.reserve(max(session.slot for session in sessions) + 1, length)
        positions, mask, shared = self._cache.aim(slots, starts, ids.shape[1], self.device, prefixes)
        hidden = self._hidden(ids, positions, mask, shared)
        chosen = hidden[torch.arange(len(slots), device=self.device), torch.tensor(last, device=self.device)]
        logits: Tensor = self.model.get_output_embeddings()(chosen)  # type: ignore[no-untyped-call]
        return logits.float()

    def _hidden(self, ids: Tensor, positions: Tensor, mask: Tensor, shared: CascadeRows | None) -> Tensor:
        """(batch, width, hidden) last hidden states of a pass at which the cache points."""
        arguments: dict[str, Any] = {self._cache_name: self._cache}
        if shared is not None:
            arguments[ARGUMENT] = (shared, self._cache.layers)
        hidden: Tensor = self.model.base_model(
            input_ids=ids.to(self.device),
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **arguments,
        ).last_hidden_state
        return hidden

    def _choose(self, batch: list[Session], logits: Tensor) -> list[Completion]:
        """Sample one token for each session; return the messages that are complete."""
        logits = self.hooks.on_logits(logits, batch, self.stop_ids)
        logits = constrained(logits, batch, self.stop_ids)
        if self.temperature not in (0.0, 1.0):
            logits = logits / self.temperature
        probabilities = torch.softmax(logits, dim=-1)
        greedy = self.temperature == 0
        tokens = logits.argmax(dim=-1) if greedy else self._draw(probabilities, batch)
        chosen = probabilities.gather(1, tokens[:, None])[:, 0].log().tolist()
        answers = zip(batch, tokens.tolist(), chosen, strict=True)
        ended = [session.add(token, log_prob, self.stop_ids) for session, token, log_prob in answers]
        return [completion for completion in ended if completion is not None]

    def _draw(self, probabilities: Tensor, batch: list[Session]) -> Tensor:
        """Inverse-CDF sampling from each session's own stream of uniforms."""
        uniforms = torch.tensor([s.uniform for s in batch], dtype=torch.float64, device=self.device)
        cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
        targets = uniforms[:, None] * cumulative[:, -1:]
        return torch.searchsorted(cumulative, targets, right=True)[:, 0].clamp(max=probabilities.shape[1] - 1)
