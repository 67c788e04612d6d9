"""Which changes of settings a run folder admits."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from robustops.errors import ConfigError
from robustops.learning.admission import HARMLESS, StageState, admit, compare, stage_complete
from robustops.learning.checkpoints import Checkpoints
from robustops.learning.fingerprint import (
    DATABASE,
    EVALUATION_TASKS,
    MANIFEST,
    TOKENIZER,
    TRAIN_TASKS,
    WEIGHTS,
    Fingerprint,
    flat_settings,
)
from robustops.settings import DomainSettings, ModelSettings, TrainSettings
from robustops.tasks.opening import open_catalog

NOTHING: dict[str, StageState] = {}
SFT_DONE = {"sft": StageState(complete=True)}
HALF = {**SFT_DONE, "grpo": StageState(batches=10)}
DONE = {**SFT_DONE, "grpo": StageState(complete=True)}

BEFORE = Fingerprint(
    {**flat_settings(TrainSettings()), "grpo.steps": 20},
    {key: "a" * 64 for key in (TRAIN_TASKS, EVALUATION_TASKS, DATABASE, WEIGHTS, TOKENIZER, MANIFEST)},
    {"torch": "2.13.0"},
)


def after(**changes) -> Fingerprint:
    """`BEFORE` with some settings (a dot is __) or contents (`contents={...}`) changed."""
    contents = {**BEFORE.contents, **changes.pop("contents", {})}
    versions = changes.pop("versions", BEFORE.versions)
    settings = {key.replace("__", "."): value for key, value in changes.items()}
    assert set(settings) <= set(BEFORE.settings)
    return Fingerprint({**BEFORE.settings, **settings}, contents, versions)


def test_without_a_change_nothing_is_said():
    for states in (NOTHING, SFT_DONE, HALF, DONE):
        verdict = compare(BEFORE, after(), states)
        assert (verdict.refused, verdict.reported, verdict.evaluate_anew) == ([], [], False)


@pytest.mark.parametrize(
    "changes",
    [
        {"progress": False},
        {"format": "json"},
        {"logger__name": "none"},
        {"monitor__name": "observe"},
        {"hardware__threads": 3},
        {"grpo__checkpoint_every": 1},
        {"grpo__micro_batch_tokens": 512},
        {"grpo__share_prefix": False},
        {"sampler__max_in_flight": 2},
        {"evaluation__policies": ["base"]},
        {"domain__test": 7},
        {"versions": {"torch": "2.14.0"}},
    ],
    ids=str,
)
def test_a_harmless_change_is_reported_in_one_phrase(changes):
    for states in (HALF, DONE):
        verdict = compare(BEFORE, after(**changes), states)
        assert verdict.refused == [] and len(verdict.reported) == 1
        assert " -> " in verdict.reported[0] and not verdict.evaluate_anew


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seed": 1}, "seed 0 -> 1, but stage sft is complete"),
        ({"domain__seed": 4}, "domain.seed 0 -> 4"),
        ({"domain__name": "calendar"}, "domain.name itsm -> calendar"),
        ({"domain__tool_configs": ["oracle"]}, r"domain.tool_configs \['oracle', 'plus5'\] -> \['oracle'\]"),
        ({"fault__subtypes": ["timeout"]}, "fault.subtypes"),
        ({"model__context_tokens": 99}, "model.context_tokens"),
        ({"model__lora__rank": 8}, "model.lora.rank 0 -> 8"),
        ({"sft__batch_trajectories": 2}, "sft.batch_trajectories 8 -> 2, but stage sft is complete"),
        ({"grpo__groups": 3}, r"grpo.groups 16 -> 3, but stage grpo is half done \(10 steps\)"),
        ({"grpo__group_size": 8}, "grpo.group_size"),
        ({"grpo__kl": 0.5}, "grpo.kl 0.001 -> 0.5"),
        ({"grpo__clip_high": 0.5}, "grpo.clip_high"),
        ({"grpo__credit__enabled": False}, "grpo.credit.enabled true -> false"),
        ({"grpo__learning_rate": 1e-3}, "grpo.learning_rate 1e-06 -> 0.001"),
        ({"reward__progress": 0.0}, "reward.progress"),
        ({"reward_norm__name": "aggregate"}, "reward_norm.name component -> aggregate"),
        (
            {"run_fault__name": "reward_spike"},
            "run_fault.name none -> reward_spike, but stage grpo",
        ),
        ({"run_fault__strength": 0.5}, "run_fault.strength 1.0 -> 0.5"),
        (
            {"second_run_fault__name": "update_freeze"},
            "second_run_fault.name none -> update_freeze, but stage grpo",
        ),
        ({"sampler__temperature": 0.5}, "sampler.temperature"),
        ({"hardware__devices": 2}, "hardware.devices 1 -> 2, but stage grpo is half done"),
        ({"hardware__precision": "bf16-mixed"}, "hardware.precision"),
        (
            {"contents": {TRAIN_TASKS: "b" * 64}},
            r"domain tasks \(training split\) aaaaaaaaaaaa -> bbbbbbbbbbbb,",
        ),
        ({"contents": {DATABASE: "b" * 64}}, "domain.database"),
        ({"contents": {WEIGHTS: "b" * 64}}, r"model.checkpoint \(weights\)"),
        ({"contents": {TOKENIZER: "b" * 64}}, r"model.checkpoint \(tokenizer\)"),
    ],
    ids=str,
)
def test_a_change_that_would_lie_is_refused_with_old_and_new_value(changes, told):
    verdict = compare(BEFORE, after(**changes), HALF)
    assert len(verdict.refused) == 1 and verdict.reported == []
    assert re.match(told, verdict.refused[0]), verdict.refused[0]
    # Nothing is trained yet: everything may change.
    verdict = compare(BEFORE, after(**changes), NOTHING)
    assert verdict.refused == [] and len(verdict.reported) == 1


@pytest.mark.parametrize(
    "changes",
    [{"grpo__groups": 3}, {"reward__progress": 0.0}, {"sampler__name": "vllm"}, {"hardware__devices": 2}],
    ids=str,
)
def test_settings_of_a_stage_that_has_not_begun_are_free(changes):
    assert compare(BEFORE, after(**changes), SFT_DONE).refused == []
    assert compare(BEFORE, after(**changes), HALF).refused


def test_the_device_of_a_complete_stage_does_not_bind_the_evaluation():
    change = after(hardware__accelerator="gpu", hardware__precision="bf16-mixed")
    verdict = compare(BEFORE, change, DONE)
    assert verdict.refused == [] and len(verdict.reported) == 2 and not verdict.evaluate_anew


@pytest.mark.parametrize(
    ("steps", "states", "told"),
    [
        (30, HALF, None),
        (10, HALF, None),
        (9, HALF, "10 steps are done"),
        (30, DONE, "stage grpo is complete"),
        (5, SFT_DONE, None),
    ],
)
def test_the_number_of_steps_may_change_down_to_those_done(steps, states, told):
    verdict = compare(BEFORE, after(grpo__steps=steps), states)
    if told is None:
        assert verdict.refused == [] and verdict.reported == [f"grpo.steps 20 -> {steps}"]
    else:
        assert told in verdict.refused[0]


def test_a_linear_schedule_depends_on_its_number_of_steps():
    before = Fingerprint({**BEFORE.settings, "grpo.schedule": "linear"}, BEFORE.contents, BEFORE.versions)
    more = Fingerprint({**before.settings, "grpo.steps": 30}, before.contents, before.versions)
    verdict = compare(before, more, HALF)
    assert "learning rates of the 10 steps done depend on it (grpo.schedule=linear)" in verdict.refused[0]
    assert compare(before, more, SFT_DONE).refused == []
    (refused,) = compare(BEFORE, after(grpo__schedule="linear"), HALF).refused
    assert refused.startswith("grpo.schedule constant -> linear")


def test_a_stage_needs_the_stages_before_it():
    (refused,) = compare(BEFORE, after(stages=["grpo"]), HALF).refused
    assert refused.startswith("stages ['sft', 'grpo'] -> ['grpo'], but stage grpo, which is half done")
    assert compare(BEFORE, after(stages=["sft"]), HALF).refused == []
    assert compare(BEFORE, after(stages=["grpo"]), SFT_DONE).refused == []
    only_sft = Fingerprint({**BEFORE.settings, "stages": ["sft"]}, BEFORE.contents, BEFORE.versions)
    assert compare(only_sft, after(), SFT_DONE).reported == ["stages ['sft'] -> ['sft', 'grpo']"]


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation__cases": 5},
        {"evaluation__split": "val"},
        {"evaluation__conditions": ["clean"]},
        {"evaluation__temperature": 0.0},
        {"contents": {EVALUATION_TASKS: "b" * 64}},
        {"contents": {MANIFEST: "b" * 64}},
        {"contents": {MANIFEST: None}},
    ],
    ids=str,
)
def test_an_evaluation_of_other_settings_begins_anew(changes):
    verdict = compare(BEFORE, after(**changes), DONE)
    assert verdict.refused == [] and verdict.evaluate_anew and len(verdict.reported) == 1


def test_a_sampler_that_no_stage_used_still_binds_the_evaluation():
    verdict = compare(BEFORE, after(sampler__name="openai"), SFT_DONE)
    assert verdict.refused == [] and verdict.evaluate_anew


def test_what_only_one_version_knows_is_no_change():
    older = Fingerprint(
        {key: value for key, value in BEFORE.settings.items() if key != "grpo.whiten"},
        {key: value for key, value in BEFORE.contents.items() if key != TOKENIZER},
        BEFORE.versions,
    )
    for one, two in ((older, BEFORE), (BEFORE, older)):
        assert compare(one, two, HALF).refused == []


def test_every_harmless_key_exists():
    flat = flat_settings(TrainSettings())
    for name in HARMLESS:
        assert any(key == name or key.startswith(f"{name}.") for key in flat), name


# in a folder ----------------------------------------------------------------------------------------
@pytest.fixture
def settings(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return TrainSettings(
        domain=DomainSettings(name="itsm", train=2, val=0, test=2), model=ModelSettings(checkpoint=str(model))
    )


def start(settings, folder: Path, **options):
    return admit(settings, folder, open_catalog(settings.domain)[1], **options)


def checkpoint(folder: Path, stage: str, batches: int) -> None:
    checkpoints = Checkpoints(folder / "checkpoints" / stage)
    checkpoints.begin(batches)
    checkpoints.state(batches).write_bytes(b"state")
    checkpoints.finish(batches, batches)


def policy(folder: Path, stage: str) -> None:
    (folder / "checkpoints" / stage / "policy").mkdir(parents=True)
    (folder / "checkpoints" / stage / "policy" / "config.json").write_text("{}")


def test_the_first_start_is_kept_and_the_same_start_says_nothing(settings, tmp_path):
    folder = tmp_path / "run"
    first = start(settings, folder, overrides=["seed=0"])
    assert first.lines == [] and first.points == {"sft": None, "grpo": None}
    assert not folder.exists(), "nothing is written before `keep`"
    first.keep()
    body = json.loads((folder / "run.json").read_text())
    assert body["overrides"] == ["seed=0"] and body["settings"]["grpo.steps"] == 120
    policy(folder, "sft")
    checkpoint(folder, "grpo", 10)
    again = start(settings, folder, overrides=["seed=0"])
    assert again.lines == [] and not again.evaluate_anew
    assert again.points["grpo"].batches == 10 and "sft" not in again.points


def test_a_refused_start_leaves_the_record_and_names_key_values_and_a_way_out(settings, tmp_path):
    folder = tmp_path / "run"
    start(settings, folder).keep()
    policy(folder, "sft")
    checkpoint(folder, "grpo", 10)
    before = (folder / "run.json").read_bytes()
    other = dataclasses.replace(settings, seed=3)
    other.grpo.kl, other.grpo.groups, other.sft.epochs, other.reward.success = 0.2, 1, 9, 2.0
    with pytest.raises(
        ConfigError, match=r"cannot go on with .*seed 0 -> 3.*and 1 more; keep.*run folder"
    ) as e:
        start(other, folder)
    assert "\n" not in str(e.value) and str(folder) in str(e.value)
    assert (folder / "run.json").read_bytes() == before


def test_the_report_is_one_line(settings, tmp_path):
    folder = tmp_path / "run"
    start(settings, folder).keep()
    policy(folder, "sft")
    checkpoint(folder, "grpo", 10)
    settings.progress, settings.grpo.steps, settings.evaluation.cases = False, 130, 1
    admission = start(settings, folder)
    assert admission.lines == [
        "changed since the last start: progress true -> false, evaluation.cases null -> 1, "
        "grpo.steps 120 -> 130; evaluations begin anew"
    ]
    admission.keep()
    assert start(settings, folder).lines == []


def test_a_half_done_stage_that_is_left_out_for_a_while_still_binds(settings, tmp_path):
    folder = tmp_path / "run"
    start(settings, folder).keep()
    policy(folder, "sft")
    checkpoint(folder, "grpo", 10)
    settings.stages, settings.grpo.kl = ["sft"], 0.7
    with pytest.raises(ConfigError, match=r"grpo\.kl 0\.001 -> 0\.7, but stage grpo is half done"):
        start(settings, folder)


def test_a_model_that_has_gone_is_not_a_change(settings, tmp_path):
    folder = tmp_path / "run"
    start(settings, folder).keep()
    policy(folder, "sft")
    digest = json.loads((folder / "run.json").read_text())["contents"][WEIGHTS]
    (tmp_path / "model" / "config.json").unlink()
    admission = start(settings, folder)
    assert admission.lines == [] and admission.record["contents"][WEIGHTS] == digest


def test_a_folder_without_a_record_is_told_of(settings, tmp_path):
    checkpoint(tmp_path, "sft", 2)
    (line,) = start(settings, tmp_path).lines
    assert "run.json is absent" in line


def test_a_damaged_checkpoint_is_told_of_and_an_unreadable_record_is_refused(settings, tmp_path):
    for batches in (1, 2):
        checkpoint(tmp_path, "sft", batches)
    (tmp_path / "checkpoints" / "sft" / "step-00000002" / "state.ckpt").write_bytes(b"")
    admission = start(settings, tmp_path)
    assert "step-00000002 is damaged" in admission.lines[0] and admission.points["sft"].batches == 1
    for text, told in (("{", "not valid JSON"), ("[]", "no run record"), ("{}", "no run record")):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(ConfigError, match=told):
            start(settings, tmp_path)
    admission.keep()
    body = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**body, "format": 99}))
    with pytest.raises(ConfigError, match="format 99, this version reads format 1"):
        start(settings, tmp_path)


def test_a_stage_is_complete_with_a_whole_policy(tmp_path):
    (tmp_path / "checkpoints" / "sft" / "policy.partial").mkdir(parents=True)
    assert not stage_complete(tmp_path, "sft")
    policy(tmp_path, "sft")
    assert stage_complete(tmp_path, "sft")
