"""How much memory, disk and work a training run takes: arithmetic, without a model and without a device.

Bytes throughout. A device is a GPU, or one process on the CPU; the host is the CPU memory of one machine.
Of the model states (weights, gradients, optimiser) P are the parameters, of which T are trained; n is the
number of processes. Sources: Rajbhandari et al., ZeRO (arXiv 1910.02054), and the estimators that DeepSpeed
ships, whose figures `deepspeed_estimate` gives.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

import torch

from robustops.learning.forward import MAX_LOGITS
from robustops.learning.hardware import ZERO
from robustops.settings import HardwareSettings

GIB = 2**30
#: Factor on CPU memory that DeepSpeed's estimators plan for buffers.
HOST_BUFFERS = 1.5
#: AdamW keeps a first and a second moment; ZeRO keeps them, and a copy of the weights, in float32.
_MOMENTS, _ZERO_OPTIMISER, _FLOAT32 = 2, 12, 4
#: Peak bytes a logit while its slice is differentiated: itself (or its gradient), two softmaxes, in float32.
LOGIT_BYTES = 12


@dataclass(frozen=True)
class ModelSize:
    """Numbers of parameters (shared ones once), and the shape that caches and activations depend on.

    trained: parameters with a gradient; largest_layer: parameters of the module that holds most itself;
    head_width: elements of a key, and of a value, of one head.
    """

    parameters: int
    trained: int
    largest_layer: int
    layers: int
    hidden: int
    key_value_heads: int
    head_width: int
    vocabulary: int


@dataclass(frozen=True)
class ModelStates:
    """Bytes by part, on one device and on its host."""

    device: dict[str, int]
    host: dict[str, int]


def weight_bytes(hardware: HardwareSettings, dtype: str) -> int:
    """Bytes of a weight on the device. dtype: that the model is loaded in."""
    if hardware.strategy in ZERO:
        return 2 if hardware.precision.startswith(("bf16", "16")) else 4
    if hardware.precision in ("bf16-true", "16-true"):
        return 2
    return 2 if dtype == "bfloat16" else 4


def model_states(size: ModelSize, hardware: HardwareSettings, dtype: str) -> ModelStates:
    """Memory of weights, gradients and AdamW's state under a strategy.

    Plain: P weights, T gradients and 2 T moments in the type of the weights; `ddp` doubles the gradients
    (its buckets are copies). ZeRO-2: P weights, (gradients in the type of the weights and in float32) / n,
    (float32 weights and moments) / n. ZeRO-3: the weights too are / n, gradients are in float32
    alone, and a gathered layer is added in float32. Offloading moves optimiser and gradients, under ZeRO-3
    the weights too, to the host.
    """
    if hardware.strategy in ZERO:
        return _zero_states(size, hardware, weight_bytes(hardware, dtype))
    each = weight_bytes(hardware, dtype)
    copies = 2 if hardware.strategy == "ddp" else 1
    return ModelStates(
        {
            "weights": size.parameters * each,
            "gradients": size.trained * each * copies,
            "optimiser": size.trained * each * _MOMENTS,
        },
        {},
    )


def _zero_states(size: ModelSize, hardware: HardwareSettings, each: int) -> ModelStates:
    stage, offload = ZERO[hardware.strategy]
    count = hardware.devices * hardware.num_nodes
    gathered = _FLOAT32 * size.largest_layer if stage == 3 else 0
    weights = size.parameters * each // (count if stage == 3 else 1)
    gradients = size.trained * (_FLOAT32 + (each if stage < 3 else 0)) // count
    optimiser = size.trained * _ZERO_OPTIMISER // count
    if offload:
        device = {"weights": gathered if stage == 3 else weights, "gradients": 0, "optimiser": 0}
    else:
        device = {"weights": weights + gathered, "gradients": gradients, "optimiser": optimiser}
    return ModelStates(device, _zero_host(size, hardware, each))


def _zero_host(size: ModelSize, hardware: HardwareSettings, each: int) -> dict[str, int]:
    """CPU memory of a machine, by DeepSpeed's rule: the larger of what lives there and of what loading
    takes (each process reads the whole model in float32), with room for buffers.
    """
    stage, offload = ZERO[hardware.strategy]
    states = 0
    if offload and stage == 3:
        states = (size.parameters * each + size.trained * (_FLOAT32 + _ZERO_OPTIMISER)) // hardware.num_nodes
    elif offload:
        states = size.trained * (_FLOAT32 + _ZERO_OPTIMISER)
    # For ZeRO-2 with offloading DeepSpeed counts the processes of all machines.
    readers = hardware.devices * (hardware.num_nodes if offload and stage == 2 else 1)
    loading = max(0, _FLOAT32 * size.parameters * readers - states)
    return {
        "model states": states,
        "loading": loading,
        "buffers": int((states + loading) * (HOST_BUFFERS - 1)),
    }


def deepspeed_estimate(size: ModelSize, hardware: HardwareSettings) -> tuple[int, int] | None:
    """(device, host) bytes of the model states by DeepSpeed's own estimators.

    They suppose 16-bit weights, all of them trained. None where they do not apply, or DeepSpeed is absent.
    """
    applies = hardware.strategy in ZERO and not hardware.precision.startswith("32")
    if not applies or size.trained != size.parameters or importlib.util.find_spec("deepspeed") is None:
        return None
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else the import looks for a device, and says so
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    stage, offload = ZERO[hardware.strategy]
    devices, nodes = hardware.devices, hardware.num_nodes
    if stage == 2:
        host, device = estimate_zero2_model_states_mem_needs(size.parameters, devices, nodes, offload)
    else:
        host, device, _ = estimate_zero3_model_states_mem_needs(
            size.parameters, size.largest_layer, devices, nodes, offload, offload, zero_init=False
        )
    return int(device), int(host)


def logit_bytes(positions: int, size: ModelSize, each: int) -> int:
    """Peak of `forward.score_tokens` beyond the layers: the states at `positions` trained tokens, and the
    logits of as many of them as are held at once.
    """
    logits = min(positions * size.vocabulary, max(MAX_LOGITS, size.vocabulary))
    return positions * size.hidden * each + logits * LOGIT_BYTES


def checkpoint_bytes(size: ModelSize, hardware: HardwareSettings, each: int) -> int:
    """A stage's checkpoint: all weights, and the optimiser's state."""
    optimiser = _ZERO_OPTIMISER if hardware.strategy in ZERO else _MOMENTS * each
    return size.parameters * each + size.trained * optimiser


# sampling -----------------------------------------------------------------------------------------
def key_value_bytes(size: ModelSize, tokens: int, each: int, block: int = 1) -> int:
    """Keys and values of `tokens` tokens in all layers. each: bytes of an element; block: tokens that are
    allocated at once.
    """
    held = -(-tokens // block) * block
    return 2 * size.layers * size.key_value_heads * size.head_width * held * each


@dataclass(frozen=True)
class EngineMemory:
    """A vLLM engine. share: bytes that it takes of the device; weights, room: of them for weights, and left
    for keys and values; context: keys and values of one episode of full length; wanted: of all episodes
    in flight.
    """

    share: int
    weights: int
    room: int
    context: int
    wanted: int

    @property
    def full_contexts(self) -> float:
        """Episodes of full length that fit at once; the others wait, or are computed again."""
        return self.room / self.context


def engine_memory(
    size: ModelSize,
    *,
    context_tokens: int,
    in_flight: int,
    each: int,
    device_memory: int,
    memory_fraction: float,
    block: int = 16,
) -> EngineMemory:
    """What a vLLM engine does with its share of a device; its activations are not taken off the room."""
    share = int(device_memory * memory_fraction)
    weights = size.parameters * each
    context = key_value_bytes(size, context_tokens, each, block)
    return EngineMemory(share, weights, max(0, share - weights), context, in_flight * context)


# work ---------------------------------------------------------------------------------------------
def sft_steps(trajectories: int, batch: int, epochs: int, limit: int | None) -> int:
    """Optimiser steps of the supervised stage; its epochs run into one another."""
    steps = -(-epochs * trajectories // max(1, min(batch, trajectories)))
    return steps if limit is None else min(steps, limit)
