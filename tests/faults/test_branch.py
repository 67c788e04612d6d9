from __future__ import annotations

import pytest

from robustops.errors import WorldError
from robustops.faults.branch import branch
from robustops.faults.plan import FaultPlan
from robustops.faults.wrapper import FaultyWorld
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import next_call
from tests.faults.support import observe, plans
from tests.toy_domain import TOY, toy_task


def finish(wrapper: FaultyWorld, task, history: list) -> list:
    """Let the expert go on from a history; all calls with replies and events."""
    done = list(history)
    events = []
    while not isinstance(call := next_call(TOY, task, done), str):
        done.append((call, wrapper.step(call)))
        events.append(wrapper.last_event)
    return [done, events]


@pytest.mark.parametrize("template", sorted(TOY.templates))
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_branch_is_the_moment_after_the_faulty_reply(template, wrapped):
    """Branching off an observed episode equals an episode that had the plan from its start."""
    task = toy_task(template, 2)
    world = LocalWorld(TOY)
    clean, opportunities = observe(world, TOY, task)
    host = FaultyWorld(world, FaultPlan("missing_rows")) if wrapped else world
    by_turn = {o.turn: o for o in opportunities}
    for plan, turn in plans(opportunities, caps=(2,)):
        found = branch(host, by_turn[turn], plan)
        whole = FaultyWorld(LocalWorld(TOY), plan)
        whole.reset(task)
        replies = [whole.step(call) for call, _ in clean.calls[: turn + 1]]
        assert (found.result, found.event, found.turn) == (replies[-1], whole.last_event, turn)
        assert found.call == clean.calls[turn][0]
        assert found.changed == (plan.subtype == "lost_receipt")
        history = [*clean.calls[:turn], (found.call, found.result)]
        expected = finish(whole, task, history)
        assert all(whole.evaluate(task.checks))
        for member in range(2):
            wrapper = FaultyWorld(world, None if member else plan)
            wrapper.restore(found.snapshot)
            assert wrapper.hits == 1
            assert finish(wrapper, task, history) == expected, "every member goes on with the same plan"
            assert all(wrapper.evaluate(task.checks))


def test_a_plan_of_another_call_is_refused():
    world = LocalWorld(TOY)
    _, opportunities = observe(world, TOY, toy_task())
    with pytest.raises(WorldError, match="missing_rows at opportunity 5 does not strike list_boxes"):
        branch(world, opportunities[0], FaultPlan("missing_rows", 5))
