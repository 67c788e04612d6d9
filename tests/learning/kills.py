"""Real processes that run a small training and are killed (SIGKILL) at a random moment or inside a save.

The processes come from a fork server that has imported everything, so that a start takes no seconds.
"""

from __future__ import annotations

import builtins
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch

from robustops.learning.checkpoints import StageCheckpoint
from robustops.learning.pipeline import run_training
from robustops.learning.run import Run
from tests.learning.small_run import CONFIG, train_settings

#: Calls into the operating system around which a save can be cut in two.
BOUNDARIES = (
    *((os, name) for name in ("replace", "fsync", "mkdir", "unlink", "rmdir", "open")),
    (builtins, "open"),
    (torch, "save"),
)


@contextmanager
def watched(moment: Callable[[str], None]) -> Iterator[None]:
    """Inside, `moment` is called before and after every call of `BOUNDARIES`."""
    originals = [(owner, name, getattr(owner, name)) for owner, name in BOUNDARIES]

    def wrap(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            moment(f"before {name}")
            result = original(*args, **kwargs)
            moment(f"after {name}")
            return result

        return call

    for owner, name, original in originals:
        setattr(owner, name, wrap(name, original))
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


@contextmanager
def watched_saves(moment: Callable[[str], None], stage: str) -> Iterator[None]:
    """Inside, the boundaries of every save of the stage are watched, of checkpoints and of its policy."""
    checkpoint, policy = StageCheckpoint.save, Run.save

    def save_checkpoint(self: StageCheckpoint, *args: Any) -> None:
        with watched(moment) if self.checkpoints.folder.name == stage else nullcontext():
            checkpoint(self, *args)

    def save_policy(self: Run, name: str, *args: Any) -> None:
        with watched(moment) if name == stage else nullcontext():
            policy(self, name, *args)

    StageCheckpoint.save, Run.save = save_checkpoint, save_policy  # type: ignore[method-assign]
    try:
        yield
    finally:
        StageCheckpoint.save, Run.save = checkpoint, policy  # type: ignore[method-assign]


@cache
def fork_server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def start(model: Path, folder: Path, overrides: dict[str, Any], boundary: int | None = None) -> Any:
    """A process that trains; with `boundary` it kills itself at that boundary of its GRPO saves."""
    process = fork_server().Process(target=_train, args=(model, folder, overrides, boundary))
    process.start()
    return process


def kill_after(process: Any, seconds: float) -> bool:
    """SIGKILL after so long, if it is still at work; whether it was. It must not end in an error."""
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return bool(process.exitcode)


def _train(model: Path, folder: Path, overrides: dict[str, Any], boundary: int | None) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    count = 0

    def moment(_: str) -> None:
        nonlocal count
        count += 1
        if count == boundary:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    settings = train_settings(model, **overrides)
    if boundary is None:
        run_training(settings, folder, CONFIG)
        return
    with watched_saves(moment, "grpo"):
        run_training(settings, folder, CONFIG)
