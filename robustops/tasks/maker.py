"""Draws the tasks of a catalog from a domain's templates. See `catalog.build_catalog`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from robustops.errors import TaskError
from robustops.records import DatabaseSpec, Task, canonical_json
from robustops.seeding import child_seed, generator
from robustops.worlds.checks import validate_graph
from robustops.worlds.database import WorldDatabase
from robustops.worlds.domain import Domain, Draft

#: In the order in which they claim requests: a larger training split never changes the test tasks.
SPLITS = ("test", "val", "train")
DISTRACTORS = 5
#: Draws for one task before its template is given up, and draws in one generated world before the next.
ATTEMPTS = 240
ATTEMPTS_PER_WORLD = 8
#: Generated worlds: few templates to a world make for many worlds, hence many names and ids.
TEMPLATES_PER_WORLD = 5
#: Share of the requests that a given database allows which belongs to each split, whatever the counts.
SHARES = {"train": 0.6, "val": 0.1, "test": 0.3}


@dataclass
class _Failure:
    """Why a template gave no task: how often no rows fitted, and how often the request was not new."""

    unfit: int = 0
    taken: int = 0

    def reason(self) -> str:
        if self.taken == 0:
            return f"no fitting rows in {self.unfit} draws"
        return f"no new request in {self.unfit + self.taken} draws ({self.unfit} without fitting rows)"


class TaskMaker:
    """Draws the splits of one catalog; keeps them so that no two tasks have the same prompt."""

    def __init__(
        self,
        domain: Domain,
        seed: int,
        counts: dict[str, int],
        path: str | None,
        names: list[str],
        size: str = "small",
    ) -> None:
        self.domain = domain
        self.seed = seed
        self.counts = counts
        self.path = path
        self.size = size
        self.names = names
        self.skipped: dict[str, str] = {}
        self._done: dict[str, list[Task]] = {}
        self._last: tuple[DatabaseSpec, WorldDatabase] | None = None

    def split(self, split: str) -> list[Task]:
        """The tasks of a split, after those of the splits that claim their prompts before it."""
        if split in self._done:
            return self._done[split]
        earlier = [name for name in SPLITS[: SPLITS.index(split)] if name in self.counts]
        taken = {task.prompt for name in earlier for task in self.split(name)}
        tasks: list[Task] = []
        live, turn = list(self.names), {name: 0 for name in self.names}
        while len(tasks) < self.counts[split]:
            if not live:
                raise TaskError(
                    f"domain {self.domain.name}: {self.path} allows {len(tasks)} different tasks for split "
                    f"'{split}', {self.counts[split]} were asked for; lower the count ({self.skipped})"
                )
            # The template that has the fewest tasks so far, first by name: splits stay balanced.
            name = min(live, key=lambda name: turn[name])
            made = self._draw(split, name, turn[name], taken)
            if isinstance(made, _Failure):
                self._give_up(split, name, turn[name], made)
                live.remove(name)
                continue
            draft, spec = made
            turn[name] += 1
            taken |= {draft.prompt, _facts(name, draft)}
            tasks.append(self._task(split, len(tasks), name, draft, spec))
        self._done[split] = tasks
        return tasks

    def _draw(
        self, split: str, name: str, turn: int, taken: set[str]
    ) -> tuple[Draft, DatabaseSpec] | _Failure:
        """One draft with a new prompt, and the database it was drawn in.

        In a given database the facts must be new too: a rewording of a request is no second task.
        """
        template = self.domain.templates[name]
        failure = _Failure()
        for attempt in range(ATTEMPTS):
            spec = self._spec(split, name, turn, attempt // ATTEMPTS_PER_WORLD)
            rng = generator(self.seed, "task", self.domain.name, split, name, turn, attempt)
            draft = template.draw(self._open(spec), rng)
            if draft is None:
                failure.unfit += 1
            elif draft.prompt in taken or (
                self.path is not None and not self._free(split, name, draft, taken)
            ):
                failure.taken += 1
            else:
                return draft, spec
        return failure

    def _open(self, spec: DatabaseSpec) -> WorldDatabase:
        """The start database of a spec, to read; kept until another is asked for."""
        if self._last is None or self._last[0] != spec:
            if self._last is not None:
                self._last[1].close()
            self._last = spec, self.domain.open(spec)
        return self._last[1]

    def _spec(self, split: str, name: str, turn: int, world: int) -> DatabaseSpec:
        """The database of a template's `turn`-th task; a few templates share a world, with a task each."""
        if self.path is not None:
            return DatabaseSpec(path=self.path)
        place = (self.domain.name, split, self.names.index(name) // TEMPLATES_PER_WORLD, turn, world)
        return DatabaseSpec(seed=child_seed(self.seed, "world", *place), size=self.size)

    def _free(self, split: str, name: str, draft: Draft, taken: set[str]) -> bool:
        """Whether a request in a database that the splits share belongs to this split and is not in it."""
        facts = _facts(name, draft)
        rng = generator(self.seed, "owner", self.domain.name, facts)
        (owner,) = rng.choices(list(SHARES), list(SHARES.values()))
        return owner == split and facts not in taken

    def _give_up(self, split: str, name: str, made: int, failure: _Failure) -> None:
        """A template without (more) tasks: told of for a given database, a bug in a generated one."""
        if self.path is None:
            raise TaskError(
                f"template '{name}' of domain {self.domain.name} gave no task for split '{split}': "
                f"{failure.reason()}; make its `draw` fit the generated worlds"
            )
        so_far = f"{split}: {made} tasks, then {failure.reason()}"
        known = self.skipped.get(name)
        self.skipped[name] = so_far if known is None else f"{known}; {so_far}"

    def _task(self, split: str, index: int, name: str, draft: Draft, spec: DatabaseSpec) -> Task:
        task_id = f"{self.domain.name}-{split}-{index:05d}"
        template = self.domain.templates[name]
        others = sorted(set(self.domain.toolset.specs()) - set(template.tools))
        rng = generator(self.seed, "distractors", task_id)
        validate_graph([check.name for check in draft.checks], draft.prerequisites)
        return Task(
            id=task_id,
            domain=self.domain.name,
            template=name,
            policy=self.domain.policy,
            prompt=draft.prompt,
            tools=tuple(template.tools),
            distractors=tuple(sorted(rng.sample(others, min(DISTRACTORS, len(others))))),
            database=spec,
            acting_user=draft.acting_user,
            checks=tuple(draft.checks),
            prerequisites=tuple(draft.prerequisites),
            plan=json.loads(canonical_json(draft.plan)),
            split=split,
        )


def _facts(name: str, draft: Draft) -> str:
    """What a request asks for, apart from its wording."""
    return canonical_json([name, draft.plan, draft.acting_user])
