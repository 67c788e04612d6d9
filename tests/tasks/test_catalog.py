import json
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from robustops.errors import ConfigError, TaskError
from robustops.records import StateCheck
from robustops.tasks import maker
from robustops.tasks.catalog import Catalog, build_catalog, read_catalog, verify_catalog, write_catalog
from robustops.worlds.domain import Draft, TaskTemplate, domain_names, get_domain
from tests.toy_domain import TOY, ToyDomain

COUNTS = {"train": 20, "val": 6, "test": 11}
SPLITS = tuple(COUNTS)


class Never(TaskTemplate):
    """A template that fits no database."""

    name = "never"
    tools = ("list_boxes",)

    def draw(self, database, rng):
        return None

    def expert(self, plan):
        yield from ()
        return ""


class Few(TaskTemplate):
    """A template with two different requests in all."""

    name = "few"
    tools = ("list_boxes", "list_notes")

    def draw(self, database, rng: Random):
        which = rng.choice(("one", "two"))
        return Draft(f"Say {which}.", {"which": which}, (StateCheck("never", "SELECT 0", 1),), ())

    def expert(self, plan):
        yield from ()
        return ""


def toy_with(*templates):
    domain = ToyDomain()
    domain.templates = {template.name: template for template in [*TOY.templates.values(), *templates]}
    return domain


@pytest.fixture(scope="module")
def toy_file(tmp_path_factory):
    """A database file of the toy domain."""
    database = TOY.new_database()
    with database.atomic():
        TOY.fill(database, 5, "large")
    path = tmp_path_factory.mktemp("toy") / "toy.json"
    path.write_text(json.dumps(database.dump()))
    database.close()
    return str(path)


@pytest.fixture(scope="module")
def catalog():
    return build_catalog(TOY, seed=1, counts=COUNTS)


def everything(catalog):
    return {split: catalog.tasks(split) for split in SPLITS}


def test_counts_ids_and_fields(catalog):
    for split, count in COUNTS.items():
        tasks = catalog.tasks(split)
        assert len(tasks) == count
        for task in tasks:
            assert (task.split, task.domain, task.tool_config) == (split, "toy", "oracle")
            assert task.policy == TOY.policy
            assert task.tools == TOY.templates[task.template].tools
    ids = [task.id for split in SPLITS for task in catalog.tasks(split)]
    assert len(set(ids)) == len(ids)


def test_templates_are_balanced_in_each_split(catalog):
    for split in SPLITS:
        per_template = Counter(task.template for task in catalog.tasks(split))
        assert set(per_template) == set(TOY.templates)
        assert max(per_template.values()) - min(per_template.values()) <= 1


def test_cases_are_each_task_in_both_tool_configurations():
    domain = toy_with(Few())
    catalog = build_catalog(domain, seed=1, counts={"test": 4}, templates=["file_note", "few"])
    cases = catalog.cases("test")
    assert [case.id for case in cases[::2]] == [case.id for case in cases[1::2]]
    assert len({case.case_id for case in cases}) == len(cases) == 8
    for oracle, plus5 in zip(cases[::2], cases[1::2], strict=True):
        assert replace(plus5, tool_config="oracle") == oracle
        extra = set(plus5.allowed_tools) - set(oracle.allowed_tools)
        unused = set(domain.toolset.specs()) - set(oracle.tools)
        assert len(extra) == min(5, len(unused))
        assert extra <= unused
    assert [case.tool_config for case in catalog.cases("test", ["plus5"])] == ["plus5"] * 4
    with pytest.raises(ConfigError, match="unknown tool configuration 'plus10'"):
        catalog.cases("test", ["plus10"])


def test_no_case_of_one_split_shares_its_task_with_another(catalog):
    owners = {}
    for split in SPLITS:
        for case in catalog.cases(split):
            assert owners.setdefault(case.id, split) == split


def test_worlds_and_prompts_of_the_splits_are_apart(catalog):
    worlds = {split: {task.database for task in catalog.tasks(split)} for split in SPLITS}
    assert not worlds["train"] & worlds["test"]
    assert not worlds["train"] & worlds["val"]
    assert not worlds["val"] & worlds["test"]
    prompts = [task.prompt for split in SPLITS for task in catalog.tasks(split)]
    assert len(set(prompts)) == len(prompts)


