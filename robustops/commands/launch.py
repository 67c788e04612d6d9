"""Several processes for one job: start them, wait for them, and what is different inside one of them.

`robustops train` with a hardware profile for several devices starts one process a device (a worker) and
waits. On several machines the user starts `torchrun ... -m robustops.cli train ...` on each of them, which
does the same. Workers run the same command with the same overrides in one run folder. The worker of rank 0
prints and writes; what the others print is in `processes/` of the run folder.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustops.commands.machine import cores
from robustops.commands.runner import LAUNCHER, Context
from robustops.commands.saved import quote
from robustops.errors import ConfigError, RobustOpsError, TrainingError
from robustops.files import read_json
from robustops.settings import HardwareSettings, TrainSettings

#: Exit status after Ctrl-C, as shells expect of SIGINT.
INTERRUPTED = 130
#: Seconds between two looks at the workers, and at whoever started this one.
PERIOD = 0.2
#: Seconds that workers get to end after Ctrl-C.
GRACE = 30


def needs_workers(hardware: HardwareSettings) -> bool:
    """Whether this process is to start others that do the work."""
    from robustops.learning.hardware import group_size

    return group_size(hardware) > 0 and not is_worker()


def is_worker() -> bool:
    """Whether torchrun, or `run_workers`, started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run_workers(settings: TrainSettings, context: Context) -> dict[str, Any]:
    """Run the job in one process a device; returns the content of its `summary.json`.

    Raises:
        ConfigError: a worker refused the request; or the profile is for several machines.
        TrainingError: a worker failed or was killed; the others were ended.
        KeyboardInterrupt: Ctrl-C here; the workers have ended.
    """
    if settings.hardware.num_nodes > 1:
        raise ConfigError(_torchrun(settings.hardware))
    command = ["-u", "-m", "robustops.cli", "train", *_arguments(context)]
    with _environment(settings.hardware), _quiet_elastic(), _signals_restored():
        _start(settings.hardware, context, command)
    summary: dict[str, Any] = read_json(context.run_dir / "summary.json", what="summary")
    return summary


@contextmanager
def as_worker(settings: TrainSettings, context: Context) -> Iterator[None]:
    """Around the work of one process: nothing special, unless it is a worker.

    Raises:
        ConfigError: torchrun started workers that the profile does not ask for, or that would not share a
            run folder.
    """
    if not is_worker():
        yield
        return
    _check_start(settings.hardware, context)
    launched = LAUNCHER in os.environ
    if launched:
        _end_with(int(os.environ[LAUNCHER]))
    try:
        yield
    except BaseException as error:
        _record(error)
        if launched and (isinstance(error, RobustOpsError) or _lost_peer(error)):
            raise SystemExit(getattr(error, "exit_status", 1)) from error  # the launcher tells of it
        if launched and isinstance(error, KeyboardInterrupt):
            raise SystemExit(INTERRUPTED) from error
        raise


# starting -----------------------------------------------------------------------------------------
def _start(hardware: HardwareSettings, context: Context, command: Sequence[str]) -> None:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    stamp = time.strftime("%Y%m%d-%H%M%S")
    logs = context.run_dir / "processes" / stamp
    others = {rank: Std.ALL for rank in range(1, hardware.devices)}
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=hardware.devices,
        logs_specs=DefaultLogsSpecs(str(logs), redirects=others),
        run_id=stamp,
        rdzv_endpoint="localhost:0",
        rdzv_backend="c10d",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=PERIOD,
        shutdown_timeout=GRACE,
    )
    try:
        elastic_launch(config, sys.executable)(*command)
    except SignalException as stop:
        if stop.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + stop.sigval) from None
    except ChildFailedError as error:
        statuses = {rank: failure.exitcode for rank, failure in error.failures.items()}
        raise _failure(statuses, _recorded(logs), logs, context.run_dir) from None


def _arguments(context: Context) -> list[str]:
    """The command line of a worker: this job, in this folder, whatever sweep it is a point of."""
    folder = f"hydra.run.dir={quote(str(context.run_dir))}"
    return [*context.flags, *context.overrides, folder, "hydra.mode=RUN", "hydra.output_subdir=null"]


@dataclass(frozen=True)
class WorkerError:
    """An exception that ended a worker. text: with its type; lost_peer: it only says that another process
    is gone; at: when, in seconds.
    """

    rank: int
    text: str
    lost_peer: bool
    at: float


