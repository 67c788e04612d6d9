"""What `resume=` and `run=` take over from a run folder that was killed, or that refused a start."""

from __future__ import annotations

import json

import pytest
import yaml

from robustops.commands.saved import branched, evaluated, name_of, resumed
from robustops.errors import ConfigError
from robustops.tracking.run_record import read_record, write_record


@pytest.fixture
def folder(tmp_path):
    hydra = tmp_path / "run" / ".hydra"
    hydra.mkdir(parents=True)
    # What the last start asked for; it was refused, or killed while these files were written.
    (hydra / "overrides.yaml").write_text(yaml.safe_dump(["domain=calendar", "seed=9"]))
    (hydra / "config.yaml").write_text(yaml.safe_dump({"domain": {"name": "calendar", "test": 5}}))
    choices = {"domain": "calendar", "fault": "trained"}
    (hydra / "hydra.yaml").write_text(yaml.safe_dump({"hydra": {"runtime": {"choices": choices}}}))
    return tmp_path / "run"


def record(folder, overrides):
    settings = {"domain.name": "itsm", "domain.test": 3, "domain.database": None, "grpo.steps": 4, "seed": 1}
    write_record(
        folder, {"overrides": overrides, "settings": settings, "contents": {"x": None}, "versions": {}}
    )


def test_resume_takes_the_accepted_overrides_not_those_that_were_refused(folder):
    record(folder, ["domain=itsm", "seed=1", "resume=old"])
    given = [f"resume={folder}", "grpo.steps=8"]
    assert resumed(given)[:5] == ["domain=itsm", "seed=1", *given, f"hydra.run.dir='{folder}'"]


def test_a_half_written_hydra_folder_does_not_change_what_is_resumed(folder):
    record(folder, ["domain=itsm", "seed=1"])
    (folder / ".hydra" / "overrides.yaml").write_text("")
    assert resumed([f"resume={folder}"])[:2] == ["domain=itsm", "seed=1"]


def test_a_run_that_was_killed_before_it_began_is_not_resumed_with_defaults(folder):
    (folder / ".hydra" / "overrides.yaml").write_text("")
    with pytest.raises(ConfigError, match="stopped before it began; start it again"):
        resumed([f"resume={folder}"])


@pytest.mark.parametrize("with_record", [False, True])
def test_a_run_that_the_command_line_did_not_start_falls_back_to_hydras_files(folder, with_record):
    if with_record:
        record(folder, None)
    assert resumed([f"resume={folder}"])[:2] == ["domain=calendar", "seed=9"]


def test_a_branch_takes_the_overrides_of_its_parent_but_not_its_folder(folder):
    given = [f"branch={folder}", "grpo.kl=0.5", "branch_step=3"]
    taken = branched(given)
    assert taken[-3:] == given and not any("hydra.run.dir" in text for text in taken)
    assert [name_of(text) for text in taken[:-3]] == [
        name for name in map(name_of, resumed([f"resume={folder}"])[:-3]) if name != "grpo.kl"
    ]
    with pytest.raises(ConfigError, match="give one of them"):
        branched([*given, "resume=x"])
    assert branched(["seed=3"]) == ["seed=3"]


def test_evaluate_takes_the_accepted_settings(folder):
    record(folder, [])
    taken = evaluated([f"run={folder}"])
    assert taken[:4] == ["domain=calendar", "domain.name='itsm'", "domain.test=3", "domain.database=null"]
    assert not [text for text in taken if text.startswith(("grpo", "seed"))]
    (folder / "run.json").unlink()
    assert evaluated([f"run={folder}"])[:3] == ["domain=calendar", "domain.name='calendar'", "domain.test=5"]


def test_a_record_comes_back_as_it_was_written(folder):
    assert read_record(folder) is None
    record(folder, ["a=1"])
    body = read_record(folder)
    assert body == json.loads((folder / "run.json").read_text()) and body["overrides"] == ["a=1"]
    assert body["format"] == 1 and body["settings"]["domain.test"] == 3


def test_a_group_that_a_config_has_twice_is_told_apart_by_its_package():
    assert name_of("run_fault=reward_spike") == "run_fault"
    assert name_of("+run_fault@second_run_fault=update_freeze") == "second_run_fault"
    assert name_of("~grpo.kl=a@b") == "grpo.kl"
