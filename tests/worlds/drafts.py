"""Tasks drawn from one template, for the tests of templates."""

from __future__ import annotations

from robustops.records import DatabaseSpec, Task
from robustops.seeding import generator
from robustops.worlds.domain import Domain


def draw(domain: Domain, name: str, spec: DatabaseSpec, place: int = 0, attempts: int = 20) -> Task | None:
    """The first draft that fits the start state, as a task; None where none fits."""
    template, database = domain.templates[name], domain.open(spec)
    before, rng = database.dump(), generator(7, name, place)
    draft = next((d for _ in range(attempts) if (d := template.draw(database, rng)) is not None), None)
    assert database.dump() == before, "drawing must not change the start state"
    database.close()
    if draft is None:
        return None
    return Task(
        id=f"{domain.name}-{name}-{place}",
        domain=domain.name,
        template=name,
        policy=domain.policy,
        prompt=draft.prompt,
        tools=template.tools,
        distractors=(),
        database=spec,
        acting_user=draft.acting_user,
        checks=draft.checks,
        prerequisites=draft.prerequisites,
        plan=draft.plan,
    )


def draws(domain: Domain, name: str, count: int = 10, first: int = 0, size: str = "small") -> list[Task]:
    """Tasks of a template, each on a generated world of its own."""
    tasks = []
    for seed in range(first, first + 4 * count):
        task = draw(domain, name, DatabaseSpec(seed=seed, size=size), seed)
        if task is not None:
            tasks.append(task)
        if len(tasks) == count:
            return tasks
    raise AssertionError(f"{name} fits too few worlds")
