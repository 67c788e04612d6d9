"""`robustops train` on two devices: real processes, DeepSpeed ZeRO-2 on the CPU."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from torch import distributed

from robustops.commands import launch
from robustops.commands.launch import (
    INTERRUPTED,
    _signals_restored,
    as_worker,
    is_worker,
    needs_workers,
    run_workers,
)
from robustops.commands.runner import LAUNCHER, Context, prints_results
from robustops.errors import ConfigError, TrainingError
from robustops.settings import HardwareSettings, TrainSettings
from tests.learning.run_folders import telemetry
from tests.learning.small_run import LIMITS, memorised_policy

ROOT = Path(__file__).resolve().parents[2]
SFT_STEPS = 4
OVERRIDES = [
    *("hardware=cpu_deepspeed", "hardware.threads=1", "logger=csv", "format=json", "progress=false"),
    *("domain.train=3", "domain.val=0", "domain.test=0", "domain.tool_configs=[oracle]"),
    *(f"model.context_tokens={LIMITS.context_tokens}", f"model.answer_tokens={LIMITS.answer_tokens}"),
    *(f"model.max_turns={LIMITS.max_turns}", "sampler.max_in_flight=32", "sft.learning_rate=1e-3"),
    *("sft.epochs=9", f"sft.max_steps={SFT_STEPS}", "sft.batch_trajectories=3", "sft.checkpoint_every=1"),
    *("grpo.steps=1", "grpo.groups=1", "grpo.fault_groups=1", "grpo.group_size=2", "grpo.refill_rounds=0"),
    *("evaluation.split=train", "evaluation.cases=1", "evaluation.policies=[grpo]"),
    "evaluation.conditions=[clean]",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    memorised_policy().save(folder)
    return folder


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "robustops.cli", "train", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers_of(process: subprocess.Popen[str]) -> dict[str, psutil.Process]:
    """Worker processes by rank."""
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        environment = child.environ()
        if environment.get(LAUNCHER) == str(process.pid):
            found[environment["RANK"]] = child
    return found


def wait_for_step(process: subprocess.Popen[str], folder: Path, step: int) -> None:
    lines = folder / "telemetry.jsonl"
    while process.poll() is None and not (lines.exists() and len(lines.read_bytes().splitlines()) >= step):
        time.sleep(0.02)


def assert_gone(workers: dict[str, psutil.Process]) -> None:
    _, alive = psutil.wait_procs(list(workers.values()), timeout=20)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def sweep(model, tmp_path_factory):
    """Folder and answer of a sweep of two points on two devices."""
    folder = tmp_path_factory.mktemp("sweep")
    overrides = [*OVERRIDES, f"model.checkpoint={model}", f"hydra.sweep.dir={folder}"]
    out, err = (process := start("-m", *overrides, "seed=1,2", "hydra.sweep.subdir=${seed}")).communicate()
    assert process.returncode == 0, err[-4000:]
    return folder, out


@pytest.mark.slow
def test_a_sweep_of_two_points_on_two_devices_makes_two_run_folders(sweep):
    folder, out = sweep
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["1", "2"]
    runs = json.loads(out)["runs"]
    assert len(out.splitlines()) == 1 and len(runs) == 2
    for seed, answer in zip(("1", "2"), runs, strict=True):
        kept = json.loads((folder / seed / "summary.json").read_text())
        assert answer["run"]["config"]["seed"] == kept["run"]["seed"] == int(seed)
        assert answer["evaluations"] == kept["evaluations"] and "grpo" in kept["evaluations"]
        assert len(telemetry(folder / seed).splitlines()) == SFT_STEPS + 1
        assert len(list((folder / seed / "csv").iterdir())) == 1, "one process logs"
    assert telemetry(folder / "1") != telemetry(folder / "2")


@pytest.fixture(scope="module")
def killed(model, tmp_path_factory):
    """A run of which rank 1 was killed: its folder, exit status, output, and what was left of it."""
    folder = tmp_path_factory.mktemp("killed")
    overrides = [*OVERRIDES, f"model.checkpoint={model}", f"hydra.run.dir={folder}"]
    process = start(*overrides, "seed=1")
    wait_for_step(process, folder, 2)
    workers = workers_of(process)
    workers["1"].kill()
    out, err = process.communicate(timeout=60)
    return SimpleNamespace(folder=folder, status=process.returncode, out=out, err=err, workers=workers)


@pytest.mark.slow
def test_one_rank_dying_ends_the_whole_run_with_an_error(killed):
    assert killed.status == 1 and sorted(killed.workers) == ["0", "1"]
    error = json.loads(killed.out.splitlines()[-1])["error"]
    assert error["kind"] == "TrainingError"
    assert "process 1 was ended by SIGKILL" in error["message"]
    assert f"resume={killed.folder}" in killed.err
    assert_gone(killed.workers)


@pytest.mark.slow
def test_a_killed_deepspeed_run_goes_on_as_if_it_had_not_been_killed(sweep, killed):
    state = killed.folder / "checkpoints" / "sft"
    assert any(path.is_dir() for path in state.glob("step-*/state.ckpt")), "DeepSpeed writes a directory"
    out, err = (process := start(f"resume={killed.folder}")).communicate()
    assert process.returncode == 0, err[-4000:]
    whole = sweep[0] / "1"
    assert telemetry(killed.folder) == telemetry(whole)
    for stage in ("sft", "grpo"):
        weights = Path("checkpoints", stage, "policy", "model.safetensors")
        assert (killed.folder / weights).read_bytes() == (whole / weights).read_bytes()
    assert json.loads(out)["evaluations"] == json.loads((whole / "summary.json").read_text())["evaluations"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_workers_end_with_the_process_that_started_them(model, tmp_path, number):
    overrides = [*OVERRIDES, f"model.checkpoint={model}", f"hydra.run.dir={tmp_path}"]
    process = start(*overrides, "sft.max_steps=900", "sft.epochs=900")
    wait_for_step(process, tmp_path, 1)
    workers = workers_of(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert len(workers) == 2
    assert_gone(workers)
    if number == signal.SIGINT:
        assert process.returncode == INTERRUPTED
        assert (
            err.splitlines()[-1] == f"robustops: interrupted; resume with: robustops train resume={tmp_path}"
        )


@pytest.mark.slow
def test_what_one_worker_refuses_is_said_once_with_its_exit_status(model, tmp_path):
    overrides = [*OVERRIDES, f"model.checkpoint={tmp_path}/absent", f"hydra.run.dir={tmp_path}"]
    out, err = (process := start(*overrides)).communicate()
    assert process.returncode == ConfigError.exit_status
    assert json.loads(out)["error"]["kind"] == "ConfigError"
    assert err.count("no model in") == 1 and "Traceback" not in err


# decisions, without processes -----------------------------------------------------------------------
DEEPSPEED = HardwareSettings("cpu_deepspeed", devices=2, strategy="deepspeed_stage_2")


def settings(hardware: HardwareSettings) -> TrainSettings:
    return TrainSettings(hardware=hardware)


def context(tmp_path: Path, **options: bool) -> Context:
    return Context(tmp_path, {}, ("seed=1",), **options)


def work(hardware: HardwareSettings, here: Context, error: BaseException | None = None) -> None:
    with as_worker(settings(hardware), here):
        if error is not None:
            raise error


def torchrun(monkeypatch, size: int, rank: int = 0) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(size))
    monkeypatch.setenv("RANK", str(rank))


@pytest.mark.parametrize(
    ("hardware", "wanted"),
    [
        (HardwareSettings(), False),
        (DEEPSPEED, True),
        (HardwareSettings(devices=2), True),
        (HardwareSettings(strategy="deepspeed_stage_2"), True),
    ],
    ids=["one process", "two", "two of any kind", "deepspeed on one device"],
)
def test_who_needs_workers(monkeypatch, hardware, wanted):
    assert needs_workers(hardware) is wanted
    torchrun(monkeypatch, 2)
    assert is_worker() and not needs_workers(hardware)


def test_several_machines_are_for_torchrun(tmp_path):
    hardware = HardwareSettings("multinode", devices=8, num_nodes=2, strategy="deepspeed_stage_3")
    with pytest.raises(
        ConfigError, match=r"2 machines.*torchrun --nnodes 2 --nproc-per-node 8.*hydra\.run\.dir"
    ):
        run_workers(settings(hardware), context(tmp_path))


@pytest.mark.parametrize(
    "options", [{}, {"fixed_dir": True, "multirun": True}], ids=["own folders", "a sweep"]
)
def test_torchrun_without_one_run_folder_is_refused(monkeypatch, tmp_path, options):
    torchrun(monkeypatch, 2)
    with pytest.raises(ConfigError, match=r"one run folder.*hydra\.run\.dir"):
        work(DEEPSPEED, context(tmp_path, **options))


@pytest.mark.parametrize(("hardware", "size"), [(HardwareSettings(), 2), (DEEPSPEED, 4)])
def test_torchrun_with_another_number_of_processes_is_refused(monkeypatch, tmp_path, hardware, size):
    torchrun(monkeypatch, size)
    with pytest.raises(ConfigError, match=rf"torchrun started {size} processes.*hardware\.devices"):
        work(hardware, context(tmp_path, fixed_dir=True))


def test_a_worker_of_torchrun_works_and_its_errors_come_through(monkeypatch, tmp_path):
    torchrun(monkeypatch, 2, rank=1)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    work(DEEPSPEED, context(tmp_path, fixed_dir=True))
    with pytest.raises(TrainingError):
        work(DEEPSPEED, context(tmp_path, fixed_dir=True), TrainingError("nothing\ncompleted"))
    kept = json.loads((tmp_path / "error.json").read_text())
    assert kept["message"]["message"] == "TrainingError: nothing completed"
    assert not prints_results()


@pytest.mark.parametrize(
    ("error", "status"),
    [(ConfigError("no"), 2), (TrainingError("no"), 1), (KeyboardInterrupt(), INTERRUPTED)],
)
def test_a_worker_that_was_launched_leaves_the_telling_to_its_launcher(monkeypatch, tmp_path, error, status):
    torchrun(monkeypatch, 2)
    monkeypatch.setenv(LAUNCHER, "1")
    monkeypatch.setattr(launch, "_end_with", lambda launcher: None)
    with pytest.raises(SystemExit) as stop:
        work(DEEPSPEED, context(tmp_path, fixed_dir=True), error)
    assert stop.value.code == status


def error_of(text: str, *, rank: int = 0, lost_peer: bool = False, at: float = 1.0) -> dict[str, Any]:
    extra = {"rank": rank, "lost_peer": lost_peer, "at": at, "timestamp": str(int(at))}
    return {"message": {"message": text, "extraInfo": extra}}


@pytest.mark.parametrize(
    ("statuses", "errors", "kind", "message"),
    [
        (
            {0: 1, 1: -9},
            [error_of("RuntimeError: closed", lost_peer=True)],
            TrainingError,
            "1 was ended by SIGKILL",
        ),
        ({0: 1, 1: -15}, [error_of("KeyError: 'x'")], TrainingError, "process 0 failed: KeyError: 'x'"),
        (
            {1: 1},
            [error_of("DistError: gone", rank=1, lost_peer=True), error_of("ConfigError: no: model", at=2.0)],
            ConfigError,
            "^no: model$",
        ),
        (
            {0: 1, 1: 1},
            [error_of("TrainingError: late", at=3.0), error_of("TrainingError: early", rank=1, at=2.0)],
            TrainingError,
            "^early$",
        ),
        ({1: 3}, [], TrainingError, "process 1 ended with exit status 3"),
    ],
    ids=["killed", "a bug", "a lost peer is noticed first", "the earlier one", "nothing recorded"],
)
def test_the_failure_that_is_told_is_the_one_that_the_others_come_from(
    tmp_path, statuses, errors, kind, message
):
    for number, error in enumerate(errors):
        folder = tmp_path / "run_x" / "attempt_0" / str(number)
        folder.mkdir(parents=True)
        (folder / "error.json").write_text(json.dumps(error))
    told = launch._failure(statuses, launch._recorded(tmp_path), tmp_path, tmp_path)
    assert type(told) is kind
    assert re.search(message, str(told))


def test_an_error_out_of_communication_has_no_news_of_its_own(monkeypatch, tmp_path):
    torchrun(monkeypatch, 2)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    for cause, lost in ((lambda: distributed.new_group([99]), True), (lambda: {}["x"], False)):
        with (
            pytest.raises((ValueError, KeyError)),
            as_worker(settings(DEEPSPEED), context(tmp_path, fixed_dir=True)),
        ):
            cause()
        assert launch._recorded(tmp_path)[0].lost_peer is lost


def test_signal_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with _signals_restored():
        signal.signal(signal.SIGTERM, lambda *_: None)
    assert signal.getsignal(signal.SIGTERM) is before
