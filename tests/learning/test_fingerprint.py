from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from robustops.learning import fingerprint as module
from robustops.learning.fingerprint import (
    DATABASE,
    EVALUATION_TASKS,
    MANIFEST,
    TOKENIZER,
    TRAIN_TASKS,
    WEIGHTS,
    Fingerprint,
    fingerprint,
    folder_digest,
    tasks_digest,
)
from robustops.records import DatabaseSpec
from robustops.resources import model_folder
from robustops.settings import DomainSettings, EvaluationSettings, ModelSettings, TrainSettings
from robustops.tasks.opening import open_catalog
from robustops.worlds.domain import get_domain


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 8}')
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    save_file({"w": torch.arange(1000.0)}, folder / "model.safetensors")
    return folder


def settings(model, **domain):
    return TrainSettings(
        domain=DomainSettings(**{"name": "itsm", "train": 3, "val": 1, "test": 2, **domain}),
        model=ModelSettings(checkpoint=str(model)),
        evaluation=EvaluationSettings(split="test"),
    )


def taken(given: TrainSettings) -> Fingerprint:
    return fingerprint(given, open_catalog(given.domain)[1])


def changed(one: Fingerprint, two: Fingerprint) -> set[str]:
    return {key for key in one.contents if one.contents[key] != two.contents[key]}


def test_the_same_run_has_the_same_fingerprint_wherever_its_files_lie(model, tmp_path):
    one = taken(settings(model))
    shutil.move(model, tmp_path / "moved")
    two = taken(settings(tmp_path / "moved"))
    assert changed(one, two) == set()
    assert {key for key in one.settings if one.settings[key] != two.settings[key]} == {"model.checkpoint"}
    assert one.contents[WEIGHTS] and one.contents[TOKENIZER] and one.contents[DATABASE] is None
    assert Fingerprint.from_dict(json.loads(json.dumps(two.to_dict()))) == two
    assert two.versions["torch"] == torch.__version__.partition("+")[0] or "+" in two.versions["torch"]


def test_settings_are_plain_values_under_the_keys_of_the_command_line(model):
    flat = taken(settings(model)).settings
    assert flat["grpo.group_size"] == 4 and flat["seed"] == 0 and flat["stages"] == ["sft", "grpo"]
    assert flat["fault.caps"] == [[1, 0.6], [2, 0.3], [3, 0.1]] and flat["grpo.credit.bad_cap"] == -0.5
    assert json.loads(json.dumps(flat)) == flat


def test_a_dataset_that_changed_has_another_fingerprint(model, monkeypatch):
    """T 42: the tasks themselves are compared, not only their number and names."""
    one = taken(settings(model))
    assert changed(one, taken(settings(model, seed=1))) == {TRAIN_TASKS, EVALUATION_TASKS}
    # Another version of the domain: the same settings give other prompts.
    for kind in {type(template) for template in get_domain("itsm").templates.values()}:
        monkeypatch.setattr(kind, "draw", polite(kind.draw))
    assert changed(one, taken(settings(model))) == {TRAIN_TASKS, EVALUATION_TASKS}


def polite(original):
    def draw(self, database, rng):
        draft = original(self, database, rng)
        return draft and dataclasses.replace(draft, prompt=f"{draft.prompt} Thanks.")

    return draw


def test_every_part_of_a_task_counts_but_not_where_its_database_file_lies(model):
    task = open_catalog(settings(model).domain)[1].tasks("train")[0]
    before = tasks_digest([task])
    check = dataclasses.replace(task.checks[0], expected="something else")
    for other in (
        dataclasses.replace(task, id="x"),
        dataclasses.replace(task, prompt=task.prompt + " "),
        dataclasses.replace(task, checks=(check, *task.checks[1:])),
        dataclasses.replace(task, tools=task.tools[1:]),
        dataclasses.replace(task, database=DatabaseSpec(seed=task.database.seed + 1)),
    ):
        assert tasks_digest([other]) != before
    assert tasks_digest([task, task]) != before
    moved = [dataclasses.replace(task, database=DatabaseSpec(path=path)) for path in ("a.json", "b.json")]
    assert tasks_digest(moved[:1]) == tasks_digest(moved[1:])