def test_the_seed_decides_everything_and_the_order_of_asking_nothing(catalog):
    backwards = build_catalog(TOY, seed=1, counts=COUNTS)
    assert {s: backwards.tasks(s) for s in reversed(SPLITS)} == everything(catalog)
    other = build_catalog(TOY, seed=2, counts=COUNTS)
    assert {t.prompt for t in other.tasks("train")} != {t.prompt for t in catalog.tasks("train")}
    assert not {t.database for t in other.tasks("train")} & {t.database for t in catalog.tasks("train")}


def test_more_training_tasks_change_no_test_task(catalog):
    larger = build_catalog(TOY, seed=1, counts={**COUNTS, "train": 40})
    assert larger.tasks("test") == catalog.tasks("test")
    assert larger.tasks("val") == catalog.tasks("val")
    assert larger.tasks("train")[:20] == catalog.tasks("train")


def test_splits_are_made_when_asked_for_and_once():
    asked = []

    def load(split):
        asked.append(split)
        return []

    lazy = Catalog("toy", {"train": 0, "test": 0}, load)
    assert asked == []
    lazy.tasks("test"), lazy.cases("test"), lazy.tasks("test")
    assert asked == ["test"]
    with pytest.raises(ConfigError, match="unknown split 'dev'; choose one of: test, train"):
        lazy.tasks("dev")


def test_wrong_requests_are_refused():
    with pytest.raises(ConfigError, match="unknown split 'dev'"):
        build_catalog(TOY, counts={"dev": 3})
    with pytest.raises(ConfigError, match="unknown template of domain toy 'nope'; choose one of: close_note"):
        build_catalog(TOY, templates=["nope"])
    with pytest.raises(ConfigError, match="no task templates chosen"):
        build_catalog(TOY, templates=[])


def test_chosen_templates_only():
    tasks = build_catalog(TOY, counts={"test": 4}, templates=["close_note"]).tasks("test")
    assert {task.template for task in tasks} == {"close_note"}


def test_a_template_that_never_fits_generated_worlds_is_an_error(monkeypatch):
    monkeypatch.setattr(maker, "ATTEMPTS", 20)
    with pytest.raises(TaskError, match=r"template 'never' of domain toy .* no fitting rows in 20 draws"):
        build_catalog(toy_with(Never()), counts={"test": 3}).tasks("test")


def test_a_given_database_serves_all_splits_with_different_requests(toy_file):
    catalog = build_catalog(TOY, seed=1, counts=COUNTS, database=toy_file)
    tasks = [task for split in SPLITS for task in catalog.tasks(split)]
    assert {task.database.path for task in tasks} == {toy_file}
    assert len({task.prompt for task in tasks}) == len({task.id for task in tasks}) == len(tasks) == 37
    facts = [{json.dumps([t.template, t.plan]) for t in catalog.tasks(split)} for split in SPLITS]
    assert not facts[0] & facts[1] and not facts[0] & facts[2] and not facts[1] & facts[2]
    assert catalog.skipped == {}
    assert verify_catalog(catalog, TOY) == 37


def test_the_domains_own_path_counts_as_a_given_database(toy_file):
    catalog = build_catalog(ToyDomain(path=toy_file), counts={"test": 2})
    assert {task.database.path for task in catalog.tasks("test")} == {toy_file}


def test_templates_that_a_given_database_cannot_serve_are_skipped_and_told_of(toy_file, monkeypatch):
    monkeypatch.setattr(maker, "ATTEMPTS", 40)
    domain = toy_with(Never(), Few())
    catalog = build_catalog(domain, seed=1, counts={"train": 12, "test": 12}, database=toy_file)
    for split in ("train", "test"):
        per_template = Counter(task.template for task in catalog.tasks(split))
        assert sum(per_template.values()) == 12
        assert per_template["never"] == 0
        assert per_template["few"] <= 2
        assert abs(per_template["file_note"] - per_template["close_note"]) <= 1
    assert "no fitting rows in 40 draws" in catalog.skipped["never"]
    assert "no new request" in catalog.skipped["few"]
    assert set(catalog.skipped) == {"never", "few"}
    few = [t for split in ("train", "test") for t in catalog.tasks(split) if t.template == "few"]
    assert len(few) == len({task.prompt for task in few})


