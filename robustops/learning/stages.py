"""The training stages: each a Lightning fit with its own checkpoints, from one policy to the next."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar

from robustops.errors import ConfigError, unknown_name
from robustops.faults.manifest import build_manifest
from robustops.faults.scheduler import FaultScheduler
from robustops.learning.data import Demonstration, DemonstrationSchedule, RolloutTicket, StepData
from robustops.learning.demonstrations import collect_episodes, demonstration_starts, to_demonstrations
from robustops.learning.groups import GroupMaker, GroupPlan
from robustops.learning.grpo_module import GRPOLoss, GRPOModule
from robustops.learning.optimisation import AtomicCheckpointIO
from robustops.learning.policy import Policy
from robustops.learning.progress import progress
from robustops.learning.rollout_callback import RolloutCallback
from robustops.learning.run import Run
from robustops.learning.sft_module import SFTModule
from robustops.learning.telemetry_callback import TelemetryCallback
from robustops.monitor.callback import AnomalyMonitor
from robustops.objectives.advantages import aggregate, component
from robustops.rewards.combine import RewardWeights
from robustops.rewards.parts import reward_parts
from robustops.seeding import child_seed, generator
from robustops.settings import HardwareSettings, TrainSettings

NORMALISATIONS = {"aggregate": aggregate, "component": component}


def train_sft(run: Run, settings: TrainSettings, policy: Policy) -> None:
    """Imitate the scripted expert; the policy's weights change in place."""
    sft = settings.sft
    demonstrations = _demonstrations(run, settings, policy)
    size = min(sft.batch_trajectories, len(demonstrations))
    steps = -(-sft.epochs * len(demonstrations) // size)
    steps = steps if sft.max_steps is None else min(steps, sft.max_steps)
    seed = child_seed(settings.seed, "sft")
    schedule = DemonstrationSchedule(demonstrations, size, sft.micro_batch_tokens, seed)
    module = SFTModule(
        policy.model,
        learning_rate=sft.learning_rate,
        total_steps=steps,
        warmup_steps=sft.warmup_steps,
        weight_decay=sft.weight_decay,
        grad_clip=sft.grad_clip,
    )
    callbacks = [TelemetryCallback("sft", run.telemetry, run.store)]
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


def train_grpo(run: Run, settings: TrainSettings, policy: Policy) -> None:
    """Reinforce on clean and fault groups; the policy's weights change in place."""
    grpo, weights = settings.grpo, RewardWeights(*_weights(settings))
    scheduler = None
    if settings.fault.subtypes and grpo.fault_groups:
        seed = child_seed(settings.seed, "scheduler")
        scheduler = FaultScheduler(settings.fault.subtypes, settings.fault.caps, seed)
    sampler = run.samplers.of(policy)
    collector = run.collector(policy, sampler)
    maker = GroupMaker(
        collector,
        run.cases("train"),
        scheduler,
        GroupPlan(grpo.groups, grpo.fault_groups, grpo.group_size, grpo.refill_rounds),
        reward_parts,
        child_seed(settings.seed, "grpo"),
        weights,
    )
    module = GRPOModule(
        policy.model,
        policy.frozen_copy(),
        partial(NORMALISATIONS[settings.reward_norm.name], weights=weights),
        GRPOLoss(grpo.kl, grpo.clip_low, grpo.clip_high, settings.sampler.temperature, grpo.aggregation),
        learning_rate=grpo.learning_rate,
        warmup_steps=grpo.warmup_steps,
        decay_steps=grpo.steps if grpo.schedule == "linear" else None,
        adam_epsilon=grpo.adam_epsilon,
        weight_decay=grpo.weight_decay,
        grad_clip=grpo.grad_clip,
        micro_batch_tokens=grpo.micro_batch_tokens,
        reward_weights=weights,
    )
    rollout = RolloutCallback(maker, sampler)
    telemetry = TelemetryCallback("grpo", run.telemetry, run.store, lambda: rollout.sampled.sampled)
    data = StepData(grpo.steps, RolloutTicket)
    _fit(run, settings, "grpo", module, data, [telemetry, rollout], grpo.checkpoint_every)
    collector.close()


STAGES = {"sft": train_sft, "grpo": train_grpo}


def check_stages(settings: TrainSettings) -> None:
    """ConfigError for what no stage could do, before the first one has worked for hours."""
    for stage in settings.stages:
        if stage not in STAGES:
            raise unknown_name("stage", stage, STAGES)
    if settings.stages:
        trainer_arguments(settings.hardware)
    if "grpo" in settings.stages and settings.sampler.name not in ("hf", "vllm"):
        raise ConfigError(
            "GRPO needs a sampler with token log-probs and new weights after each step: "
            f"sampler=hf or sampler=vllm, not {settings.sampler.name}"
        )


def _weights(settings: TrainSettings) -> tuple[float, float, float]:
    return settings.reward.success, settings.reward.progress, settings.reward.quality


def _fit(
    run: Run,
    settings: TrainSettings,
    stage: str,
    module: LightningModule,
    data: StepData,
    callbacks: Sequence[Callback],
    checkpoint_every: int,
) -> None:
    """One Lightning fit that goes on from the stage's checkpoint where there is one."""
    checkpoint = run.checkpoint(stage)
    saver = ModelCheckpoint(
        dirpath=checkpoint.parent,
        filename=checkpoint.stem,
        every_n_train_steps=checkpoint_every,
        enable_version_counter=False,
    )
    bar = [RichProgressBar(refresh_rate=1)] if settings.progress else []
    monitor = [AnomalyMonitor(stage, run.alert)] if settings.monitor.name == "observe" else []
    with quiet():
        trainer = Trainer(
            **trainer_arguments(settings.hardware),
            max_epochs=1,
            logger=run.loggers or False,
            callbacks=[*callbacks, *monitor, *bar, saver],
            plugins=[AtomicCheckpointIO()],
            enable_progress_bar=settings.progress,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            log_every_n_steps=1,
            default_root_dir=run.folder,
        )
        resume = str(checkpoint) if checkpoint.is_file() else None
        _run(trainer, module, data, resume)


def _run(trainer: Trainer, module: LightningModule, data: StepData, resume: str | Path | None) -> None:
    """`Trainer.fit`, but Ctrl-C stays a KeyboardInterrupt (Lightning turns it into SystemExit)."""
    try:
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=False)
    except SystemExit as stop:
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


def trainer_arguments(hardware: HardwareSettings) -> dict[str, Any]:
    """Lightning Trainer arguments of a hardware profile."""
    if hardware.devices * hardware.num_nodes != 1 or hardware.strategy != "auto":
        raise ConfigError(
            f"hardware={hardware.name} asks for {hardware.devices} x {hardware.num_nodes} processes with "
            f"strategy {hardware.strategy}; training runs in one process: hardware=cpu or hardware=gpu_1"
        )
    return {
        "accelerator": hardware.accelerator,
        "devices": hardware.devices,
        "precision": hardware.precision,
    }


class quiet(warnings.catch_warnings):
    """Without Lightning's hints that do not apply here (loaders without workers, tips)."""

    def __enter__(self) -> None:  # type: ignore[override]
        super().__enter__()
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        for name in ("lightning.pytorch", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.ERROR)
