"""A whole training run of the itsm domain that takes seconds, in this process or in one of its own.

    python -m tests.learning.small_run MODEL FOLDER

The model is random at first and made to know three training cases by heart, none too well: under sampling it
succeeds at times, so that SFT, GRPO and the evaluation all have something to do.
"""

from __future__ import annotations

import dataclasses
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from robustops.faults.plan import fault_choices
from robustops.learning.data import DemonstrationSchedule
from robustops.learning.demonstrations import collect_episodes, demonstration_starts, to_demonstrations
from robustops.learning.forward import score_tokens
from robustops.learning.pipeline import run_training
from robustops.learning.policy import Policy
from robustops.rollout.collector import Collector
from robustops.rollout.episode import Limits
from robustops.rollout.render import Renderer, call_text
from robustops.rollout.scripted import ScriptedSampler
from robustops.settings import (
    DomainSettings,
    EvaluationSettings,
    FaultSettings,
    GRPOSettings,
    HardwareSettings,
    LoggerSettings,
    ModelSettings,
    SamplerSettings,
    SFTSettings,
    TrainSettings,
)
from robustops.tasks.opening import open_catalog
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import run_expert
from tests.tiny_model import pretraining, tiny_model

LIMITS = Limits(1000, 60, 7)
#: The config that the run records.
CONFIG = {"made": "by a test"}


def domain_settings() -> DomainSettings:
    return DomainSettings(name="itsm", train=3, val=0, test=3, tool_configs=["oracle"])


def train_settings(model: Path, /, **overrides: Any) -> TrainSettings:
    """overrides: fields of TrainSettings, a dict for the fields of a section."""
    settings = TrainSettings(
        seed=5,
        format="json",
        progress=False,
        domain=domain_settings(),
        fault=FaultSettings("trained", list(fault_choices("trained"))),
        hardware=HardwareSettings(threads=1),
        model=ModelSettings(
            checkpoint=str(model),
            context_tokens=LIMITS.context_tokens,
            answer_tokens=LIMITS.answer_tokens,
            max_turns=LIMITS.max_turns,
        ),
        sampler=SamplerSettings(max_in_flight=32),
        logger=LoggerSettings("none"),
        evaluation=EvaluationSettings(split="train"),
        sft=SFTSettings(max_steps=2, batch_trajectories=2, learning_rate=1e-3, checkpoint_every=1),
        grpo=GRPOSettings(
            steps=3,
            groups=2,
            fault_groups=2,
            group_size=4,
            refill_rounds=1,
            learning_rate=1e-3,
            checkpoint_every=1,
        ),
    )
    for name, value in overrides.items():
        if isinstance(value, dict):
            value = dataclasses.replace(getattr(settings, name), **value)
        settings = dataclasses.replace(settings, **{name: value})
    return settings


@cache
def itsm() -> Any:
    """Domain and training tasks."""
    domain, catalog = open_catalog(domain_settings())
    return domain, catalog.tasks("train")


def texts() -> Any:
    domain, tasks = itsm()
    world = LocalWorld(domain)
    for task in tasks:
        run = run_expert(world, domain, task)
        yield f"{task.policy} {task.prompt} {run.answer}"
        yield from (f"{call_text(call)} {result.text}" for call, result in run.calls)
    for name, spec in domain.toolset.specs().items():
        yield f"{name}({','.join(spec.required)};{','.join(spec.arguments)})"


def memorised_policy(steps: int = 34) -> Policy:
    """Fitted to the expert's clean episodes of the training cases, for a second or two."""
    domain, tasks = itsm()
    tokenizer = pretraining().build_tokenizer(texts(), 900)
    policy = Policy(tiny_model(len(tokenizer)), tokenizer, Renderer(tokenizer))
    collector = Collector(ScriptedSampler({"itsm": domain}), policy.renderer, {"itsm": domain}, LIMITS)
    episodes = collect_episodes(collector, demonstration_starts(tasks, None, 0.0, 0))
    schedule = DemonstrationSchedule(to_demonstrations(episodes), len(tasks), 4096, seed=0)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=5e-3, betas=(0.9, 0.95))
    for step in range(steps):
        for part in schedule.step(step).parts:
            loss = -score_tokens(policy.model, part).log_probs[part.loss_mask].mean()
            loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return policy


if __name__ == "__main__":
    run_training(train_settings(Path(sys.argv[1])), Path(sys.argv[2]), CONFIG)
