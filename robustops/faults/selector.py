"""Who says which fault an episode gets: a frozen manifest, or the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from robustops.faults.manifest import Manifest
from robustops.faults.scheduler import Choice, FaultScheduler
from robustops.faults.wrapper import Opportunity
from robustops.records import Task


class FaultSelector(Protocol):
    """Chooses a fault for a case among the opportunities of an observed episode."""

    def select(self, task: Task, opportunities: Sequence[Opportunity], step: int, slot: int) -> Choice | None:
        """The fault and the call it strikes; None where there is none."""

    def record(self, choice: Choice) -> None:
        """Called once the fault has been injected."""


class ManifestSelector:
    """Always the fault that the manifest assigns, if the episode offers that opportunity."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest

    def select(self, task: Task, opportunities: Sequence[Opportunity], step: int, slot: int) -> Choice | None:
        plan = self.manifest.plan(task.case_id)
        if plan is None:
            return None
        wanted = (plan.subtype, plan.opportunity)
        hits = (o for o in opportunities if wanted in zip(o.subtypes, o.ordinals, strict=True))
        return next((Choice(plan, opportunity) for opportunity in hits), None)

    def record(self, choice: Choice) -> None:
        """Nothing to count: a manifest is frozen."""


class SchedulerSelector:
    """Whatever keeps the injections balanced."""

    def __init__(self, scheduler: FaultScheduler) -> None:
        self.scheduler = scheduler

    def select(self, task: Task, opportunities: Sequence[Opportunity], step: int, slot: int) -> Choice | None:
        return self.scheduler.choose(opportunities, step, slot)

    def record(self, choice: Choice) -> None:
        self.scheduler.record(choice.plan.subtype)
