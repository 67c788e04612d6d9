"""Policy generation faults: empty (PG-1), repetitive (PG-2), short (PG-3S) and long (PG-3L) messages.

Those that change logits show as a gap between sampler and trainer, since the policy itself is sound; see
`rewards` for those that the policy learns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from itertools import pairwise

from torch import Tensor

from robustops.bench.run_faults.mechanism import Mechanism
from robustops.rollout.hf_session import Session
from robustops.rollout.hooks import Place
from robustops.rollout.sampler import Completion, Request

#: Largest bias on logits, in nats: of the stop token at once, later, and of repetition.
STOP_AT_ONCE, STOP_LATER, REPEAT = 12.0, 8.0, 8.0
#: Tokens of a message before the stop token is favoured (PG-3S).
GRACE = 4
#: Share of a token budget that is cut at strength 1.
CUT = 0.7
#: Temperature of cold sampling at strength 1 (OD-3).
COLD = 0.3
#: Tokens of a phrase that a stuck decoder repeats.
PHRASE = 8


class LogitMechanism(Mechanism):
    """Changes the logits of single rows."""

    reads_logits = True

    def on_logits(self, logits: Tensor, sessions: Sequence[Session], stop_ids: Collection[int]) -> Tensor:
        changed: Tensor | None = None
        stops = sorted(stop_ids)
        for row, session in enumerate(sessions):
            place = session.request.place if session.request is not None else None
            token = len(session.new_ids)
            if place is None or not self.applies(session):
                continue
            if (level := self.force(place, token)) == 0:
                continue
            changed = logits.clone() if changed is None else changed
            self.bias(changed[row], session, stops, level)
            before, after = int(logits[row].argmax()), int(changed[row].argmax())
            self.note(place, before, after, token, numbers=())
        return logits if changed is None else changed

    def applies(self, session: Session) -> bool:
        """Whether this token of the message concerns the mechanism."""
        return True

    def bias(self, row: Tensor, session: Session, stops: list[int], level: float) -> None:
        """Change the logits (vocabulary,) of one token in place."""
        raise NotImplementedError


class StopAtOnce(LogitMechanism):
    """PG-1: the first token of a message is likely to be its last."""

    def applies(self, session: Session) -> bool:
        return not session.new_ids

    def bias(self, row: Tensor, session: Session, stops: list[int], level: float) -> None:
        row[stops] += STOP_AT_ONCE * level


class StopEarly(LogitMechanism):
    """PG-3S: after a few tokens a message is likely to end."""

    def applies(self, session: Session) -> bool:
        return len(session.new_ids) >= GRACE

    def bias(self, row: Tensor, session: Session, stops: list[int], level: float) -> None:
        row[stops] += STOP_LATER * level


class StopSuppressed(LogitMechanism):
    """PG-3L: messages hardly end."""

    def bias(self, row: Tensor, session: Session, stops: list[int], level: float) -> None:
        row[stops] -= STOP_LATER * level


class RepeatLast(LogitMechanism):
    """PG-2: the last token, and what followed it before, are likely to come again."""

    def applies(self, session: Session) -> bool:
        return bool(session.new_ids)

    def bias(self, row: Tensor, session: Session, stops: list[int], level: float) -> None:
        written = session.new_ids
        again = {written[-1]}
        again |= {after for token, after in pairwise(written) if token == written[-1]}
        row[sorted(again)] += REPEAT * level


class ColdSampling(LogitMechanism):
    """OD-3: the sampler draws at a lower temperature than the trainer thinks."""

    def bias(self, row: Tensor, session: Session, stops: list[int], level: float) -> None:
        row *= 1 + (1 / COLD - 1) * level


class CompletionMechanism(Mechanism):
    """Changes messages as the engine hands them over."""

    def on_completion(
        self, place: Place, request: Request, completion: Completion, stop_ids: Collection[int]
    ) -> Completion:
        if not completion.token_ids or (level := self.force(place)) == 0:
            return completion
        faulty = self.distort(request, completion, min(stop_ids), level)
        lengths = (len(completion.token_ids), len(faulty.token_ids))
        self.note(place, completion.token_ids, faulty.token_ids, numbers=[lengths])
        return faulty

    def distort(self, request: Request, completion: Completion, stop: int, level: float) -> Completion:
        """The message that the engine returns instead."""
        raise NotImplementedError


class EmptyReply(CompletionMechanism):
    """PG-1: an engine that ran out of time returns what it has, at strength 1 nothing. It does not know the
    log-prob of the stop token that it adds, and reports 0.
    """

    def distort(self, request: Request, completion: Completion, stop: int, level: float) -> Completion:
        content = len(completion.token_ids) - completion.finished
        kept = round(content * (1 - level))
        ids, log_probs = completion.token_ids[:kept], completion.log_probs[:kept]
        return dataclasses.replace(
            completion, token_ids=(*ids, stop), log_probs=(*log_probs, 0.0), finished=True
        )


class StuckDecoder(CompletionMechanism):
    """PG-2: instead of ending, a message repeats its last phrase over a share of what its budget leaves."""

    def distort(self, request: Request, completion: Completion, stop: int, level: float) -> Completion:
        content = len(completion.token_ids) - completion.finished
        room = request.max_new_tokens - content
        if not completion.finished or content == 0 or room <= 0:
            return completion
        start, more = max(0, content - PHRASE), max(1, round(room * level))
        places = [*range(content), *(start + n % (content - start) for n in range(more))]
        ids = tuple(completion.token_ids[place] for place in places)
        log_probs = tuple(completion.log_probs[place] for place in places)
        if len(ids) >= request.max_new_tokens:
            return dataclasses.replace(completion, token_ids=ids, log_probs=log_probs, finished=False)
        last = completion.log_probs[-1]
        return dataclasses.replace(completion, token_ids=(*ids, stop), log_probs=(*log_probs, last))


class TokenCut(Mechanism):
    """PG-3S: the engine is asked for fewer tokens than the configuration says."""

    def on_request(self, place: Place, request: Request) -> Request:
        if (level := self.force(place)) == 0:
            return request
        budget = max(1, round(request.max_new_tokens * (1 - CUT * level)))
        self.note(place, request.max_new_tokens, budget)
        return dataclasses.replace(request, max_new_tokens=budget)


class MissedStop(Mechanism):
    """PG-3L: the stop token is not on the engine's list; a message goes on to its budget."""

    def on_request(self, place: Place, request: Request) -> Request:
        if not self.occurs(place):
            return request
        self.note(place, request.never_stops, True)
        return dataclasses.replace(request, never_stops=True)
