"""The training stages: each a Lightning fit with its own checkpoints, from one policy to the next."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

from robustops.errors import ConfigError, unknown_name
from robustops.faults.manifest import build_manifest
from robustops.faults.scheduler import FaultScheduler
from robustops.learning.checkpoints import StageCheckpoint, StreamCheckpointIO
from robustops.learning.data import Demonstration, DemonstrationSchedule, RolloutTicket, StepData
from robustops.learning.demonstrations import collect_episodes, demonstration_starts, to_demonstrations
from robustops.learning.episode_log import EpisodeLog
from robustops.learning.groups import GroupMaker
from robustops.learning.grpo_module import GRPOModule
from robustops.learning.grpo_parts import (
    advantage_guards,
    critic,
    group_plan,
    grpo_loss,
    local_credit,
    optimisation,
)
from robustops.learning.hardware import check_hardware, check_share, group_size, sharded
from robustops.learning.hooks import NO_TRAINING_HOOKS, HooksCallback, TrainingHooks
from robustops.learning.optimisation import PolicyModule
from robustops.learning.policy import Policy
from robustops.learning.processes import gather_aside, leads, world
from robustops.learning.progress import progress
from robustops.learning.random_state import RandomState
from robustops.learning.rollout_callback import RolloutCallback
from robustops.learning.run import Run
from robustops.learning.samplers import TRAINABLE
from robustops.learning.sft_module import SFTModule
from robustops.learning.sizing import sft_steps
from robustops.learning.strategies import make_strategy
from robustops.learning.sync_probe import BFLOAT16_TOLERANCE, FLOAT32_TOLERANCE, SyncProbe
from robustops.learning.telemetry_callback import TelemetryCallback
from robustops.learning.watch import Watch
from robustops.monitor.callback import AnomalyMonitor
from robustops.monitor.episodes import NAME as EPISODES
from robustops.objectives.advantages import Comparison, aggregate, component
from robustops.rewards.combine import RewardWeights
from robustops.rewards.guards import RewardGuards
from robustops.rewards.parts import RewardRules, reward_parts
from robustops.seeding import child_seed, generator
from robustops.settings import HardwareSettings, TrainSettings

#: Tokens of a prompt that the probe of the sampler's weights takes.
PROBE_TOKENS = 256
NORMALISATIONS = {"aggregate": aggregate, "component": component}


def train_sft(
    run: Run, settings: TrainSettings, policy: Policy, hooks: TrainingHooks = NO_TRAINING_HOOKS
) -> None:
    """Imitate the scripted expert; the policy's weights change in place. It has no use for hooks."""
    sft = settings.sft
    demonstrations = _demonstrations(run, settings, policy)
    size = min(sft.batch_trajectories, len(demonstrations))
    steps = sft_steps(len(demonstrations), size, sft.epochs, sft.max_steps)
    seed = child_seed(settings.seed, "sft")
    schedule = DemonstrationSchedule(demonstrations, size, sft.micro_batch_tokens, seed, world())
    module = SFTModule(
        policy.model,
        learning_rate=sft.learning_rate,
        total_steps=steps,
        warmup_steps=sft.warmup_steps,
        weight_decay=sft.weight_decay,
        grad_clip=sft.grad_clip,
    )
    callbacks = [TelemetryCallback(run.telemetry, run.store)]
    _fit(run, settings, "sft", module, StepData(steps, schedule.step), callbacks, sft.checkpoint_every)


def _demonstrations(run: Run, settings: TrainSettings, policy: Policy) -> list[Demonstration]:
    """The expert's successful episodes on training cases, a share of them under tool faults."""
    cases = list(run.cases("train"))
    seed = child_seed(settings.seed, "demonstrations")
    generator(seed, "order").shuffle(cases)
    cases = cases[: settings.sft.tasks]
    manifest = None
    if settings.fault.subtypes and settings.sft.fault_share > 0:
        manifest = build_manifest(cases, run.domains, settings.fault.subtypes, seed, settings.fault.caps)
    starts = demonstration_starts(cases, manifest, settings.sft.fault_share, seed)
    collector = run.collector(policy, run.samplers.scripted())
    with progress(run.console, "demonstrations", len(starts), enabled=settings.progress) as done:
        episodes = collect_episodes(collector, starts, done)
    collector.close()
    run.store.truncate("demonstrations", -1)
    run.store.add_episodes("demonstrations", 0, episodes, policy="expert")
    return to_demonstrations(episodes)


