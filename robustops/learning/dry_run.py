"""What a training run would take, from its settings: memory by part, tokens and steps, disk. Nothing runs.

Figures are upper bounds in bytes, tokens and steps; activations and logits are those of the largest
micro-batch. Not counted: the CUDA context, communication buffers, fragmentation, and vLLM's own
activations; `MARGIN` stands for them.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from robustops.learning.hardware import STRATEGIES, ZERO
from robustops.learning.sizing import (
    GIB,
    EngineMemory,
    ModelSize,
    checkpoint_bytes,
    deepspeed_estimate,
    engine_memory,
    key_value_bytes,
    logit_bytes,
    model_states,
    sft_steps,
    weight_bytes,
)
from robustops.learning.skeleton import (
    Activations,
    build_skeleton,
    find_config,
    measure_activations,
    size_of,
)
from robustops.learning.weight_change import MAX_BYTES
from robustops.settings import SamplerSettings, TrainSettings

#: The smallest GPU that the reference recipe is meant for, supposed where this machine has none.
REFERENCE_GPU = 80 * GIB
#: Share of a device that the figures leave to what they do not count.
MARGIN = 0.05
#: Device counts of the table of strategies.
DEVICE_COUNTS = (1, 2, 4, 8)
#: The last complete checkpoint and the one being written.
_CHECKPOINTS = 2
#: And of a run that may go back: one is pinned while an attempt is on trial.
_PINNED = 1


@dataclass(frozen=True)
class Shape:
    """What the other figures follow from. each: bytes of a weight on a training device."""

    size: ModelSize
    activations: Activations
    each: int
    place: str


def plan(settings: TrainSettings, device_memory: int | None = None) -> dict[str, Any]:
    """The whole report, as plain values.

    device_memory: bytes of a GPU (None: `REFERENCE_GPU`), or of the machine where training is on its CPU.

    Raises:
        ConfigError: the shape of the model is not known.
    """
    hardware, total = settings.hardware, device_memory or REFERENCE_GPU
    memory = total if hardware.accelerator == "gpu" else total // hardware.devices
    shape = _shape(settings)
    engine = _engine(settings, shape, memory)
    stages = {stage: _stage_memory(stage, settings, shape, engine) for stage in settings.stages}
    return {
        "dry_run": True,
        "model": {
            "name": settings.model.name,
            "shape_from": shape.place,
            "weight_bytes": shape.each,
            **asdict(shape.size),
        },
        "hardware": asdict(hardware) | {"processes": hardware.devices * hardware.num_nodes},
        "memory_per_device": stages,
        "memory_per_host": _host_memory(settings, shape),
        "activations": _activation_figures(settings, shape),
        "engine": None if engine is None else asdict(engine) | {"full_contexts": engine.full_contexts},
        "device_memory": {
            "bytes": memory,
            "known": device_memory is not None,
            "fits": all(parts["total"] <= memory * (1 - MARGIN) for parts in stages.values()),
        },
        "deepspeed_estimate": _pair(deepspeed_estimate(shape.size, hardware)),
        "strategies": _strategies(settings, shape.size),
        "work": {stage: _WORK[stage](settings) for stage in settings.stages},
        "evaluation_episodes": _evaluation_episodes(settings),
        "disk": _disk(settings, shape),
        "notes": _notes(settings, shape),
    }


def _shape(settings: TrainSettings) -> Shape:
    config, place = find_config(settings.model)
    hardware, lora = settings.hardware, settings.model.lora
    each = weight_bytes(hardware, settings.model.dtype)
    dtype = torch.bfloat16 if each == 2 else torch.float32
    autocast = each == 4 and hardware.precision.endswith("mixed")
    size = size_of(build_skeleton(config, dtype, lora))
    return Shape(size, measure_activations(config, dtype, lora, autocast=autocast), each, place)


# memory -------------------------------------------------------------------------------------------
def largest_micro_batch(settings: TrainSettings, stage: str) -> int:
    """Tokens: the budget, or one episode of full length, which goes alone if it is longer."""
    budget = settings.sft.micro_batch_tokens if stage == "sft" else settings.grpo.micro_batch_tokens
    return max(budget, settings.model.context_tokens)


def _stage_memory(
    stage: str, settings: TrainSettings, shape: Shape, engine: EngineMemory | None
) -> dict[str, int]:
    """Bytes by part on one device, and their `total`: of what is there at the same time."""
    model, tokens = settings.model, largest_micro_batch(settings, stage)
    always = dict(model_states(shape.size, settings.hardware, model.dtype).device)
    always["earlier_weights"] = _earlier_weights(settings, shape)
    sampler = {}
    if stage == "grpo":
        always["reference"] = _reference(settings, shape)
        sampler["sampler"] = _sampler(settings, shape, engine)
    checkpointing = model.gradient_checkpointing
    logits = logit_bytes(_trained_positions(settings, tokens), shape.size, shape.each)
    layers = shape.activations.bytes(tokens, checkpointing=checkpointing)
    training = shape.activations.peak(tokens, logits, checkpointing=checkpointing)
    sampling = sum(sampler.values())
    peak = max(sampling, training) if _sleeps(settings) else sampling + training
    total = sum(always.values()) + peak
    return {**always, **sampler, "activations": layers, "logits": logits, "total": total}


def _earlier_weights(settings: TrainSettings, shape: Shape) -> int:
    """The copy by which the telemetry measures an update; see `weight_change`."""
    stage, _ = ZERO.get(settings.hardware.strategy, (0, False))
    size = shape.size.trained * shape.each
    return size if stage != 3 and size <= MAX_BYTES else 0


def _sleeps(settings: TrainSettings) -> bool:
    """Whether the engine gives its memory to the trainer meanwhile."""
    return settings.sampler.name == "vllm" and settings.sampler.sleep_level > 0


def _host_memory(settings: TrainSettings, shape: Shape) -> dict[str, int]:
    """Bytes by part in the CPU memory of a machine, beside what the processes themselves take."""
    parts = dict(model_states(shape.size, settings.hardware, settings.model.dtype).host)
    if _sleeps(settings) and settings.sampler.sleep_level == 1:
        parts["sleeping engine"] = shape.size.parameters * shape.each * settings.hardware.devices
    return {**parts, "total": sum(parts.values())}


def _trained_positions(settings: TrainSettings, tokens: int) -> int:
    """Of the largest micro-batch: no more than an episode's answers, for each episode in it."""
    model = settings.model
    answers = min(model.max_turns * model.answer_tokens, model.context_tokens)
    return min(tokens, -(-tokens // model.context_tokens) * answers)


def _reference(settings: TrainSettings, shape: Shape) -> int:
    """A whole copy of the loaded model on every device; adapters are switched off instead."""
    if settings.grpo.kl == 0 or settings.model.lora.rank > 0:
        return 0
    return shape.size.parameters * (2 if settings.model.dtype == "bfloat16" else 4)


def _sampler(settings: TrainSettings, shape: Shape, engine: EngineMemory | None) -> int:
    """VLLM's share of the device; the keys and values of the `hf` sampler, whose weights are the policy's."""
    if engine is not None:
        return engine.share
    if settings.sampler.name != "hf":
        return 0
    context = key_value_bytes(shape.size, settings.model.context_tokens, shape.each)
    return settings.sampler.max_in_flight * context


def _engine(settings: TrainSettings, shape: Shape, memory: int) -> EngineMemory | None:
    """The vLLM engine beside the trainer, if there is one."""
    sampler: SamplerSettings = settings.sampler
    if sampler.name != "vllm":
        return None
    each = 2 if settings.model.dtype == "bfloat16" else 4
    fraction = sampler.memory_fraction
    if settings.hardware.accelerator == "cpu":
        # On the CPU the cache has a size of its own, in GiB.
        cache = float(os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")) * GIB
        fraction = (shape.size.parameters * each + cache) / memory
    return engine_memory(
        shape.size,
        context_tokens=settings.model.context_tokens,
        in_flight=sampler.max_in_flight,
        each=each,
        device_memory=memory,
        memory_fraction=fraction,
    )


def _activation_figures(settings: TrainSettings, shape: Shape) -> dict[str, Any]:
    tokens = {stage: largest_micro_batch(settings, stage) for stage in settings.stages}
    most = max(tokens.values(), default=settings.model.context_tokens)
    return {
        "tokens": most,
        "checkpointing": settings.model.gradient_checkpointing,
        "kept": shape.activations.bytes(most, checkpointing=False),
        "checkpointed": shape.activations.bytes(most, checkpointing=True),
    }


def _strategies(settings: TrainSettings, size: ModelSize) -> list[dict[str, Any]]:
    """Model states by strategy and number of devices of one machine, beside DeepSpeed's figures."""
    rows = []
    for strategy in STRATEGIES:
        for devices in DEVICE_COUNTS if strategy != "auto" else (1,):
            hardware = replace(settings.hardware, strategy=strategy, devices=devices, num_nodes=1)
            states = model_states(size, hardware, settings.model.dtype)
            rows.append(
                {
                    "strategy": strategy,
                    "devices": devices,
                    "device": sum(states.device.values()),
                    "host": sum(states.host.values()),
                    "deepspeed": _pair(deepspeed_estimate(size, hardware)),
                }
            )
    return rows


def _pair(estimate: tuple[int, int] | None) -> dict[str, int] | None:
    return None if estimate is None else {"device": estimate[0], "host": estimate[1]}


# work ---------------------------------------------------------------------------------------------
def _sft_work(settings: TrainSettings) -> dict[str, int]:
    sft, context = settings.sft, settings.model.context_tokens
    trajectories = _cases(settings, "train")
    trajectories = trajectories if sft.tasks is None else min(sft.tasks, trajectories)
    batch = min(sft.batch_trajectories, trajectories)
    return {
        "trajectories": trajectories,
        "trajectories_per_step": batch,
        "tokens_per_step": batch * context,
        "optimiser_steps": sft_steps(trajectories, batch, sft.epochs, sft.max_steps),
    }


def _grpo_work(settings: TrainSettings) -> dict[str, int]:
    grpo, model = settings.grpo, settings.model
    episodes = (grpo.groups + grpo.fault_groups) * grpo.group_size
    answers = min(model.max_turns * model.answer_tokens, model.context_tokens)
    return {
        "trajectories_per_step": episodes,
        "tokens_per_step": episodes * model.context_tokens,
        "sampled_tokens_per_step": episodes * (1 + grpo.refill_rounds) * answers,
        "optimiser_steps": grpo.steps * grpo.epochs * grpo.mini_batches,
    }


_WORK = {"sft": _sft_work, "grpo": _grpo_work}


def _cases(settings: TrainSettings, split: str) -> int:
    count: int = getattr(settings.domain, split)
    return count * len(settings.domain.tool_configs)


def _evaluation_episodes(settings: TrainSettings) -> int:
    evaluation = settings.evaluation
    cases = _cases(settings, evaluation.split)
    cases = cases if evaluation.cases is None else min(cases, evaluation.cases)
    policies = [name for name in evaluation.policies if name == "base" or name in settings.stages]
    return cases * len(policies) * len(evaluation.conditions) * evaluation.attempts


# disk ---------------------------------------------------------------------------------------------
def _disk(settings: TrainSettings, shape: Shape) -> dict[str, int]:
    """Most bytes in the run folder at one time, without its records (megabytes)."""
    policy = shape.size.parameters * shape.each
    checkpoint = checkpoint_bytes(shape.size, settings.hardware, shape.each)
    stages, count = len(settings.stages), _CHECKPOINTS
    if settings.monitor.name == "remediate" and "grpo" in settings.stages:
        count = settings.monitor.ring + _PINNED
    parts = {
        "policies": policy * stages,
        "checkpoints": count * checkpoint if stages else 0,
        "engine_weights": policy if settings.sampler.name == "vllm" else 0,
    }
    return {"checkpoint": checkpoint, **parts, "total": sum(parts.values())}


def _notes(settings: TrainSettings, shape: Shape) -> list[str]:
    """What the numbers do not show."""
    if shape.each == 4 or settings.hardware.strategy in ZERO or not settings.stages:
        return []
    return [
        f"AdamW updates 16-bit weights under strategy {settings.hardware.strategy}: updates below about "
        "1/256 of a weight are lost, at learning rates such as 1e-6 nearly all of them; model.dtype=float32, "
        "or a deepspeed strategy, keeps float32 weights"
    ]