def test_a_given_database_with_too_few_requests_is_an_error(toy_file, monkeypatch):
    monkeypatch.setattr(maker, "ATTEMPTS", 40)
    catalog = build_catalog(toy_with(Few()), counts={"test": 9}, database=toy_file, templates=["few"])
    with pytest.raises(
        TaskError, match=r"toy\.json allows \d different tasks for split 'test', 9 were asked"
    ):
        catalog.tasks("test")


# files ---------------------------------------------------------------------------------------------
def test_a_catalog_goes_to_files_and_comes_back(catalog, tmp_path):
    folder = write_catalog(catalog, tmp_path)
    assert folder == tmp_path / "toy"
    back = read_catalog(tmp_path, TOY)
    assert everything(back) == everything(catalog)
    assert (back.seed, back.counts, back.skipped) == (1, COUNTS, {})
    first = json.loads((folder / "test" / "toy-test-00000.json").read_text())
    assert {"system_prompt", "user_prompt", "selected_tools", "verifiers", "robustops"} <= set(first)
    assert len(list(folder.glob("*/*.json"))) == 37
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_writing_replaces_the_whole_catalog_or_nothing(catalog, tmp_path):
    write_catalog(catalog, tmp_path)
    smaller = build_catalog(TOY, seed=9, counts={"test": 2})
    write_catalog(smaller, tmp_path)
    assert {path.name for path in (tmp_path / "toy").iterdir()} == {"test", "catalog.json"}
    assert read_catalog(tmp_path, "toy").tasks("test") == smaller.tasks("test")
    bad = Catalog("toy", {"test": 1}, lambda _: [replace(catalog.tasks("test")[0], id="../evil")])
    with pytest.raises(TaskError, match="is no file name"):
        write_catalog(bad, tmp_path)
    assert read_catalog(tmp_path, "toy").tasks("test") == smaller.tasks("test")
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_damaged_folders_are_told_of(catalog, tmp_path):
    with pytest.raises(ConfigError, match="holds no task catalog"):
        read_catalog(tmp_path, TOY)
    folder = write_catalog(catalog, tmp_path)
    (folder / "val" / "toy-val-00003.json").write_text("{")
    with pytest.raises(TaskError, match=r"toy-val-00003\.json cannot be read"):
        read_catalog(tmp_path, TOY).tasks("val")
    (folder / "test" / "toy-test-00000.json").unlink()
    with pytest.raises(TaskError, match="holds 10 tasks, its catalog says 11"):
        read_catalog(tmp_path, TOY).tasks("test")


# contract ------------------------------------------------------------------------------------------
def test_every_task_holds_its_contract(catalog):
    assert verify_catalog(catalog, TOY) == 37
    assert verify_catalog(catalog, TOY, splits=["val"]) == 6


def broken(catalog, **changes):
    tasks = list(catalog.tasks("val"))
    tasks[1] = replace(tasks[1], **changes)
    return Catalog("toy", {"val": 6}, lambda _: tasks)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checks": (StateCheck("easy", "SELECT 1", 1),), "prerequisites": ()}, "start state passes all"),
        ({"checks": (StateCheck("hard", "SELECT 1", 2),), "prerequisites": ()}, "expert does not pass all"),
        ({"checks": (), "prerequisites": ()}, "no state checks"),
        ({"prerequisites": (("nothing", "note_is_done"),)}, "names a check that the task does not have"),
        ({"tools": ("list_boxes",)}, "no use repeating|no answer"),
        ({"template": "gone"}, "unknown toy template 'gone'"),
    ],
)
def test_a_broken_task_is_named_with_what_is_wrong(catalog, changes, message):
    with pytest.raises((TaskError, ConfigError), match=message):
        verify_catalog(broken(catalog, **changes), TOY)


def test_tasks_that_occur_twice_are_found(catalog):
    prompt = catalog.tasks("val")[0].prompt
    with pytest.raises(TaskError, match=r"1 tasks of toy are broken: toy-val-00001 .* occurs twice"):
        verify_catalog(broken(catalog, prompt=prompt), TOY)


@pytest.mark.parametrize("name", domain_names())
def test_real_domains_make_catalogs_that_hold(name):
    domain = get_domain(name)
    counts = {"train": len(domain.templates), "test": len(domain.templates)}
    catalog = build_catalog(domain, seed=3, counts=counts)
    assert verify_catalog(catalog, domain) == 2 * len(domain.templates)
    for case in catalog.cases("test"):
        assert case.tool_config == "oracle" or len(set(case.allowed_tools) - set(case.tools)) == 5
