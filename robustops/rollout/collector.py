"""Many episodes in flight over one sampler: whoever's tool has answered goes on at once."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from robustops.errors import ConfigError, SamplerError, TrainingError
from robustops.faults.wrapper import FaultyWorld
from robustops.records import Episode, EpisodeError, Task
from robustops.rollout.episode import EpisodeRun, EpisodeStart, Limits
from robustops.rollout.hooks import NO_HOOKS, RolloutHooks
from robustops.rollout.render import Renderer
from robustops.rollout.sampler import Completion, Request, Sampler
from robustops.worlds.domain import Domain
from robustops.worlds.environment import LocalWorld, World

OnDone = Callable[[EpisodeRun], None]
WorldFactory = Callable[[Domain], World]
#: Boundaries whose failures may be gone at the next attempt.
RETRIED = frozenset({"sampler", "world"})


@dataclass(frozen=True)
class _Waiting:
    """A start that is to be begun, once more if it has failed before; place: in the answer."""

    place: int
    start: EpisodeStart
    failures: tuple[EpisodeError, ...] = ()


class Collector:
    """Runs episodes to their end and returns them in the order asked for.

    domains: by name; max_in_flight: episodes open at once (a sampler may queue more than it samples);
    retries: further attempts at an episode that failed at the sampler or world boundary, each from its
    start with a fresh world, session and seed; retry_share: retries of one `run` per start, so that an
    outage is not repeated for every episode (at least `retries` in all); world_factory: makes the worlds,
    which are used again by later episodes unless they failed; hooks: see `rollout.hooks`.
    """

    def __init__(
        self,
        sampler: Sampler,
        renderer: Renderer,
        domains: dict[str, Domain],
        limits: Limits,
        *,
        max_in_flight: int = 64,
        retries: int = 1,
        retry_share: float = 0.25,
        world_factory: WorldFactory = LocalWorld,
        hooks: RolloutHooks = NO_HOOKS,
    ) -> None:
        if retries < 0 or retry_share < 0:
            raise ConfigError(f"retries={retries}, retry_share={retry_share}: give 0 or more of each")
        self.sampler = sampler
        self.renderer = renderer
        self.domains = domains
        self.limits = limits
        self.max_in_flight = max_in_flight
        self.retries = retries
        self.retry_share = retry_share
        self.world_factory = world_factory
        self.hooks = hooks
        self._idle: dict[str, list[World]] = {}
        self._next_session = 0

    def run(self, starts: Sequence[EpisodeStart], on_done: OnDone | None = None) -> list[EpisodeRun]:
        """Every start's finished run, in order: its last attempt, valid or not.

        on_done: called as episodes end, not for an attempt that is repeated (progress bars).
        """
        waiting = deque(_Waiting(place, start) for place, start in enumerate(starts))
        budget = max(self.retries, math.ceil(self.retry_share * len(starts)))
        open_runs: dict[int, EpisodeRun] = {}
        finished: dict[int, EpisodeRun] = {}
        places: dict[int, int] = {}

        def close(run: EpisodeRun) -> None:
            nonlocal budget
            open_runs.pop(run.session, None)
            place = places.pop(run.session)
            self.sampler.release(run.session)
            self._give_back(run)
            if budget > 0 and (error := self._passing(run)) is not None:
                budget -= 1
                waiting.append(_Waiting(place, run.start, (*run.failures, error)))
                return
            finished[place] = run
            if on_done is not None:
                on_done(run)

        while len(finished) < len(starts):
            for run, request in self._open(waiting, places, self.max_in_flight - len(open_runs)):
                open_runs[run.session] = run
                self._continue(run, request, close)
            if not open_runs:
                continue
            for completion in self._poll(open_runs):
                run = open_runs[completion.session]
                self._continue(run, run.advance(completion), close)
        return [finished[place] for place in range(len(starts))]

    def close(self) -> None:
        for worlds in self._idle.values():
            for world in worlds:
                world.close()
        self._idle.clear()

    # ---------------------------------------------------------------------------------------------
    def _open(
        self, waiting: deque[_Waiting], places: dict[int, int], room: int
    ) -> Iterator[tuple[EpisodeRun, Request | None]]:
        for _ in range(min(room, len(waiting))):
            next_one = waiting.popleft()
            start = next_one.start
            run = EpisodeRun(
                self._next_session,
                start,
                FaultyWorld(self._world(start.task), start.plan, observe=start.observe),
                self.renderer,
                self.limits,
                chat=not self.sampler.produces_tokens,
                weight_version=self.sampler.weight_version,
                failures=next_one.failures,
                hooks=self.hooks,
            )
            self._next_session += 1
            places[run.session] = next_one.place
            yield run, run.begin()

    def _continue(self, run: EpisodeRun, request: Request | None, close: OnDone) -> None:
        if request is None:
            close(run)
        else:
            self.sampler.submit(request)

    def _poll(self, open_runs: dict[int, EpisodeRun]) -> list[Completion]:
        completions = self.sampler.poll()
        unknown = [c.session for c in completions if c.session not in open_runs]
        if unknown:
            raise SamplerError(f"the sampler answered sessions that are not open: {unknown}")
        return completions

    def _world(self, task: Task) -> World:
        idle = self._idle.setdefault(task.domain, [])
        return idle.pop() if idle else self.world_factory(self.domains[task.domain])

    def _give_back(self, run: EpisodeRun) -> None:
        """Keep the world for another episode, unless it failed."""
        error = run.episode.error if run.episode is not None else None
        if error is not None and error.boundary == "world":
            run.world.close()
        else:
            self._idle.setdefault(run.start.task.domain, []).append(run.world.world)

    def _passing(self, run: EpisodeRun) -> EpisodeError | None:
        """The error of an episode that may be tried once more."""
        error = run.episode.error if run.episode is not None else None
        if error is None or error.boundary not in RETRIED or len(run.failures) >= self.retries:
            return None
        return error


def retry_counts(runs: Sequence[EpisodeRun]) -> Counter[str]:
    """Repeated attempts by the boundary that made them necessary: `retries_sampler`, `retries_world`."""
    return Counter(f"retries_{error.boundary}" for run in runs for error in run.failures)


def valid_episodes(runs: Sequence[EpisodeRun], *, what: str) -> list[Episode]:
    """The episodes; TrainingError with the first failure's message if not one of them completed."""
    episodes = [run.episode for run in runs if run.episode is not None]
    errors = [(*run.failures, run.episode.error) for run in runs if run.episode and run.episode.error]
    if episodes and len(errors) == len(episodes):
        raise TrainingError(
            f"{what}: none of {len(episodes)} episodes completed in {sum(map(len, errors))} attempts; "
            f"first: {errors[0][0]}"
        )
    return episodes
