"""Small runs with a failure of training, a planted judge and `monitor=remediate`, see `small_run`.

The judge knows the failure by what it does to one column, so that a verdict changes only if a knob does work.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

from robustops.bench.run_faults.injector import training_hooks
from robustops.learning.pipeline import run_training
from robustops.monitor.intervention.journal import Journal
from robustops.monitor.panel import Panel
from robustops.monitor.verdict import Evidence, Verdict
from robustops.settings import RunFaultSettings, TrainSettings
from tests.learning.kills import fork_server
from tests.learning.small_run import CONFIG, train_settings

#: First step that the failure strikes, and steps of the stage.
ONSET, STEPS = 4, 9
FAULT = RunFaultSettings("kl_explosion", "aggressive_updates", onset=ONSET)
#: An update this many times as large as the first one is no healthy one.
LARGE = 4.0


def judge(panel: Panel) -> Verdict:
    """Anomalous for as long as the last update is a large one."""
    norms = panel["update_norm_rel"]
    large = norms > LARGE * norms[0]
    if not large[-1]:
        return Verdict("healthy")
    onset = int(panel.steps[large.argmax()])
    found = Evidence("update", "update_norm_rel", onset, float(norms[-1]), 0.0, LARGE, 9.0, "large updates")
    return Verdict(
        "anomalous", onset, "optimisation", "kl_explosion", {"kl_explosion": 1.0}, 0.9, evidence=(found,)
    )


def settings_of(model: Path, monitor: dict[str, Any] | None = None, **overrides: Any) -> TrainSettings:
    """GRPO alone, with the failure unless `run_fault` is given; monitor: fields beside the name."""
    grpo = {
        "steps": STEPS,
        "groups": 2,
        "fault_groups": 0,
        "group_size": 2,
        "dynamic_sampling": False,
        **overrides.pop("grpo", {}),
    }
    watched = {"name": "remediate", "canary": 3, "cooldown": 3, **(monitor or {})}
    chosen = {"run_fault": FAULT, "stages": ["grpo"], "evaluation": {"policies": []}, **overrides}
    return train_settings(model, grpo=grpo, monitor=watched, **chosen)


def train(settings: TrainSettings, folder: Path, judged: Any = judge) -> dict[str, Any]:
    """Run to the end, as `robustops train` does."""
    return run_training(settings, folder, CONFIG, hooks=training_hooks(settings, folder), judge=judged)


def start(model: Path, folder: Path) -> Any:
    """The same in a process of its own, which can be killed."""
    process = fork_server().Process(target=_train, args=(model, folder))
    process.start()
    return process


def _train(model: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    train(settings_of(model), folder)


def die(*_: Any, **__: Any) -> None:
    """Stands in for a call before which the process is killed."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def entries(folder: Path) -> list[Any]:
    """The journal of a run."""
    from robustops.tracking.run_store import RunStore

    with RunStore(folder / "run.db") as store:
        return Journal(store.db).entries()
