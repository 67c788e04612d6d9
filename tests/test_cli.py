"""The command line: help, errors in one line, exit status, JSON, sweeps, resuming, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from robustops import __version__, cli
from robustops.commands import runner, train
from robustops.commands.runner import Context
from robustops.commands.saved import evaluated, quote, resumed
from robustops.errors import TrainingError
from robustops.settings import TrainSettings


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in cli.ENVIRONMENT:
        monkeypatch.setenv(name, os.environ.get(name, cli.ENVIRONMENT[name]))
    return tmp_path


def errors_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit status, and standard error, which has to be exactly one line."""
    status = cli.main(list(arguments))
    text = capsys.readouterr().err
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    return status, text.strip()


def fake_train(monkeypatch: pytest.MonkeyPatch, body: Any) -> list[TrainSettings]:
    """Replace the work of `train`, to look at what reaches it."""
    seen: list[TrainSettings] = []

    def run(settings: TrainSettings, context: Context) -> dict[str, Any]:
        seen.append(settings)
        return body(settings, context) or {}

    monkeypatch.setattr(train, "run", run)
    return seen


# help ---------------------------------------------------------------------------------------------
def test_help_is_fast_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; from robustops.cli import main; main(['--help']); "
        "heavy = [n for n in ('torch', 'lightning', 'hydra', 'omegaconf', 'transformers', 'numpy', 'rich', "
        "'pydantic') if n in sys.modules]; sys.exit(str(heavy) if heavy else 0)"
    )
    begin = time.monotonic()
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    seconds = time.monotonic() - begin
    assert found.returncode == 0, found.stderr
    assert all(f"  {name} " in found.stdout for name in cli.COMMANDS)
    assert seconds < 1.0


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"robustops {__version__}\n"


def test_without_a_command_the_usage_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("usage: robustops <command>")


