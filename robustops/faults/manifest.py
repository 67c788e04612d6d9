"""A frozen assignment of faults to cases, so that every policy that is compared meets the same ones."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from robustops.errors import ConfigError
from robustops.faults.plan import FaultPlan, check_subtypes
from robustops.faults.scheduler import DEFAULT_CAPS, FaultScheduler, check_caps
from robustops.faults.wrapper import FaultyWorld, Opportunity
from robustops.records import Record, Task
from robustops.worlds.domain import Domain
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import run_expert

FORMAT = 1


@dataclass(frozen=True)
class Manifest(Record):
    """One fault plan a case.

    subtypes: the mechanisms that were to be balanced; seed: of the draws; assignments: (case id, plan),
    in the order of the tasks; without: cases at which no mechanism is eligible.
    """

    subtypes: tuple[str, ...]
    seed: int
    assignments: tuple[tuple[str, FaultPlan], ...]
    without: tuple[str, ...] = ()

    @cached_property
    def _by_case(self) -> dict[str, FaultPlan]:
        return dict(self.assignments)

    def plan(self, case_id: str) -> FaultPlan | None:
        """The plan of a case; None where no mechanism is eligible; ConfigError for a foreign case."""
        if case_id in self._by_case:
            return self._by_case[case_id]
        if case_id in self.without:
            return None
        raise ConfigError(f"case {case_id} is not in the fault manifest; build one for these tasks")

    def counts(self) -> dict[str, int]:
        """Assigned cases by mechanism."""
        found = Counter(plan.subtype for _, plan in self.assignments)
        return {subtype: found[subtype] for subtype in self.subtypes}

    def subset(self, case_ids: Collection[str]) -> Manifest:
        """The manifest of some of the cases."""
        for case_id in case_ids:
            self.plan(case_id)
        kept = tuple((case_id, plan) for case_id, plan in self.assignments if case_id in case_ids)
        return Manifest(self.subtypes, self.seed, kept, tuple(c for c in self.without if c in case_ids))

    def save(self, path: str | Path) -> None:
        """Write atomically; ConfigError if another manifest stands there already (they are frozen)."""
        path = Path(path)
        text = json.dumps({"format": FORMAT, **self.to_dict()}, indent=1) + "\n"
        if path.exists():
            if path.read_text() == text:
                return
            raise ConfigError(
                f"{path} holds another fault manifest; a manifest never changes, choose a new path"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        partial.write_text(text)
        os.replace(partial, path)

    @classmethod
    def load(cls, path: str | Path) -> Manifest:
        """Read a saved manifest; ConfigError where it is absent, of another format, or has unknown faults."""
        try:
            data = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read the fault manifest {path}: {error}") from error
        return _parse(path, data)


def _parse(path: str | Path, data: Any) -> Manifest:
    found = data.get("format") if isinstance(data, dict) else None
    if found != FORMAT:
        raise ConfigError(f"{path} has manifest format {found}, this version reads {FORMAT}; build it anew")
    try:
        manifest = Manifest.from_dict(data)
        if not all(isinstance(plan, FaultPlan) for _, plan in manifest.assignments):
            raise ValueError("an assignment is a pair of a case id and a plan")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is no fault manifest: {type(error).__name__}: {error}") from error
    check_subtypes(manifest.subtypes)
    return manifest


def build_manifest(
    tasks: Sequence[Task],
    domains: Mapping[str, Domain],
    subtypes: Sequence[str],
    seed: int = 0,
    caps: Sequence[Sequence[float]] = DEFAULT_CAPS,
    *,
    max_opportunity: int | None = None,
) -> Manifest:
    """Run the scripted expert over every case, see where faults could strike, and assign one each.

    domains: by name; max_opportunity: only a case's first so many opportunities for each mechanism,
    which raises the chance that a policy with another plan meets the fault; None for all.
    """
    scheduler = FaultScheduler(check_subtypes(tuple(subtypes)), check_caps(caps), seed)
    worlds: dict[str, LocalWorld] = {}
    assignments: list[tuple[str, FaultPlan]] = []
    without: list[str] = []
    try:
        for slot, task in enumerate(tasks):
            world = worlds.setdefault(task.domain, LocalWorld(domains[task.domain], tool_timeout_s=None))
            seen = observe(world, domains[task.domain], task, scheduler.subtypes)
            choice = scheduler.choose([_early(o, max_opportunity) for o in seen], 0, slot)
            if choice is None:
                without.append(task.case_id)
                continue
            scheduler.record(choice.plan.subtype)
            assignments.append((task.case_id, choice.plan))
    finally:
        for world in worlds.values():
            world.close()
    return Manifest(scheduler.subtypes, seed, tuple(assignments), tuple(without))


def observe(world: LocalWorld, domain: Domain, task: Task, subtypes: tuple[str, ...]) -> list[Opportunity]:
    """The calls of the scripted expert at which these mechanisms are eligible."""
    wrapper = FaultyWorld(world, observe=True, subtypes=subtypes)
    run_expert(wrapper, domain, task)
    return wrapper.opportunities


def _early(opportunity: Opportunity, limit: int | None) -> Opportunity:
    """The opportunity without the mechanisms that have had `limit` earlier ones."""
    pairs = zip(opportunity.subtypes, opportunity.ordinals, strict=True)
    kept = [(name, ordinal) for name, ordinal in pairs if limit is None or ordinal < limit]
    names, ordinals = tuple(n for n, _ in kept), tuple(o for _, o in kept)
    return Opportunity(opportunity.turn, opportunity.call, names, ordinals, opportunity.snapshot)
