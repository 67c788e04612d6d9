from __future__ import annotations

import json
from collections import Counter

import pytest

from robustops.errors import ConfigError
from robustops.faults.manifest import Manifest, build_manifest
from robustops.faults.plan import FAMILIES, SUBTYPES, fault_choices
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import run_expert
from tests.faults.support import Recorder
from tests.toy_domain import TOY, toy_tasks

TASKS = toy_tasks(12)
DOMAINS = {"toy": TOY}


@pytest.fixture(scope="module")
def manifest():
    return build_manifest(TASKS, DOMAINS, fault_choices("trained"), seed=4)


def test_every_case_has_a_plan_that_strikes_its_expert(manifest):
    assert [case_id for case_id, _ in manifest.assignments] == [task.case_id for task in TASKS]
    world = LocalWorld(TOY)
    for task in TASKS:
        wrapper = Recorder(world, manifest.plan(task.case_id))
        assert run_expert(wrapper, TOY, task).success and wrapper.events


def test_assignments_are_balanced_and_stay_within_the_choice(manifest):
    counts = manifest.counts()
    assert sum(counts.values()) == len(TASKS) == 24 and "filter_dropped" not in counts
    families = [
        sum(counts.get(name, 0) for name in names) for f, names in FAMILIES.items() if f != "ignored_filter"
    ]
    # Half of the cases (file_note) offer no reply mixup, so that the last ones may not even things out.
    assert max(families) - min(families) <= 2 and min(families) >= 5


def test_same_seed_same_manifest(manifest):
    assert build_manifest(TASKS, DOMAINS, fault_choices("trained"), seed=4) == manifest
    assert build_manifest(TASKS, DOMAINS, fault_choices("trained"), seed=5) != manifest


def test_first_opportunities_only():
    built = build_manifest(TASKS, DOMAINS, SUBTYPES, max_opportunity=1)
    assert {plan.opportunity for _, plan in built.assignments} == {0}
    free = build_manifest(TASKS, DOMAINS, ("temporary_refusal",))
    assert max(plan.opportunity for _, plan in free.assignments) > 0


def test_cases_without_an_opportunity_are_reported():
    built = build_manifest(TASKS, DOMAINS, ("other_object",))
    without = Counter(case_id.startswith("toy_file_note") for case_id in built.without)
    assert without == {True: 12}, "the expert of file_note asks about no single object"
    assert built.plan(built.without[0]) is None
    assert build_manifest(TASKS[:2], DOMAINS, ()).without == tuple(t.case_id for t in TASKS[:2])


def test_round_trip_and_frozen(manifest, tmp_path):
    path = tmp_path / "deep" / "manifest.json"
    manifest.save(path)
    assert Manifest.load(path) == manifest
    manifest.save(path)
    other = build_manifest(TASKS[:2], DOMAINS, SUBTYPES)
    with pytest.raises(ConfigError, match="never changes"):
        other.save(path)
    assert Manifest.load(path) == manifest
    assert [p.name for p in path.parent.iterdir()] == ["manifest.json"], "no partial file stays behind"
    with pytest.raises(AttributeError):
        manifest.seed = 1


def test_subset(manifest):
    names = [TASKS[5].case_id, TASKS[2].case_id]
    part = manifest.subset(names)
    assert [case_id for case_id, _ in part.assignments] == [TASKS[2].case_id, TASKS[5].case_id]
    assert part.plan(names[0]) == manifest.plan(names[0])
    with pytest.raises(ConfigError, match="not in the fault manifest"):
        part.plan(TASKS[0].case_id)
    with pytest.raises(ConfigError, match="not in the fault manifest"):
        manifest.subset(["foreign"])


def test_files_that_are_no_manifest_are_refused(manifest, tmp_path):
    def load(change) -> None:
        data = {"format": 1, **json.loads(json.dumps(manifest.to_dict()))}
        change(data)
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(data))
        Manifest.load(path)

    load(lambda data: None)
    for change, message in [
        (lambda d: d.update(format=9), "manifest format 9, this version reads 1"),
        (lambda d: d["assignments"][0][1].update(subtype="gremlin"), "unknown fault subtype 'gremlin'"),
        (lambda d: d["subtypes"].append("gremlin"), "unknown fault subtype 'gremlin'"),
        (lambda d: d.pop("seed"), "is no fault manifest"),
        (lambda d: d.update(assignments=[["only a name"]]), "is no fault manifest"),
    ]:
        with pytest.raises(ConfigError, match=message):
            load(change)
    with pytest.raises(ConfigError, match="cannot read the fault manifest"):
        Manifest.load(tmp_path / "absent.json")
    with pytest.raises(ConfigError, match="unknown fault subtype 'gremlin'"):
        build_manifest(TASKS, DOMAINS, ("gremlin",))
