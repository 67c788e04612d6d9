"""Many episodes in flight over one sampler: whoever's tool has answered goes on at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from robustops.errors import SamplerError, TrainingError
from robustops.faults.wrapper import FaultyWorld
from robustops.records import Episode, Task
from robustops.rollout.episode import EpisodeRun, EpisodeStart, Limits
from robustops.rollout.render import Renderer
from robustops.rollout.sampler import Completion, Request, Sampler
from robustops.worlds.domain import Domain
from robustops.worlds.environment import LocalWorld, World

OnDone = Callable[[EpisodeRun], None]


class Collector:
    """Runs episodes to their end and returns them in the order asked for.

    domains: by name; max_in_flight: episodes open at once (a sampler may queue more than it samples).
    """

    def __init__(
        self,
        sampler: Sampler,
        renderer: Renderer,
        domains: dict[str, Domain],
        limits: Limits,
        *,
        max_in_flight: int = 64,
    ) -> None:
        self.sampler = sampler
        self.renderer = renderer
        self.domains = domains
        self.limits = limits
        self.max_in_flight = max_in_flight
        self._idle: dict[str, list[World]] = {}
        self._next_session = 0

    def run(self, starts: Sequence[EpisodeStart], on_done: OnDone | None = None) -> list[EpisodeRun]:
        """Every start's finished run, in order. on_done: called as episodes end (progress bars)."""
        waiting = iter(enumerate(starts))
        open_runs: dict[int, EpisodeRun] = {}
        finished: dict[int, EpisodeRun] = {}
        places: dict[int, int] = {}

        def close(run: EpisodeRun) -> None:
            open_runs.pop(run.session, None)
            finished[places.pop(run.session)] = run
            self.sampler.release(run.session)
            self._give_back(run)
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
        self, waiting: Iterator[tuple[int, EpisodeStart]], places: dict[int, int], room: int
    ) -> Iterator[tuple[EpisodeRun, Request | None]]:
        for _ in range(room):
            item = next(waiting, None)
            if item is None:
                return
            place, start = item
            run = EpisodeRun(
                self._next_session,
                start,
                FaultyWorld(self._world(start.task), start.plan, observe=start.observe),
                self.renderer,
                self.limits,
                chat=not self.sampler.produces_tokens,
                weight_version=self.sampler.weight_version,
            )
            self._next_session += 1
            places[run.session] = place
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
        return idle.pop() if idle else LocalWorld(self.domains[task.domain])

    def _give_back(self, run: EpisodeRun) -> None:
        self._idle.setdefault(run.start.task.domain, []).append(run.world.world)


def valid_episodes(runs: Sequence[EpisodeRun], *, what: str) -> list[Episode]:
    """The episodes; TrainingError with the first failure's message if not one of them completed."""
    episodes = [run.episode for run in runs if run.episode is not None]
    broken = [episode.error for episode in episodes if episode.error is not None]
    if episodes and len(broken) == len(episodes):
        raise TrainingError(f"{what}: none of {len(episodes)} episodes completed; first: {broken[0]}")
    return episodes
