"""Sizes against what they stand for: DeepSpeed's and vLLM's own figures, PyTorch's tracker, real tensors."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from robustops.learning.batching import Sequences, pad
from robustops.learning.forward import score_tokens
from robustops.learning.hardware import ZERO
from robustops.learning.sizing import (
    ModelSize,
    checkpoint_bytes,
    deepspeed_estimate,
    engine_memory,
    key_value_bytes,
    logit_bytes,
    model_states,
    sft_steps,
)
from robustops.learning.skeleton import measure_activations, size_of
from robustops.settings import HardwareSettings, LoRASettings
from tests.tiny_model import tiny_model

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"
)
#: The 4B model of the reference recipe, and one whose largest layer is a large part of it.
MODELS = [
    ModelSize(4_022_468_096, 4_022_468_096, 388_956_160, 36, 2560, 8, 128, 151_936),
    ModelSize(134_515_008, 134_515_008, 28_311_552, 30, 576, 3, 64, 49_152),
]


def profile(
    strategy: str, devices: int = 1, nodes: int = 1, precision: str = "bf16-mixed"
) -> HardwareSettings:
    return HardwareSettings("test", "gpu", devices, nodes, strategy, precision)


def wide_model(dtype: torch.dtype = torch.float32, vocabulary: int = 512) -> Qwen3ForCausalLM:
    """Wide enough that tensors of a few numbers do not count."""
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).to(dtype).eval()


def one_row(tokens: int, trained: int) -> Sequences:
    return pad([[7] * tokens], [[False] * (tokens - trained) + [True] * trained], [0])


# model states -------------------------------------------------------------------------------------
@needs_deepspeed
@pytest.mark.parametrize("size", MODELS, ids=["4B", "135M"])
@pytest.mark.parametrize("strategy", sorted(ZERO))
@pytest.mark.parametrize(("devices", "nodes"), [(1, 1), (2, 1), (8, 1), (8, 2), (4, 8)])
def test_zero_model_states_are_those_of_deepspeeds_estimators(
    size: ModelSize, strategy: str, devices: int, nodes: int
) -> None:
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    offload = strategy.endswith("offload")
    if strategy.startswith("deepspeed_stage_2"):
        host, device = estimate_zero2_model_states_mem_needs(
            size.parameters, num_gpus_per_node=devices, num_nodes=nodes, cpu_offload=offload
        )
    else:
        host, device, _ = estimate_zero3_model_states_mem_needs(
            size.parameters,
            size.largest_layer,
            num_gpus_per_node=devices,
            num_nodes=nodes,
            cpu_offload=offload,
            cpu_offload_params=offload,
            zero_init=False,
        )
    hardware = profile(strategy, devices, nodes)
    states = model_states(size, hardware, "bfloat16")
    assert sum(states.device.values()) == pytest.approx(device, rel=0.1)
    assert sum(states.host.values()) == pytest.approx(host, rel=0.1)
    assert deepspeed_estimate(size, hardware) == (int(device), int(host))


def test_deepspeed_says_nothing_of_what_its_estimators_do_not_cover() -> None:
    size = MODELS[0]
    assert deepspeed_estimate(size, profile("ddp", 2)) is None
    assert deepspeed_estimate(size, profile("deepspeed_stage_2", 2, precision="32-true")) is None
    adapters = replace(size, trained=size.parameters // 100)
    assert deepspeed_estimate(adapters, profile("deepspeed_stage_2", 2)) is None


@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "float32"), (torch.bfloat16, "bfloat16")])
def test_plain_model_states_are_the_bytes_of_real_tensors_after_a_step(dtype: torch.dtype, name: str) -> None:
    model = wide_model(dtype)
    optimizer = torch.optim.AdamW(model.parameters())
    score_tokens(model, one_row(40, 30)).log_probs.sum().backward()
    optimizer.step()
    real = {
        "weights": sum(p.nbytes for p in model.parameters()),
        "gradients": sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        "optimiser": sum(t.nbytes for state in optimizer.state.values() for t in state.values()),
    }
    precision = "32-true" if name == "float32" else "bf16-mixed"
    states = model_states(size_of(model), profile("auto", precision=precision), name)
    assert states.host == {}
    for part, counted in real.items():
        # AdamW counts its steps in a number a tensor.
        assert states.device[part] == pytest.approx(counted, rel=0.01)


def test_adapters_have_gradients_and_optimiser_state_of_their_own_size() -> None:
    size = replace(MODELS[0], trained=MODELS[0].parameters // 100)
    for strategy in ("auto", *ZERO):
        whole = model_states(MODELS[0], profile(strategy, 2), "bfloat16").device
        part = model_states(size, profile(strategy, 2), "bfloat16").device
        assert part["weights"] == whole["weights"]
        assert part["gradients"] == pytest.approx(whole["gradients"] / 100, rel=1e-6)
        assert part["optimiser"] == pytest.approx(whole["optimiser"] / 100, rel=1e-6)


def test_more_devices_never_need_more_each_and_zero_3_less_than_zero_2() -> None:
    def on(strategy: str, devices: int) -> int:
        return sum(model_states(MODELS[0], profile(strategy, devices), "bfloat16").device.values())

    for strategy in ZERO:
        needs = [on(strategy, devices) for devices in (1, 2, 4, 8, 64)]
        assert needs == sorted(needs, reverse=True)
    assert on("deepspeed_stage_3", 8) < on("deepspeed_stage_2", 8)
    assert (
        on("deepspeed_stage_3_offload", 8) < on("deepspeed_stage_2_offload", 8) < on("deepspeed_stage_2", 8)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_is_as_large_as_the_file(dtype: torch.dtype, tmp_path: Path) -> None:
    model = wide_model(dtype)
    optimizer = torch.optim.AdamW(model.parameters())
    score_tokens(model, one_row(40, 30)).log_probs.sum().backward()
    optimizer.step()
    torch.save({"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "file")
    expected = checkpoint_bytes(size_of(model), profile("auto"), dtype.itemsize)
    assert expected == pytest.approx((tmp_path / "file").stat().st_size, rel=0.1)


# activations and logits ---------------------------------------------------------------------------
def tracked_peak(model: Qwen3ForCausalLM, batch: Sequences) -> int:
    """Most bytes at one time of a forward and backward pass, beside weights and their gradients, as
    PyTorch's memory tracker sees it.
    """
    tracker = MemTracker()
    tracker.track_external(model)
    with tracker:
        score_tokens(model, batch).log_probs.sum().backward()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return sum(
        count
        for kind, count in peak.items()
        if str(kind).rpartition(".")[2] not in ("PARAM", "GRAD", "BUFFER", "Total")
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("tokens", "trained", "vocabulary"), [(700, 600, 512), (300, 250, 4096), (500, 40, 512)]
)
def test_activations_and_logits_are_what_the_memory_tracker_of_pytorch_sees(
    dtype: torch.dtype, tokens: int, trained: int, vocabulary: int
) -> None:
    model = wide_model(dtype, vocabulary)
    activations = measure_activations(model.config, dtype, LoRASettings(), autocast=False)
    logits = logit_bytes(trained, size_of(model), dtype.itemsize)
    expected = activations.peak(tokens, logits, checkpointing=False)
    assert expected == pytest.approx(tracked_peak(model, one_row(tokens, trained)), rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "trained", "vocabulary"), [(700, 100, 512), (300, 280, 4096)])
def test_with_gradient_checkpointing_too(
    dtype: torch.dtype, tokens: int, trained: int, vocabulary: int
) -> None:
    model = wide_model(dtype, vocabulary)
    activations = measure_activations(model.config, dtype, LoRASettings(), autocast=False)
    logits = logit_bytes(trained, size_of(model), dtype.itemsize)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    expected = activations.peak(tokens, logits, checkpointing=True)
    assert expected == pytest.approx(tracked_peak(model, one_row(tokens, trained)), rel=0.1)


def test_logits_are_held_a_slice_at_a_time() -> None:
    size = MODELS[0]
    few, many = logit_bytes(1_000, size, 2), logit_bytes(30_000, size, 2)
    # Only the states of the trained positions grow.
    assert many - few == 29_000 * size.hidden * 2


# sampling -----------------------------------------------------------------------------------------
def test_keys_and_values_are_those_of_a_transformers_cache() -> None:
    model = wide_model()
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.full((1, 37), 5), past_key_values=cache, use_cache=True)
    real = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert key_value_bytes(size_of(model), 37, 4) == real
    assert key_value_bytes(size_of(model), 37, 4, block=16) == real * 48 / 37


def test_an_engine_divides_its_share_into_weights_and_cache() -> None:
    size = ModelSize(1000, 1000, 10, layers=2, hidden=4, key_value_heads=1, head_width=4, vocabulary=9)
    engine = engine_memory(
        size, context_tokens=16, in_flight=3, each=2, device_memory=20_000, memory_fraction=0.5
    )
    # 2 tensors x 2 layers x 1 head x 4 numbers x 16 tokens x 2 bytes
    assert (engine.share, engine.weights, engine.room) == (10_000, 2_000, 8_000)
    assert (engine.context, engine.wanted, engine.full_contexts) == (512, 1536, 8_000 / 512)
    small = engine_memory(
        size, context_tokens=16, in_flight=3, each=2, device_memory=2_000, memory_fraction=0.5
    )
    assert small.room == 0 and small.full_contexts == 0


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.parametrize("size", MODELS, ids=["4B", "135M"])
@pytest.mark.parametrize("block", [16, 128])
def test_the_kv_cache_of_a_context_is_vllms(size: ModelSize, block: int, tmp_path: Path) -> None:
    """By vLLM's own accounting of what requests of full length take of its cache."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.kv_cache_utils import estimate_max_model_len, max_memory_usage_bytes
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    tiny_model().save_pretrained(tmp_path)
    options = {"skip_tokenizer_init": True, "max_model_len": 2000, "dtype": "float32"}
    config = EngineArgs(model=str(tmp_path), **options).create_engine_config()
    spec = FullAttentionSpec(
        block_size=block,
        num_kv_heads=size.key_value_heads,
        head_size=size.head_width,
        dtype=torch.bfloat16,
    )
    layers = {f"layer {number}": spec for number in range(size.layers)}
    assert key_value_bytes(size, 2000, 2, block) == max_memory_usage_bytes(config, layers.values())
    # A whole engine: as many contexts as fit by our figure fit by vLLM's, and one more does not.
    room = 3 * key_value_bytes(size, 2000, 2, block)
    engine = engine_memory(
        size,
        context_tokens=2000,
        in_flight=8,
        each=2,
        device_memory=room + 2 * size.parameters,
        memory_fraction=1.0,
        block=block,
    )
    assert engine.full_contexts == 3
    assert room // max_memory_usage_bytes(config, layers.values()) == 3
    assert estimate_max_model_len(config, layers, engine.room // 3) == 2000
    assert estimate_max_model_len(config, layers, engine.context - 1) < 2000


# work ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("trajectories", "batch", "epochs", "limit", "steps"),
    [
        (692, 8, 3, None, 260),  # the reference: 692 x 3 / 8 = 259.5
        (800, 8, 3, None, 300),
        (5, 8, 2, None, 2),
        (692, 8, 3, 100, 100),
    ],
)
def test_optimiser_steps_of_sft(
    trajectories: int, batch: int, epochs: int, limit: int | None, steps: int
) -> None:
    assert sft_steps(trajectories, batch, epochs, limit) == steps
