"""What telemetry and run monitor cost in a GRPO step, as a share of the step's CPU time.

    .venv/bin/python scripts/bench_telemetry.py
    .venv/bin/python scripts/bench_telemetry.py --checkpoint RUN/checkpoints/sft/policy --steps 5

Runs GRPO steps of the quickstart and adds up the time inside every function that computes, builds, writes
or judges a record. Without a checkpoint the embedded model has learnt nothing, so that groups without a
signal are trained on as well (`grpo.dynamic_sampling=false`). The first step, with its allocations, is not
counted. Not in it is the entropy, which is a part of the forward pass. The last line is JSON.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from bench_common import print_json, spread
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from robustops.learning import grpo_module, rollout_callback
from robustops.learning.optimisation import PolicyModule
from robustops.learning.run import BASE, Run
from robustops.learning.stages import train_grpo
from robustops.learning.step_telemetry import AdvantageTelemetry
from robustops.learning.weight_change import Weights
from robustops.monitor.callback import AnomalyMonitor
from robustops.monitor.telemetry import TelemetryWriter
from robustops.objectives.statistics import TrainedTokens
from robustops.resources import conf_dir
from robustops.schema import register
from robustops.settings import TrainSettings

#: Where each function is looked up when it is called.
TIMED: tuple[tuple[Any, str], ...] = (
    (rollout_callback, "rollout_statistics"),
    (rollout_callback, "rollout_metrics"),
    (rollout_callback, "observation_digest"),
    (Weights, "__init__"),
    (Weights, "change"),
    (AdvantageTelemetry, "statistics"),
    (TrainedTokens, "select"),
    (grpo_module, "update_statistics"),
    (grpo_module, "in_order"),
    (PolicyModule, "keep_record"),
    (TelemetryWriter, "write"),
    (AnomalyMonitor, "on_train_batch_end"),
)


class Clock:
    """CPU seconds inside the timed functions, step by step; a written line ends a step."""

    def __init__(self) -> None:
        self.ends = [time.process_time()]
        self.steps: list[dict[str, float]] = [defaultdict(float)]

    def around(self, owner: Any, name: str) -> None:
        """Replace the function by one that is timed."""
        original: Callable[..., Any] = getattr(owner, name)
        label = f"{getattr(owner, '__name__', owner).rpartition('.')[2]}.{name}"

        @wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.process_time()
            result = original(*args, **kwargs)
            self.steps[-1][label] += time.process_time() - begin
            if name == "write":
                self.ends.append(time.process_time())
                self.steps.append(defaultdict(float))
            return result

        # A class method is bound to its class already.
        setattr(owner, name, staticmethod(timed) if name == "select" else timed)


def main() -> None:
    options = arguments()
    clock = Clock()
    for owner, name in TIMED:
        clock.around(owner, name)
    with tempfile.TemporaryDirectory() as folder:
        settings = quickstart(options, folder)
        with Run(settings, Path(folder), {}) as run:
            policy = run.load(BASE)
            clock.ends = [time.process_time()]
            train_grpo(run, settings, policy)
    seconds = [end - begin for begin, end in zip(clock.ends[1:-1], clock.ends[2:], strict=True)]
    parts = clock.steps[1:-1]
    shares = [sum(part.values()) / step for part, step in zip(parts, seconds, strict=True)]
    table = Table("function", "ms a step")
    means = {name: 1000 * sum(part[name] for part in parts) / len(parts) for name in parts[0]}
    for name, value in sorted(means.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{value:.2f}")
    Console().print(table)
    print_json({"step_cpu_s": spread(seconds), "telemetry_share": spread(shares), "milliseconds": means})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", help="folder of a policy that SFT has trained")
    parser.add_argument("--steps", type=int, default=4, help="measured steps")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be 1 or more")
    return options


def quickstart(options: argparse.Namespace, folder: str) -> TrainSettings:
    """Settings of the quickstart's GRPO stage, with one step more than is measured."""
    overrides = [
        *("experiment=quickstart", "stages=[grpo]", "progress=false", "logger=none"),
        *(f"grpo.steps={options.steps + 1}", f"paths.run_dir={folder}", "grpo.checkpoint_every=1000"),
    ]
    if options.checkpoint:
        overrides.append(f"model.checkpoint={options.checkpoint}")
    else:
        overrides.append("grpo.dynamic_sampling=false")
    register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        settings = OmegaConf.to_object(compose("train", overrides))
    assert isinstance(settings, TrainSettings)
    return settings


if __name__ == "__main__":
    main()
