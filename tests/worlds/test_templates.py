"""The contract of a task template, over every template of every domain."""

from __future__ import annotations

import json
import re

import pytest

from robustops.faults.wrapper import FaultyWorld
from robustops.records import DatabaseSpec
from robustops.seeding import generator
from robustops.worlds.domain import domain_names, get_domain
from robustops.worlds.environment import LocalWorld
from robustops.worlds.probes import draw_task
from robustops.worlds.scripted import run_expert
from tests.worlds.drafts import draws, solved

PAIRS = [(domain, name) for domain in domain_names() for name in sorted(get_domain(domain).templates)]
templates = pytest.mark.parametrize(("domain", "name"), PAIRS)


@templates
def test_start_never_passes_and_the_expert_always_does(domain, name):
    kind = get_domain(domain)
    local = LocalWorld(kind)
    for task in draws(kind, name):
        assert 2 <= len(task.checks) <= 6
        local.reset(task)
        assert not all(local.evaluate(task.checks)), task.prompt
        solved(local, kind, task)
    local.close()


@templates
def test_drawing_changes_nothing_in_the_start_state(domain, name):
    kind = get_domain(domain)
    for seed in range(10):
        database = kind.open(DatabaseSpec(seed=seed))
        before = database.dump()
        kind.templates[name].draw(database, generator(7, name, seed))
        assert database.dump() == before
        database.close()


@templates
def test_full_replies_serve_as_well(domain, name):
    kind = get_domain(domain, "full")
    local = LocalWorld(kind)
    (task,) = draws(kind, name, 1)
    assert run_expert(local, kind, task).success
    local.close()


@templates
def test_the_form_of_a_template(domain, name):
    kind = get_domain(domain)
    template = kind.templates[name]
    assert template.name == name and template.tools and len(set(template.tools)) == len(template.tools)
    assert set(template.tools) <= set(kind.toolset.specs())
    assert len(set(template.wordings)) >= 6
    tasks = draws(kind, name)
    assert len({task.prompt for task in tasks}) == len(tasks)
    for task in tasks:
        assert 3 <= len(task.prompt.split()) <= 60 and "{" not in task.prompt
        assert json.loads(json.dumps(task.plan)) == task.plan


@templates
def test_the_expert_knows_what_the_prompt_says_and_no_id(domain, name):
    kind = get_domain(domain)
    identities = [t.split(".") for spec in kind.toolset.specs().values() for t in spec.identity.values()]
    for task in draws(kind, name, 4):
        values = [v for fact in task.plan.values() for v in (fact if isinstance(fact, list) else [fact])]
        for value in values:
            assert str(value).lower() in task.prompt.lower(), f"{task.prompt}: {value}"
        database = kind.open(task.database)
        for table, column in identities:
            if column.endswith("_id"):
                ids = {row[column] for row in database.find(table)}
                assert not ids & {*map(str, values), *re.findall(r"\w+", task.prompt)}
        database.close()


@templates
def test_every_wording_states_every_fact(domain, name):
    template = get_domain(domain).templates[name]
    fields = [sorted({part.split("}")[0] for part in text.split("{")[1:]}) for text in template.wordings]
    assert all(names == fields[0] for names in fields)


@templates
def test_a_world_without_fitting_rows_gives_no_task(domain, name):
    kind = get_domain(domain)
    assert kind.templates[name].draw(kind.new_database(), generator(0, name)) is None


@templates
def test_the_expert_recovers_on_another_world_from_faults_that_repeat(domain, name):
    """Deeper than the suite over all domains: other worlds, and faults that repeat three times."""
    kind = get_domain(domain)
    local = LocalWorld(kind)
    for task in draws(kind, name, 2, first=11):
        observer = FaultyWorld(local, observe=True)
        run_expert(observer, kind, task)
        for opportunity in observer.opportunities:
            for subtype in opportunity.subtypes:
                world = FaultyWorld(local, opportunity.plan(subtype, cap=3))
                run = run_expert(world, kind, task)
                assert run.success and world.hits >= 1, f"{task.prompt}: {subtype} at {opportunity.turn}"
    local.close()


@pytest.mark.parametrize("domain", domain_names())
@pytest.mark.parametrize("size", ["tiny", "medium"])
def test_worlds_of_other_sizes_have_tasks_too(domain, size):
    kind = get_domain(domain)
    specs = [DatabaseSpec(seed=seed, size=size) for seed in range(6)]
    fits = [draw_task(kind, n, spec, attempts=1) is not None for n in kind.templates for spec in specs]
    assert sum(fits) >= 0.6 * len(fits)
