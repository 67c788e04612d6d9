"""From an observed episode to the shared start of a fault group: the moment after the faulty reply."""

from __future__ import annotations

from dataclasses import dataclass

from robustops.errors import WorldError
from robustops.faults.plan import FaultPlan
from robustops.faults.wrapper import FaultyWorld, Opportunity
from robustops.records import FaultEvent, ToolCall, ToolResult
from robustops.worlds.environment import Snapshot, World


@dataclass(frozen=True)
class Branch:
    """Where all members of a fault group continue from.

    snapshot: world and wrapper after the faulty reply (a `FaultyWorld` that restores it goes on with the
    same plan, one injection used up); turn: how many calls came before the one that was struck.
    """

    snapshot: Snapshot
    call: ToolCall
    result: ToolResult
    event: FaultEvent
    turn: int
    changed: bool


def branch(world: World, opportunity: Opportunity, plan: FaultPlan) -> Branch:
    """Replay an observed call with its fault.

    world: any world of the task's domain, wrapped or not; its state is overwritten. Raises WorldError if
    the fault does not strike, i.e. if the plan is not one of this opportunity.
    """
    inner = world.world if isinstance(world, FaultyWorld) else world
    wrapper = FaultyWorld(inner, plan)
    wrapper.restore(opportunity.snapshot)
    before = wrapper.changes
    result = wrapper.step(opportunity.call)
    event = wrapper.last_event
    if event is None:
        raise WorldError(
            f"{plan.subtype} at opportunity {plan.opportunity} does not strike {opportunity.call_key}; this "
            f"call takes {dict(zip(opportunity.subtypes, opportunity.ordinals, strict=True))}"
        )
    changed = wrapper.changes != before
    return Branch(wrapper.snapshot(), opportunity.call, result, event, opportunity.turn, changed)
