"""Shared by the fault tests: fault runs of a scripted expert."""

from __future__ import annotations

from robustops.faults.plan import FaultPlan
from robustops.faults.wrapper import FaultyWorld, Opportunity
from robustops.records import Task
from robustops.worlds.domain import Domain
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import ExpertRun, run_expert


def observe(world: LocalWorld, domain: Domain, task: Task) -> tuple[ExpertRun, list[Opportunity]]:
    """The clean run and what it offers to the fault mechanisms."""
    wrapper = FaultyWorld(world, observe=True)
    return run_expert(wrapper, domain, task), wrapper.opportunities


def plans(opportunities: list[Opportunity], caps: tuple[int, ...] = (1, 2)) -> list[tuple[FaultPlan, int]]:
    """Every fault that could strike, with the index of the call it strikes."""
    return [(o.plan(subtype, cap), o.turn) for o in opportunities for subtype in o.subtypes for cap in caps]


class Recorder(FaultyWorld):
    """Keeps all events."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.events = []

    def step(self, call):
        result = super().step(call)
        if self.last_event is not None:
            self.events.append(self.last_event)
        return result
