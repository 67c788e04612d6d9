"""Worker processes of a campaign: each one takes runs until none is left, and tells of every one.

They are started afresh (spawn), use one thread, and end with the process that started them. Imports are paid
once a worker.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from robustops.bench.campaign.claims import claimed, clear_leftovers
from robustops.bench.campaign.folders import LOGS, note_of, settled
from robustops.bench.campaign.plan import PlannedRun
from robustops.files import atomic_write_text

#: Seconds between two looks at the workers.
PERIOD = 0.2
#: What a worker's numerical libraries read when they are loaded.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Outcome:
    """What became of one run. error: one line, "" where it is complete; cpu_seconds: of the worker so far."""

    run_id: str
    error: str
    cpu_seconds: float


class Pool:
    """Worker processes, and what they report. compose: see `worker.Compose`; a function that another process
    can import; make: see `worker.run_one`; something that another process can be sent.
    """

    def __init__(
        self, number: int, campaign: Path, runs: Sequence[PlannedRun], compose: Any, make: Any = None
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.processes: list[Any] = []
        #: One pipe a worker: a queue would have a lock that a killed worker may take along.
        self._pipes: list[Any] = []
        self._cpu: dict[Any, float] = {}
        with _inherited(ONE_THREAD):
            for place in range(number):
                receiver, sender = spawn.Pipe(duplex=False)
                arguments = (campaign, tuple(runs), compose, sender, make)
                process = spawn.Process(target=_work, args=arguments, name=f"worker {place}")
                process.start()
                sender.close()
                self.processes.append(process)
                self._pipes.append(receiver)

    def outcomes(self) -> Iterator[Outcome | None]:
        """What the workers report, until all of them have ended; None now and then, to keep a clock going."""
        while self._pipes:
            yield None
            ready: list[Any] = list(wait(self._pipes, PERIOD))
            for pipe in ready:
                try:
                    outcome = pipe.recv()
                except (EOFError, OSError):
                    self._pipes.remove(pipe)
                    continue
                self._cpu[pipe] = outcome.cpu_seconds
                yield outcome
        for process in self.processes:
            process.join()

    @property
    def cpu_seconds(self) -> float:
        """Of all workers, their imports included, up to their last runs."""
        return sum(self._cpu.values())

    def killed(self) -> list[str]:
        """How workers ended that did not end by themselves."""
        codes = [process.exitcode for process in self.processes]
        return [signal.Signals(-code).name if code < 0 else f"exit status {code}" for code in codes if code]

    def stop(self) -> None:
        """End the workers at once; what they have in flight is lost, not what is complete."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join()


@contextmanager
def _inherited(values: dict[str, str]) -> Iterator[None]:
    """For processes that are started in here: environment, and no Ctrl-C, which is for the one that started
    them (a terminal sends it to all).
    """
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# inside a worker ----------------------------------------------------------------------------------
def _work(campaign: Path, runs: Sequence[PlannedRun], compose: Any, sender: Any, make: Any) -> None:
    _end_with_parent()
    _redirect(campaign / LOGS / f"{time.time_ns()}-{os.getpid()}.log")
    import torch

    torch.set_num_threads(1)
    for planned in runs:
        if settled(campaign, planned.run_id):
            continue
        with claimed(campaign, planned.run_id) as mine:
            if mine and not settled(campaign, planned.run_id):
                error = _attempt(planned, campaign, compose, make)
                sender.send(Outcome(planned.run_id, error, time.process_time()))


def _attempt(planned: PlannedRun, campaign: Path, compose: Any, make: Any) -> str:
    """Make one run; returns its error in one line, "" where there is none."""
    from robustops.bench.campaign.worker import run_one

    clear_leftovers(campaign, planned.run_id)
    try:
        run_one(planned, campaign, compose, make)
    except Exception as error:  # whatever it is, it is told, and the other runs go on
        text = f"{planned}\n\n{traceback.format_exc()}"
        atomic_write_text(note_of(campaign, planned.run_id), text)
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""


def _redirect(log: Path) -> None:
    """What a worker prints goes to its log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