def _recorded(logs: Path) -> list[WorkerError]:
    """What workers left behind, the ones that tell most first."""
    found = []
    for path in logs.rglob("error.json"):
        message = read_json(path, what="error of a process")["message"]
        extra = message["extraInfo"]
        found.append(WorkerError(extra["rank"], message["message"], extra["lost_peer"], extra["at"]))
    return sorted(found, key=lambda error: (error.lost_peer, error.at))


def _failure(
    statuses: Mapping[int, int], errors: Sequence[WorkerError], logs: Path, run_dir: Path
) -> RobustOpsError:
    """The failure that came first, as an error of this process. statuses: rank -> exit status."""
    for rank, status in statuses.items():
        if status < 0 and status != -signal.SIGTERM:  # others fail because of it
            return TrainingError(
                f"process {rank} was ended by {signal.Signals(-status).name}, and the others with it; if "
                f"memory ran out, use smaller micro-batches; go on with: robustops train resume={run_dir}"
            )
    if not errors:
        rank, status = next(iter(statuses.items()))
        return TrainingError(f"process {rank} ended with exit status {status}; what it printed is in {logs}")
    kind, _, text = errors[0].text.partition(": ")
    for known in (ConfigError, TrainingError):
        if kind == known.__name__:
            return known(text)
    return TrainingError(
        f"process {errors[0].rank} failed: {errors[0].text}; what others printed is in {logs}"
    )


def _torchrun(hardware: HardwareSettings) -> str:
    return (
        f"hardware={hardware.name} is for {hardware.num_nodes} machines; start on each of them: torchrun "
        f"--nnodes {hardware.num_nodes} --nproc-per-node {hardware.devices} --rdzv-backend c10d "
        "--rdzv-endpoint HOST:29500 -m robustops.cli train ... hydra.run.dir=FOLDER (one that all see)"
    )


@contextmanager
def _environment(hardware: HardwareSettings) -> Iterator[None]:
    """What workers inherit: who started them, and their share of the CPU cores."""
    values = {LAUNCHER: str(os.getpid())}
    if "OMP_NUM_THREADS" not in os.environ:
        values["OMP_NUM_THREADS"] = str(hardware.threads or max(1, cores() // hardware.devices))
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)


@contextmanager
def _quiet_elastic() -> Iterator[None]:
    """Without torch's own lines on a failure that is reported here."""
    logger = logging.getLogger("torch.distributed.elastic")
    before, handler = logger.propagate, logging.NullHandler()
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.propagate = before
        logger.removeHandler(handler)


@contextmanager
def _signals_restored() -> Iterator[None]:
    """The launcher of torch installs signal handlers and leaves them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in names}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# inside a worker ----------------------------------------------------------------------------------
def _check_start(hardware: HardwareSettings, context: Context) -> None:
    from robustops.learning.hardware import group_size

    started, wanted = int(os.environ["WORLD_SIZE"]), group_size(hardware) or 1
    if started != wanted:
        raise ConfigError(
            f"torchrun started {started} processes, hardware={hardware.name} asks for {wanted}: set "
            "hardware.devices and hardware.num_nodes, or start robustops without torchrun"
        )
    if started > 1 and (context.multirun or not context.fixed_dir):
        raise ConfigError(
            "processes that torchrun starts need one run folder: give hydra.run.dir=FOLDER (one that all "
            "machines see), and no sweep; on one machine, `robustops train` starts them itself"
        )


def _record(error: BaseException) -> None:
    """Leave the error where whoever started this process looks for it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path is None or isinstance(error, SystemExit | KeyboardInterrupt):
        return
    now = time.time()
    extra = {
        "timestamp": str(int(now)),
        "at": now,
        "rank": int(os.environ["RANK"]),
        "lost_peer": _lost_peer(error),
    }
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    Path(path).write_text(json.dumps({"message": {"message": text, "extraInfo": extra}}), encoding="utf-8")


def _lost_peer(error: BaseException) -> bool:
    """Whether it came out of communication: the others are gone, and this process has no news of its own."""
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    communication = str(Path("torch", "distributed"))
    return "gloo/transport" in str(error) or bool(frames and communication in frames[-1])


def _end_with(launcher: int) -> None:
    """End this process when the one that started it is gone, however that ended."""

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(PERIOD)
        os._exit(1)

    threading.Thread(target=watch, name="launcher watch", daemon=True).start()