def test_the_content_of_a_database_file_and_of_a_manifest_counts(model, tmp_path):
    domain = get_domain("calendar")
    world = domain.open(DatabaseSpec(seed=1))
    tables = world.dump()
    world.close()
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(tables))
    given = {"name": "calendar", "train": 1, "val": 0, "test": 1}
    one, two = (taken(settings(model, **given, database=str(tmp_path / n))) for n in ("a.json", "b.json"))
    assert changed(one, two) == set() and one.contents[DATABASE]
    (tmp_path / "b.json").write_text(json.dumps(tables, indent=1))
    other = taken(settings(model, **given, database=str(tmp_path / "b.json")))
    assert changed(one, other) == {DATABASE}
    (tmp_path / "faults.json").write_text("{}")
    with_faults = settings(model)
    with_faults.fault.manifest = str(tmp_path / "faults.json")
    assert changed(taken(settings(model)), taken(with_faults)) == {MANIFEST}


def test_what_no_stage_and_no_evaluation_needs_is_not_drawn(model):
    given = settings(model)
    given.stages, given.evaluation.policies = [], []
    contents = taken(given).contents
    assert contents[TRAIN_TASKS] is None and contents[EVALUATION_TASKS] is None


# weights --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("limit", [2**30, 1000], ids=["read whole", "sampled"])
def test_weights_of_another_model_are_told_apart(model, monkeypatch, limit):
    monkeypatch.setattr(module, "WHOLE_FILE", limit)
    monkeypatch.setattr(module, "HEAD", 256)
    monkeypatch.setattr(module, "BLOCK", 16)
    monkeypatch.setattr(module, "BLOCKS", 20)
    patterns = ("*.safetensors", "config.json")
    before = folder_digest(model, patterns)
    assert folder_digest(model, patterns) == before
    path = model / "model.safetensors"
    content = path.read_bytes()
    save_file({"w": torch.arange(1000.0) * 1.0001}, path)
    assert folder_digest(model, patterns) != before, "a step of training moves all weights"
    for place in (10, len(content) - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert folder_digest(model, patterns) != before, "head and end are always read"
    path.write_bytes(content + b"x")
    assert folder_digest(model, patterns) != before
    path.write_bytes(content)
    assert folder_digest(model, patterns) == before
    (model / "config.json").write_text("{}")
    assert folder_digest(model, patterns) != before


def test_a_large_file_is_read_in_part_only(tmp_path):
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(3 * 2**30)  # holes: no space on disk
    spans = module._spans(3 * 2**30)
    assert sum(length for _, length in spans) < 20 * 2**20
    assert spans[0] == (0, module.HEAD) and sum(spans[-1]) <= 3 * 2**30 < sum(spans[-1]) + 1000
    assert folder_digest(tmp_path, ["*.safetensors"])


def test_a_chat_template_is_part_of_the_tokenizer(model):
    one = taken(settings(model))
    (model / "chat_template.jinja").write_text("{{ messages[0] }}")
    assert changed(one, taken(settings(model))) == {TOKENIZER}


def test_the_folder_of_a_model_by_its_source(model, monkeypatch, tmp_path):
    assert model_folder(ModelSettings(checkpoint=str(model), source="hub")) == model
    assert model_folder(ModelSettings(name="no-such-model")) is None
    assert model_folder(ModelSettings()) is not None, "the embedded model"
    assert model_folder(ModelSettings(name="other", source="gguf_package")) is None
    assert model_folder(ModelSettings(source="hub", hub_id=None)) is None
    # What is not in the cache yet has no fingerprint; what is there is found.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    hub = ModelSettings(source="hub", hub_id="someone/model")
    assert model_folder(hub) is None
    place = tmp_path / "cache" / "models--someone--model"
    shutil.copytree(model, place / "snapshots" / "c0ffee")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("c0ffee")
    assert model_folder(hub) == place / "snapshots" / "c0ffee"