@pytest.mark.parametrize("command", ["train", "serve", "doctor"])
def test_help_of_a_command_lists_groups_and_values(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"robustops {command}" in text
    assert "fault: all, ignored_filter, incomplete_read" in text
    assert "seed: 0" in text


def test_cfg_prints_the_composed_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "-c", "job", "grpo.steps=7"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["grpo"]["steps"] == 7


# wrong requests -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["trian"], ["unknown command 'trian'", "did you mean 'train'", "evaluate"]),
        (["train", "domian=itsm"], ["unknown key 'domian'", "did you mean 'domain'", "grpo"]),
        (["train", "experimnt=smoke"], ["did you mean 'experiment'"]),
        (["train", "grpo.stpes=3"], ["did you mean 'grpo.steps'", "keys of 'grpo'", "clip_high"]),
        (["train", "steps=3"], ["did you mean 'grpo.steps'"]),
        (["train", "+grpo.stpes=3"], ["unknown key 'grpo.stpes'", "clip_high"]),
        (["train", "++speed=3"], ["unknown key 'speed'"]),
        (["train", "domain=itms"], ["unknown choice domain=itms", "did you mean 'itsm'", "calendar, itsm"]),
        (["train", "experiment=[smoke,nix]"], ["experiment=nix", "quickstart, "]),
        (["train", "grpo.steps=abc"], ["grpo.steps=abc has the wrong type", "a whole number"]),
        (["train", "second_run_fault=x"], ["keys: name, mech", "with run_fault@second_run_fault=CHOICE"]),
        (["train", "grpo.steps=2.5"], ["a whole number"]),
        (["train", "progress=maybe"], ["true or false"]),
        (["train", "stages=sft"], ["a list, written [a,b]", "sft, grpo"]),
        (["train", "sft.max_steps=x"], ["a whole number or null"]),
        (["train", "grpo={steps: x}"], ["grpo.steps takes a whole number"]),
        (["train", "seed=null"], ["seed takes a whole number"]),
        (["train", "model.architecture=3"], ["model.architecture takes a mapping, written {key: value}"]),
        (["train", "model.architecture.hidden_size=8"], ["write +model.architecture.hidden_size=VALUE"]),
        (["train", "grpo=3"], ["unknown choice grpo=3", "default, quickstart, smoke"]),
        (["train", "seed=[1"], ["cannot read 'seed=[1'", "key=value"]),
        (["train", "smoke"], ["cannot read 'smoke'"]),
        (["train", "grpo.steps=1,2"], ["--multirun"]),
        (["train", "grpo.steps=${nix}"], ["nix"]),
        (["train", "--nix"], ["--nix", "train --help"]),
        (["train", "hydra.run.dirr=x"], ["hydra.run.dir"]),
        (["train", "evaluation.policies=[nix]"], ["choose some of: base, sft, grpo"]),
        (["train", "fault=all"], ["held out of all training"]),
        (["train", "resume=nix"], ["no run in 'nix'"]),
        (["train", "-m", "resume=nix"], ["leave out --multirun"]),
        (["evaluate", "run=nix"], ["no run in 'nix'"]),
        (["train", "-cd", "nix"], ["nix"]),
        (["replay"], ["calls=FILE"]),
        (["serve", "format=json"], ["stdio"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value else None,
)
def test_a_wrong_request_is_one_line_that_names_what_is_allowed(
    arguments: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, line = errors_of(capsys, *arguments)
    assert status == 2
    assert line.startswith("robustops: error: ")
    for part in parts:
        assert part in line


def test_a_broken_config_of_the_users_own_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "own" / "domain"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("nme: itsm\n")
    (folder / "broken.yaml").write_text("name: [\n")
    status, line = errors_of(capsys, "train", "--config-dir", "own", "domain=mine")
    assert status == 2 and "nme" in line
    status, line = errors_of(capsys, "train", "--config-dir", "own", "domain=broken")
    assert status == 2 and "broken.yaml" in line


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(settings: TrainSettings, context: Context) -> None:
        raise ZeroDivisionError("a bug")

    fake_train(monkeypatch, bug)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        cli.main(["train"])


def test_a_value_error_in_the_work_is_no_wrong_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(settings: TrainSettings, context: Context) -> None:
        raise ValueError("a bug")

    fake_train(monkeypatch, bug)
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["train"])


# results ------------------------------------------------------------------------------------------
def test_json_is_the_last_line_and_holds_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "format=json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["robustops"] == __version__
    assert report["packages"]["torch"] and report["cpu_cores"] >= 1
    assert set(report["can_run"]) >= {"experiment=quickstart", "sampler=vllm", "hardware=gpu_1"}


def test_errors_in_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["train", "domain=nix", "format=json"]) == 2
    body = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    assert body["kind"] == "ConfigError" and "calendar, itsm" in body["message"]

    def fail(settings: TrainSettings, context: Context) -> None:
        raise TrainingError("nothing completed")

    fake_train(monkeypatch, fail)
    assert cli.main(["train", "format=json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["error"]["exit_status"] == 1
    assert captured.err == "robustops: error: nothing completed\n"


def test_numbers_that_json_lacks_become_null(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_train(monkeypatch, lambda settings, context: {"loss": [float("nan"), 1.0], "place": Path("x")})
    assert cli.main(["train", "format=json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"loss": [None, 1.0], "place": "x"}


def test_the_run_folder_is_hydras_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folders: list[Path] = []
    seen = fake_train(monkeypatch, lambda settings, context: folders.append(context.run_dir))
    assert cli.main(["train", "experiment=smoke", "grpo.steps=3"]) == 0
    assert folders[0].parent.parent == tmp_path / "outputs"
    assert Path(seen[0].paths.run_dir) == folders[0]
    assert Path.cwd() == tmp_path
    saved = yaml.safe_load((folders[0] / ".hydra" / "overrides.yaml").read_text())
    assert saved == ["experiment=smoke", "grpo.steps=3"]


def test_commands_without_a_run_folder_leave_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    assert "experiment=quickstart" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


# sweeps -------------------------------------------------------------------------------------------
def test_an_experiment_may_be_a_sweep_and_is_run_as_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_train(monkeypatch, lambda settings, context: {"pair": [settings.reward_norm.name, settings.seed]})
    assert cli.main(["train", "experiment=ablation_reward_norm", "format=json"]) == 0
    runs = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
    assert [run["pair"] for run in runs] == [
        [order, seed] for order in ("aggregate", "component") for seed in (0, 1, 2)
    ]
    assert len({run["run_dir"] for run in runs}) == 6
    assert Path(runs[0]["run_dir"]).is_relative_to(tmp_path / "multirun")


def test_a_sweep_of_four_leaves_four_folders_with_telling_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_train(monkeypatch, lambda settings, context: {"pair": [settings.domain.name, settings.fault.name]})
    arguments = [
        "train",
        "-m",
        "experiment=smoke",
        "domain=itsm,calendar",
        "fault=none,trained",
        "format=json",
    ]
    assert cli.main(arguments) == 0
    runs = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
    expected = [["itsm", "none"], ["itsm", "trained"], ["calendar", "none"], ["calendar", "trained"]]
    assert [run["pair"] for run in runs] == expected
    folders = [Path(run["run_dir"]) for run in runs]
    assert len(set(folders)) == 4 and all((folder / ".hydra").is_dir() for folder in folders)
    assert folders[0].name == "0-domain-itsm-fault-none"
    assert folders[0].parent.parent.parent == tmp_path / "multirun"


def test_one_failed_run_does_not_stop_a_sweep(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def sometimes(settings: TrainSettings, context: Context) -> dict[str, int]:
        if settings.seed == 1:
            raise TrainingError("no luck")
        return {"seed": settings.seed}

    seen = fake_train(monkeypatch, sometimes)
    assert cli.main(["train", "-m", "seed=0,1,2", "format=json"]) == 1
    assert [settings.seed for settings in seen] == [0, 1, 2]
    captured = capsys.readouterr()
    runs = json.loads(captured.out.splitlines()[-1])["runs"]
    assert [run.get("seed") for run in runs] == [0, None, 2]
    assert captured.err.count("robustops: error: no luck") == 1


def test_slug_is_a_plain_folder_name() -> None:
    assert runner.slug("domain=itsm,stages=[sft, grpo],a=x/y") == "domain-itsm-stages-sft-grpo-a-x-y"
    assert len(runner.slug("x" * 500)) <= 120


# going on with a run ------------------------------------------------------------------------------
def test_resume_goes_on_in_the_same_folder_with_the_same_overrides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders: list[Path] = []
    seen = fake_train(monkeypatch, lambda settings, context: folders.append(context.run_dir))
    cli.main(["train", "experiment=smoke", "grpo.steps=9", "domain=calendar", "seed=4"])
    place = str(folders[0].relative_to(tmp_path))
    assert cli.main(["train", f"resume={place}", "grpo.steps=11"]) == 0
    assert cli.main(["train", f"resume={place}"]) == 0
    assert folders == [folders[0]] * 3
    assert [settings.grpo.steps for settings in seen] == [9, 11, 11]
    assert [settings.seed for settings in seen] == [4, 4, 4]
    assert seen[2].domain.name == "calendar" and seen[2].sft.name == "smoke"


def test_resume_replaces_saved_overrides_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    (tmp_path / "run" / ".hydra" / "overrides.yaml").write_text("[domain=itsm, resume=old, grpo.steps=3]")
    overrides = ["resume=run", "domain=calendar"]
    assert resumed(overrides) == ["grpo.steps=3", *overrides, "hydra.run.dir='run'", "hydra.mode=RUN"]


def test_a_point_of_an_experiment_that_is_a_sweep_is_resumed_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_train(monkeypatch, lambda settings, context: {"pair": [settings.reward_norm.name, settings.seed]})
    assert cli.main(["train", "experiment=ablation_reward_norm", "format=json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"][-1]
    assert cli.main(["train", f"resume={last['run_dir']}", "format=json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["pair"] == last["pair"] == ["component", 2]


def test_evaluate_takes_over_the_world_and_model_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    fake_train(monkeypatch, lambda settings, context: folders.append(context.run_dir))
    cli.main(["train", "experiment=smoke", "domain=calendar", "domain.test=9", "domain.database='a b.json'"])
    taken = evaluated([f"run={folders[0]}", "domain.val=5", "evaluation.attempts=2"])
    assert "domain=calendar" in taken and "domain.test=9" in taken and "domain.database='a b.json'" in taken
    assert "evaluation.cases=4" in taken
    assert [text for text in taken if text.startswith("domain.val")] == ["domain.val=5"]
    assert [text for text in taken if text.startswith("evaluation.attempts")] == ["evaluation.attempts=2"]
    assert not [text for text in taken if text.startswith(("grpo", "sft", "evaluation.policies"))]
    assert not [text for text in evaluated([f"run={folders[0]}", "domain=itsm"]) if "calendar" in text]
    reached: list[Any] = []
    monkeypatch.setattr(
        "robustops.commands.evaluate.run", lambda settings, context: reached.append(settings) or {}
    )
    assert cli.main(["evaluate", f"run={folders[0]}", "policies=[sft]"]) == 0
    assert (reached[0].domain.name, reached[0].domain.test, reached[0].domain.database) == (
        "calendar",
        9,
        "a b.json",
    )
    assert reached[0].evaluation.policies == ["sft"] and reached[0].evaluation.cases == 4


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (3, "3"),
        ("it's", r"'it\'s'"),
        ([1, ["a"]], "[1,['a']]"),
        (1e-06, "1e-06"),
    ],
)
def test_values_in_hydras_grammar(value: Any, text: str) -> None:
    assert quote(value) == text


# Ctrl-C -------------------------------------------------------------------------------------------
def test_ctrl_c_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(settings: TrainSettings, context: Context) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    before = signal.getsignal(signal.SIGINT)
    fake_train(monkeypatch, interrupted)
    assert cli.main(["train", "hydra.run.dir=here"]) == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "robustops: interrupted; resume with: robustops train resume=here"
    assert signal.getsignal(signal.SIGINT) is before


def test_offline_is_the_default_and_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    fake_train(monkeypatch, lambda settings, context: None)
    cli.main(["train"])
    assert (os.environ["WANDB_MODE"], os.environ["HF_HUB_OFFLINE"]) == ("offline", "0")