def train_grpo(
    run: Run,
    settings: TrainSettings,
    policy: Policy,
    hooks: TrainingHooks = NO_TRAINING_HOOKS,
    watch: Watch | None = None,
) -> None:
    """Reinforce on clean and fault groups; the policy's weights change in place. settings: in force, which
    may differ from the run's own in knobs; watch: may stop the stage after a step.
    """
    grpo, weights = settings.grpo, RewardWeights(*_weights(settings))
    rules = RewardRules(settings.reward.gated, grpo.credit.repeats if grpo.credit.enabled else None)
    scheduler = None
    if settings.fault.subtypes and grpo.fault_groups:
        seed = child_seed(settings.seed, "scheduler")
        scheduler = FaultScheduler(settings.fault.subtypes, settings.fault.caps, seed)
    own_weights = grpo.staleness > 0 or hooks.holds_weights
    temperature = settings.sampler.temperature
    sampler = run.samplers.of(policy, temperature=temperature, own_weights=own_weights, hooks=hooks)
    collector = run.collector(policy, sampler, hooks, settings)
    maker = GroupMaker(
        collector,
        run.cases("train"),
        scheduler,
        group_plan(grpo),
        partial(reward_parts, rules=rules),
        child_seed(settings.seed, "grpo"),
        weights,
        guards=RewardGuards(settings.reward.bounded, settings.reward.recheck),
        hooks=hooks,
        rank=world().rank,
        size=world().size,
        gather=gather_aside,  # it may sample in a thread of its own
    )
    module = GRPOModule(
        policy.model,
        policy.reference() if grpo.kl > 0 else None,
        partial(
            NORMALISATIONS[settings.reward_norm.name],
            weights=weights,
            whiten=grpo.whiten,
            comparison=Comparison(grpo.baseline == "leave_one_out", grpo.std_floor),
        ),
        grpo_loss(grpo, settings.sampler.temperature),
        optimisation(grpo),
        credit=local_credit(grpo.credit),
        rules=rules,
        reward_weights=weights,
        guards=advantage_guards(grpo),
        hooks=hooks,
        critic=critic(grpo, policy.model),
    )
    probe = _probe(run, settings, policy)
    rollout = RolloutCallback(maker, sampler, probe=probe, ahead=grpo.staleness > 0, hooks=hooks)
    telemetry = TelemetryCallback(run.telemetry, run.store, lambda: rollout.sampled.sampled)
    data = StepData(grpo.steps, RolloutTicket, module.updates_per_step)
    callbacks = [telemetry, *_episode_log(run, settings, rollout), rollout, HooksCallback(hooks)]
    every = grpo.checkpoint_every
    if watch is not None:
        every = min(every, settings.monitor.checkpoint_every or every)
    _fit(run, settings, "grpo", module, data, callbacks, every, watch)
    collector.close()


def _episode_log(run: Run, settings: TrainSettings, rollout: RolloutCallback) -> list[Callback]:
    """The log of sampled episodes, where one is wanted and this process keeps the records."""
    if not settings.monitor.episodes or not leads():
        return []
    seed = child_seed(settings.seed, "grpo")
    return [EpisodeLog(run.folder / EPISODES, settings.monitor.episodes, seed, lambda: rollout.sampled)]


def _probe(run: Run, settings: TrainSettings, policy: Policy) -> SyncProbe:
    """The start of a training case's prompt, held to the precision of the run."""
    task = run.cases("train")[0]
    specs = run.domain.toolset.specs()
    ids = policy.renderer.prompt(task, [specs[name] for name in task.allowed_tools])
    exact = settings.model.dtype == "float32" and settings.hardware.precision.startswith("32")
    tolerance = settings.grpo.sync_tolerance
    if tolerance is None:
        tolerance = FLOAT32_TOLERANCE if exact else BFLOAT16_TOLERANCE
    seed = child_seed(settings.seed, "grpo")
    temperature, guard = settings.sampler.temperature, settings.grpo.sync_guard
    return SyncProbe(tuple(ids[:PROBE_TOKENS]), tolerance, temperature, seed=seed, guard=guard)


STAGES = {"sft": train_sft, "grpo": train_grpo}


