"""From settings to the hooks of a training run, and what a mechanism cannot work with."""

from __future__ import annotations

from pathlib import Path

from robustops.bench.run_faults import credit, environment, generation, optimisation, rewards
from robustops.bench.run_faults.catalog import check_together, chosen
from robustops.bench.run_faults.entries import FaultType, MechanismInfo
from robustops.bench.run_faults.exposure import ExposureLog, log_name
from robustops.bench.run_faults.mechanism import Mechanism
from robustops.bench.run_faults.spec import RunFaultSpec
from robustops.errors import ConfigError
from robustops.learning.combined_hooks import combined
from robustops.learning.hardware import group_size
from robustops.learning.hooks import TrainingHooks
from robustops.rewards.combine import RewardWeights
from robustops.settings import RunFaultSettings, TrainSettings

#: The classes of the catalogue's mechanisms.
MECHANISMS: dict[str, type[Mechanism]] = {
    "episode_spike": rewards.EpisodeSpike,
    "component_scale": rewards.ComponentScale,
    "uniform_spike": rewards.UniformSpike,
    "zeroed_episodes": rewards.ZeroedEpisodes,
    "verifier_down": rewards.ZeroedEpisodes,
    "echo_bonus": rewards.ProxyReward,
    "lenient_verifier": rewards.LenientVerifier,
    "stop_at_once": generation.StopAtOnce,
    "empty_reply": generation.EmptyReply,
    "silence_reward": rewards.SilenceReward,
    "repeat_last": generation.RepeatLast,
    "stuck_decoder": generation.StuckDecoder,
    "repetition_reward": rewards.RepetitionReward,
    "stop_early": generation.StopEarly,
    "token_cut": generation.TokenCut,
    "brevity_reward": rewards.BrevityReward,
    "stop_suppressed": generation.StopSuppressed,
    "missed_stop": generation.MissedStop,
    "length_reward": rewards.LengthReward,
    "aggressive_updates": optimisation.AggressiveUpdates,
    "kl_sign": optimisation.KLSign,
    "noisy_gradient": optimisation.NoisyGradient,
    "skipped_updates": optimisation.SkippedUpdates,
    "tiny_rate": optimisation.TinyRate,
    "frozen_parameters": optimisation.FrozenParameters,
    "stale_sampler": optimisation.StaleSampler,
    "entropy_penalty": optimisation.EntropyPenalty,
    "cold_sampling": generation.ColdSampling,
    "swapped_baseline": credit.SwappedBaseline,
    "offset_baseline": credit.OffsetBaseline,
    "merged_groups": credit.MergedGroups,
    "singleton_groups": credit.SingletonGroups,
    "permuted_targets": credit.PermutedTargets,
    "frozen_critic": optimisation.FrozenCritic,
    "heavy_noise": credit.HeavyNoise,
    "sign_flips": credit.SignFlips,
    "lagged_advantages": credit.LaggedAdvantages,
    "rolled_rewards": credit.RolledRewards,
    "late_credit": credit.LateCredit,
    "tool_outage": environment.ToolOutage,
    "rejected_call": environment.RejectedCall,
    "digit_noise": environment.DigitNoise,
    "stale_reply": environment.StaleReply,
    "truncated_reply": environment.TruncatedReply,
    "early_done": environment.EarlyDone,
    "turn_limit": environment.TurnLimit,
    "stop_ignored": environment.StopIgnored,
}


def spec_of(settings: RunFaultSettings) -> RunFaultSpec:
    """The injection that settings describe. ConfigError for what does not go together."""
    fault, mechanism = chosen(settings)
    return RunFaultSpec(
        fault.name,
        mechanism.name,
        settings.strength,
        settings.probability,
        settings.unit or mechanism.units[0],
        settings.onset,
        settings.ramp,
        settings.end,
        settings.seed,
    )


def injections(settings: TrainSettings) -> list[RunFaultSettings]:
    """The run faults of a training run, first to last. ConfigError for two that make no sense together."""
    check_together(settings.run_fault, settings.second_run_fault)
    both = (settings.run_fault, settings.second_run_fault)
    return [fault for fault in both if fault.name != "none"]


def training_hooks(settings: TrainSettings, run_dir: Path) -> TrainingHooks:
    """The hooks of a training run: none, or the injectors of its run faults, each with a log of its own.

    Raises:
        ConfigError: the faults cannot be injected into a run of these settings, or not together.
    """
    reward = settings.reward
    weights = RewardWeights(reward.success, reward.progress, reward.quality)
    sets: list[TrainingHooks] = []
    for number, injection in enumerate(injections(settings), start=1):
        spec = spec_of(injection)
        check_run(settings, *chosen(injection))
        log = ExposureLog(run_dir / log_name(number), spec)
        sets.append(MECHANISMS[spec.mechanism](spec, log, weights))
    return combined(*sets)


def check_run(settings: TrainSettings, fault: FaultType, mechanism: MechanismInfo) -> None:
    """ConfigError for a mechanism that has nothing to work on."""
    name = f"run_fault={fault.name} (mechanism {mechanism.name})"
    if "grpo" not in settings.stages:
        raise ConfigError(
            f"{name} is injected into GRPO, stages is [{','.join(settings.stages)}]; add grpo, or choose "
            "run_fault=none"
        )
    hardware = settings.hardware
    if group_size(hardware) > 0 or hardware.strategy != "auto":
        raise ConfigError(
            f"{name} works in one process, hardware={hardware.name} has more, or a strategy of "
            "its own; choose a profile such as hardware=cpu or hardware=gpu_1"
        )
    if mechanism.needs_logits and settings.sampler.name != "hf":
        others = [other.name for other in fault.mechanisms if not other.needs_logits]
        raise ConfigError(
            f"{name} changes logits, which sampler={settings.sampler.name} does not offer; choose "
            f"run_fault.mechanism={' or '.join(others)}, or sampler=hf"
        )
    if mechanism.needs_critic and not settings.grpo.value_head:
        others = [other.name for other in fault.mechanisms if not other.needs_critic]
        raise ConfigError(
            f"{name} is about a value head, and this run has none; choose grpo.value_head=true, or "
            f"run_fault.mechanism={' or '.join(others)}"
        )
    if mechanism.site == "sync" and settings.grpo.sync_guard == "stop":
        raise ConfigError(
            f"{name} keeps new weights from the sampler, which the probe after every synchronisation stops; "
            "let the run go on with grpo.sync_guard=report, or repair it with grpo.sync_guard=resync"
        )
