"""Every scripted expert passes clean and under every fault at every opportunity, in every domain."""

from __future__ import annotations

import pytest

from robustops.faults.plan import SUBTYPES
from robustops.records import DatabaseSpec
from robustops.worlds.domain import domain_names, get_domain
from robustops.worlds.environment import LocalWorld
from robustops.worlds.probes import draw_task
from robustops.worlds.scripted import run_expert
from tests.faults.support import Recorder, observe, plans
from tests.toy_domain import TOY, toy_task

#: Domains whose experts offer an opportunity to every mechanism.
ALL_MECHANISMS = ("itsm", "calendar")


def check_recovery(domain, task) -> set[str]:
    """Run the task's expert under all faults; the mechanisms that struck."""
    world = LocalWorld(domain)
    clean, opportunities = observe(world, domain, task)
    assert clean.success, f"{task.id} clean: {clean.checks}"
    struck = set()
    for plan, turn in plans(opportunities):
        wrapper = Recorder(world, plan)
        run = run_expert(wrapper, domain, task)
        assert run.success, f"{task.id} under {plan}: {run.checks} {run.calls}"
        assert wrapper.events, f"{task.id}: {plan} did not strike"
        assert [e.repetition for e in wrapper.events] == list(range(1, len(wrapper.events) + 1))
        assert len(wrapper.events) == wrapper.hits <= plan.repetitions
        first = wrapper.events[0]
        assert (first.turn, first.tool) == (turn, clean.calls[turn][0].name)
        assert (first.subtype, first.family, first.cap) == (plan.subtype, plan.family, plan.repetitions)
        assert run.calls[:turn] == clean.calls[:turn], "native up to the fault"
        struck.add(plan.subtype)
    world.close()
    return struck


def test_toy_experts_recover_from_everything():
    struck = set()
    for seed in range(3):
        for template in TOY.templates:
            struck |= check_recovery(TOY, toy_task(template, seed))
    assert struck == set(SUBTYPES)


@pytest.mark.parametrize("name", domain_names())
def test_experts_of_the_domains_recover_from_everything(name):
    domain = get_domain(name)
    if not domain.templates:
        pytest.skip(f"{name} has no task templates")
    struck = set()
    for template in domain.templates:
        drawn = (draw_task(domain, template, DatabaseSpec(seed=seed)) for seed in range(20))
        task = next(task for task in drawn if task is not None)
        struck |= check_recovery(domain, task)
    wanted = set(SUBTYPES) if name in ALL_MECHANISMS else {"temporary_refusal"}
    assert wanted <= struck, f"never eligible in {name}: {wanted - struck}"
