"""Samplers without a model: they say what a test tells them, or what the scripted expert would say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random

from robustops.records import ToolCall
from robustops.rollout.render import Renderer, call_text
from robustops.rollout.sampler import Completion, NamedWeights, Request
from robustops.worlds.domain import Domain
from robustops.worlds.scripted import next_call

#: What to say to a request, given how many of its session were answered before.
Say = Callable[[Request, int], str | Completion]


class FakeSampler:
    """Answers a request after `delay` polls (default 1) with the tokens of what `say` gives.

    events: ("submit" | "answer" | "release", session) in order. The log-prob of the n-th token of a
    message is -(n + 1) / 64.
    """

    produces_tokens = True

    def __init__(
        self, renderer: Renderer, say: Say, delay: Callable[[Request, int], int] = lambda request, turn: 1
    ) -> None:
        self.renderer = renderer
        self.say = say
        self.delay = delay
        self.weight_version = 0
        self.events: list[tuple[str, int]] = []
        self.requests: list[Request] = []
        self.versions: list[int] = []
        self._turns: Counter[int] = Counter()
        self._waiting: list[tuple[int, Request]] = []
        self._polls = 0

    def submit(self, request: Request) -> None:
        self.events.append(("submit", request.session))
        self.requests.append(request)
        due = self._polls + self.delay(request, self._turns[request.session])
        self._waiting.append((due, request))

    def poll(self) -> list[Completion]:
        self._polls += 1
        due = [request for at, request in self._waiting if at <= self._polls]
        self._waiting = [(at, request) for at, request in self._waiting if at > self._polls]
        return [self._answer(request) for request in due]

    def release(self, session: int) -> None:
        self.events.append(("release", session))

    def sync(self, weights: NamedWeights, version: int) -> None:
        self.weight_version = version
        self.versions.append(version)

    def close(self) -> None:
        self._waiting.clear()

    def _answer(self, request: Request) -> Completion:
        self.events.append(("answer", request.session))
        said = self.say(request, self._turns[request.session])
        self._turns[request.session] += 1
        return said if isinstance(said, Completion) else spoken(self.renderer, request, said)


def spoken(renderer: Renderer, request: Request, text: str) -> Completion:
    """A text as sampled tokens, cut at the request's budget."""
    ids = renderer.answer(text)
    kept = ids[: request.max_new_tokens]
    log_probs = tuple(-(n + 1) / 64 for n in range(len(kept)))
    return Completion(request.session, tuple(kept), log_probs, finished=len(kept) == len(ids))


class TokenExpert(FakeSampler):
    """The scripted expert as a policy whose tokens can be trained on, and which gives up at random.

    gives_up: probability at each message, drawn from the request's seed; writes: False stops before the
    first call of a tool whose name begins with create or update, so that no episode succeeds.
    """

    #: It asks for the history, as samplers without tokens do.
    produces_tokens = False

    def __init__(
        self, renderer: Renderer, domains: Mapping[str, Domain], gives_up: float = 0.0, writes: bool = True
    ) -> None:
        super().__init__(renderer, self.speak)
        self.domains = domains
        self.gives_up = gives_up
        self.writes = writes

    def speak(self, request: Request, turn: int) -> str:
        task = request.task
        assert task is not None
        if Random(request.seed).random() < self.gives_up:
            return "I give up."
        move = next_call(self.domains[task.domain], task, request.history)
        if not isinstance(move, ToolCall):
            return move
        writes = move.name.startswith(("create", "update"))
        return call_text(move) if self.writes or not writes else "I only read."