def check_stages(settings: TrainSettings) -> None:
    """ConfigError for what no stage could do, before the first one has worked for hours."""
    for stage in settings.stages:
        if stage not in STAGES:
            raise unknown_name("stage", stage, STAGES)
    if settings.stages:
        check_hardware(settings.hardware)
    if "sft" in settings.stages:
        check_share("sft.batch_trajectories", settings.sft.batch_trajectories, settings.hardware)
    if "grpo" in settings.stages:
        groups = settings.grpo.groups + (settings.grpo.fault_groups if settings.fault.subtypes else 0)
        check_share("grpo.groups + grpo.fault_groups", groups, settings.hardware)
    if settings.grpo.value_head and (
        group_size(settings.hardware) > 0 or settings.hardware.strategy != "auto"
    ):
        raise ConfigError(
            f"grpo.value_head=true works in one process, hardware={settings.hardware.name} has more, or a "
            "strategy of its own; choose value_head=false, or a profile such as hardware=cpu, hardware=gpu_1"
        )
    if settings.monitor.name == "remediate" and group_size(settings.hardware) > 1:
        raise ConfigError(
            f"monitor=remediate works in one process, hardware={settings.hardware.name} has "
            f"{group_size(settings.hardware)}; choose monitor=observe, or a profile of one device"
        )
    if settings.grpo.staleness and group_size(settings.hardware) > 1:
        raise ConfigError(
            f"grpo.staleness=1 samples ahead in one process, hardware={settings.hardware.name} has "
            f"{group_size(settings.hardware)}; choose grpo.staleness=0, or a hardware profile of one device"
        )
    if "grpo" in settings.stages and sharded(settings.hardware) and settings.sampler.name == "hf":
        raise ConfigError(
            f"hardware={settings.hardware.name} spreads the weights over processes (ZeRO-3) and sampler=hf "
            "needs all of them in each: choose sampler=vllm, sampler=vllm_server or a strategy of ZeRO-2"
        )
    if settings.sampler.repetition_penalty != 1 and settings.sampler.name != "hf":
        raise ConfigError(
            f"sampler.repetition_penalty={settings.sampler.repetition_penalty} works with sampler=hf, not "
            f"{settings.sampler.name}: engines count the prompt's tokens too; choose 1"
        )
    if "grpo" in settings.stages and settings.sampler.name not in TRAINABLE:
        raise ConfigError(
            "GRPO needs a sampler with token log-probs and new weights after each step: "
            f"sampler=vllm_server, sampler=hf or sampler=vllm, not {settings.sampler.name}"
        )


def _weights(settings: TrainSettings) -> tuple[float, float, float]:
    return settings.reward.success, settings.reward.progress, settings.reward.quality


def _fit(
    run: Run,
    settings: TrainSettings,
    stage: str,
    module: PolicyModule,
    data: StepData,
    callbacks: Sequence[Callback],
    checkpoint_every: int,
    watch: Watch | None = None,
) -> None:
    """One Lightning fit that goes on from the stage's checkpoint where there is one."""
    random_state = RandomState(child_seed(settings.seed, "global generators", stage))
    saver = StageCheckpoint(run.checkpoints(stage), checkpoint_every, run.decisions)
    bar = [RichProgressBar(refresh_rate=1)] if settings.progress else []
    monitor: list[Callback] = []
    if settings.monitor.name != "off":
        monitor.append(observer := AnomalyMonitor(run.alert, run.healthy_runs if stage == "grpo" else None))
        if watch is not None:
            watch.attach(observer, saver)
            monitor.append(watch)
    with quiet():
        trainer = Trainer(
            **trainer_arguments(settings.hardware, module.grad_clip),
            max_epochs=1,
            logger=run.loggers or False,
            callbacks=[*callbacks, *monitor, *bar, random_state, saver],
            plugins=[StreamCheckpointIO()],
            enable_progress_bar=settings.progress,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            log_every_n_steps=1,
            default_root_dir=run.folder,
        )
        point = run.resume_point(stage)
        _run(trainer, module, data, point.path if point is not None else None)


def _run(trainer: Trainer, module: LightningModule, data: StepData, resume: str | Path | None) -> None:
    """`Trainer.fit`, but Ctrl-C stays a KeyboardInterrupt (Lightning turns it into SystemExit)."""
    try:
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=False)
    except SystemExit as stop:
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


def trainer_arguments(hardware: HardwareSettings, grad_clip: float = 0.0) -> dict[str, Any]:
    """Lightning Trainer arguments of a hardware profile; grad_clip: see `make_strategy`."""
    return {
        "accelerator": hardware.accelerator,
        "devices": hardware.devices,
        "num_nodes": hardware.num_nodes,
        "strategy": make_strategy(hardware, grad_clip),
        "precision": hardware.precision,
    }


class quiet(warnings.catch_warnings):
    """Without Lightning's hints that do not apply here (loaders without workers, tips)."""

    def __enter__(self) -> None:  # type: ignore[override]
        super().__enter__()
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")  # no gradient yet
        for name in ("lightning.pytorch", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.ERROR)
