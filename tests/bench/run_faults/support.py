"""Small fits with a given set of hooks, and what they leave behind in a form that can be compared."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from robustops.bench.run_faults.catalog import CATALOG, all_mechanisms
from robustops.bench.run_faults.entries import MechanismInfo
from robustops.bench.run_faults.exposure import NAME, ExposureLog, log_name, read_exposure
from robustops.bench.run_faults.injector import MECHANISMS
from robustops.bench.run_faults.mechanism import Mechanism
from robustops.bench.run_faults.spec import RunFaultSpec
from robustops.errors import TaskError
from robustops.learning.data import RolloutTicket, StepData
from robustops.learning.groups import GroupMaker, GroupPlan
from robustops.learning.grpo_loss import GRPOLoss
from robustops.learning.grpo_module import GRPOModule, Optimisation
from robustops.learning.hooks import NO_TRAINING_HOOKS, HooksCallback, TrainingHooks
from robustops.learning.rollout_callback import RolloutCallback
from robustops.learning.sync_probe import SyncProbe
from robustops.learning.value_head import Critic, ValueHead
from robustops.objectives.advantages import aggregate
from robustops.records import Episode, RewardParts, Task
from robustops.rewards.combine import RewardWeights
from robustops.rollout.collector import Collector
from robustops.rollout.episode import Limits
from robustops.rollout.hf import HFSampler
from robustops.rollout.hooks import Place
from robustops.rollout.sampler import Sampler
from tests.learning.support import Metrics, quiet_trainer, toy_policy, weights_of
from tests.rollout.fake_sampler import TokenExpert
from tests.tiny_model import tiny_model
from tests.toy_domain import TOY, toy_tasks

#: Any of these ends a message of the random model, which would hardly ever find the one real stop token.
STOPS = set(range(1, 60))
#: Fits have so many steps, and the fault sets in with the second.
STEPS, ONSET = 3, 2
WEIGHTS = RewardWeights()
#: Mechanisms that work in runs with a value head only.
NEEDS_CRITIC = {mechanism.name for _, mechanism in all_mechanisms() if mechanism.needs_critic}
#: Of some message.
PLACE = Place(5, "case/oracle", "clean", 4, 2)


def infos() -> dict[str, tuple[str, MechanismInfo]]:
    """Mechanism -> its type and what the catalogue says of it."""
    return {mechanism.name: (fault.name, mechanism) for fault, mechanism in all_mechanisms()}


def spec_of(mechanism: str, **values: Any) -> RunFaultSpec:
    fault, info = infos()[mechanism]
    return RunFaultSpec(fault, mechanism, **{"unit": info.units[0], "onset": ONSET, "seed": 3, **values})


def injector(folder: Path, mechanism: str, *, number: int = 1, **values: Any) -> Mechanism:
    """number: of the run's injectors, which fixes the name of its log."""
    spec = spec_of(mechanism, **values)
    return MECHANISMS[mechanism](spec, ExposureLog(folder / log_name(number), spec), WEIGHTS)


def reward(task: Task, episode: Episode) -> RewardParts:
    """Success as it is, and progress that differs within a group."""
    return RewardParts(float(episode.success), (sum(episode.token_ids) % 97) / 97, 0.5 * episode.success)


class ForgivingExpert(TokenExpert):
    """Gives up where a reply is none that the scripted expert could go on from."""

    def speak(self, request, turn):
        try:
            return super().speak(request, turn)
        except (TaskError, LookupError):
            return "I give up."


class Kept(Callback):
    """What every step trained on."""

    def __init__(self) -> None:
        self.steps: list[list[Episode]] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.steps.append([episode for group in batch.groups for episode in group.episodes])


@dataclass
class Fit:
    """telemetry: one line a step; episodes: those trained on, by step; weights: in the end."""

    telemetry: list[str]
    episodes: list[list[Episode]]
    weights: dict[str, Tensor] = field(default_factory=dict)
    exposure: list[dict[str, Any]] = field(default_factory=list)

    def same_until(self, other: Fit, step: int) -> bool:
        """Telemetry and episodes of the steps before this one are equal to the byte."""
        cut = step - 1
        return self.telemetry[:cut] == other.telemetry[:cut] and self.episodes[:cut] == other.episodes[:cut]


@cache
def policy_parts() -> Any:
    return toy_policy(width=32)


def parts(hooks: TrainingHooks, *, expert: bool, **options: Any) -> tuple[GRPOModule, RolloutCallback]:
    """expert: scripted multi-turn episodes with tool calls; else a random model with one message each."""
    kept = policy_parts()
    policy = type(kept)(tiny_model(len(kept.tokenizer), width=32), kept.tokenizer, kept.renderer)
    limits = options.pop("limits", {})
    probe = None
    if expert:
        sampler: Sampler = ForgivingExpert(policy.renderer, {"toy": TOY}, gives_up=0.2)
        room = Limits(**{"context_tokens": 4000, "answer_tokens": 200, "max_turns": 8, **limits})
    else:
        shared = not hooks.holds_weights
        model = policy.model if shared else tiny_model(len(policy.tokenizer), width=32)
        sampler = HFSampler(model, STOPS, max_in_flight=8, shared=shared, hooks=hooks)
        room = Limits(**{"context_tokens": 700, "answer_tokens": 24, "max_turns": 2, **limits})
        probe = SyncProbe(tuple(range(62, 80)), 1e-4, guard=options.pop("sync_guard", "report"))
    collector = Collector(
        sampler, policy.renderer, {"toy": TOY}, room, retries=6, retry_share=9.0, hooks=hooks
    )
    plan = GroupPlan(2, 0, 3, 0, dynamic_sampling=False)
    weights = options.pop("weights", WEIGHTS)
    maker = GroupMaker(
        collector,
        toy_tasks(3),
        None,
        plan,
        reward,
        1,
        weights,
        guards=options.pop("reward_guards", None),
        hooks=hooks,
    )
    whole = options.pop("whole_updates", False)
    critic, least = None, options.pop("value_least_ev", None)
    if options.pop("critic", False):
        critic = Critic(ValueHead(32, 0.05), least)
    module = GRPOModule(
        policy.model,
        policy.reference() if options.get("kl", 0.1) > 0 else None,
        lambda given, groups: aggregate(given, groups, weights),
        GRPOLoss(kl=options.pop("kl", 0.1)),
        Optimisation(options.pop("learning_rate", 1e-2), micro_batch_tokens=4096, whole_updates=whole),
        guards=options.pop("guards", None),
        hooks=hooks,
        critic=critic,
    )
    assert not options, f"unknown options {sorted(options)}"
    return module, RolloutCallback(maker, sampler, probe=probe, hooks=hooks)


def fit(folder: Path, hooks: TrainingHooks = NO_TRAINING_HOOKS, **options: Any) -> Fit:
    """One fit. save: a folder for a checkpoint after every step; resume: a checkpoint; steps: of the fit."""
    steps, save = options.pop("steps", STEPS), options.pop("save", None)
    resume = options.pop("resume", None)
    module, rollout = parts(hooks, **options)
    metrics, kept = Metrics(), Kept()
    callbacks: list[Callback] = [rollout, HooksCallback(hooks), metrics, kept]
    if save is not None:
        callbacks.append(ModelCheckpoint(save, every_n_train_steps=1, save_top_k=-1, filename="{step}"))
    trainer = quiet_trainer(folder, *callbacks, enable_checkpointing=save is not None)
    data = StepData(steps, RolloutTicket)
    trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=False if resume else None)
    telemetry = [json.dumps({name: repr(value) for name, value in step.items()}) for step in metrics.steps]
    return Fit(telemetry, kept.steps, weights_of(module.model), read_exposure(folder / NAME))


def initial() -> dict[str, Tensor]:
    """The weights that every fit begins with."""
    return weights_of(tiny_model(len(policy_parts().tokenizer), width=32))


def uses_tools(mechanism: str) -> bool:
    """Whether a mechanism needs episodes with tool calls; the random model never repeats itself either."""
    fault, _ = infos()[mechanism]
    return CATALOG[fault].family == "environment" or mechanism == "repetition_reward"
