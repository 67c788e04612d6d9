"""Models without weights: where their shape comes from, and what a forward pass keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from robustops.errors import ConfigError
from robustops.learning.skeleton import (
    build_skeleton,
    count_kept,
    find_config,
    measure_activations,
    size_of,
)
from robustops.resources import conf_dir, data_dir
from robustops.settings import LoRASettings, ModelSettings
from tests.tiny_model import tiny_model

ALL = LoRASettings()


def conf_model(name: str) -> ModelSettings:
    """A model of conf/."""
    content: dict[str, Any] = yaml.safe_load((conf_dir() / "model" / f"{name}.yaml").read_text())
    content["lora"] = LoRASettings(**content["lora"])
    return ModelSettings(**content)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face cache without any model."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    return folder


# shape --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # As published with the weights of Qwen3-4B (its base), Qwen2.5-1.5B and SmolLM2-135M.
        ("arctic_midtool_4b", 4_022_468_096),
        ("qwen2_5_1_5b", 1_543_714_304),
        ("smollm2_135m", 134_515_008),
    ],
)
def test_models_of_conf_have_their_published_number_of_parameters(
    name: str, parameters: int, empty_cache: Path
) -> None:
    config, place = find_config(conf_model(name))
    assert place == "model.architecture"
    skeleton = build_skeleton(config, torch.bfloat16, ALL)
    assert all(parameter.is_meta for parameter in skeleton.parameters())
    size = size_of(skeleton)
    assert (size.parameters, size.trained) == (parameters, parameters)
    # The embeddings, which the output head shares.
    assert size.largest_layer == size.vocabulary * size.hidden


def test_a_skeleton_has_the_size_of_the_model() -> None:
    model = tiny_model()
    assert size_of(build_skeleton(model.config, torch.float32, ALL)) == size_of(model)


def test_the_embedded_model_is_read_from_its_folder() -> None:
    config, place = find_config(conf_model("tiny"))
    assert place == str(data_dir() / "models" / "tiny")
    assert config.vocab_size == json.loads((Path(place) / "config.json").read_text())["vocab_size"]


def test_a_checkpoint_goes_before_everything_else(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    settings = replace(conf_model("arctic_midtool_4b"), checkpoint=str(tmp_path))
    config, place = find_config(settings)
    assert (config.hidden_size, place) == (64, str(tmp_path))
    (tmp_path / "config.json").unlink()
    with pytest.raises(ConfigError, match="no config"):
        find_config(settings)


def test_a_config_in_the_cache_goes_before_the_architecture(empty_cache: Path) -> None:
    settings = conf_model("arctic_midtool_4b")
    assert settings.hub_id is not None
    folder = empty_cache / f"models--{settings.hub_id.replace('/', '--')}"
    snapshot = folder / "snapshots" / "abc"
    tiny_model().save_pretrained(snapshot)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    config, place = find_config(settings)
    assert (config.hidden_size, place) == (64, str(snapshot))


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ({}, "is not known here; set model.checkpoint"),
        ({"model_type": "qwen33"}, "model_type is 'qwen33'"),
        ({"hidden_size": 8}, "model_type is 'None'"),
        ({"model_type": "qwen3", "hidden": 8}, "has hidden, which qwen3 does not"),
    ],
)
def test_an_unknown_shape_is_refused(architecture: dict[str, Any], message: str, empty_cache: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        find_config(replace(conf_model("qwen2_5_1_5b"), architecture=architecture))


def test_a_config_that_is_no_causal_language_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip_text_model"}))
    config, _ = find_config(replace(conf_model("tiny"), checkpoint=str(tmp_path)))
    with pytest.raises(ConfigError, match="no causal language model"):
        build_skeleton(config, torch.float32, ALL)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="no usable model config"):
        find_config(replace(conf_model("tiny"), checkpoint=str(tmp_path)))


def test_adapters_are_the_only_trained_parameters() -> None:
    config = tiny_model().config
    whole = size_of(build_skeleton(config, torch.float32, ALL))
    adapted = size_of(build_skeleton(config, torch.float32, LoRASettings(rank=4)))
    assert adapted.trained == adapted.parameters - whole.parameters > 0
    measure_activations(config, torch.float32, LoRASettings(rank=4), autocast=False)


# activations --------------------------------------------------------------------------------------
def bytes_kept(model: torch.nn.Module, tokens: int, *, autocast: bool = False) -> int:
    """What autograd keeps of a real forward pass, counted here and not by the code under test."""
    kept: dict[int, torch.Tensor] = {}
    own = {parameter.data_ptr() for parameter in (*model.parameters(), *model.buffers())}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        model.base_model(input_ids=torch.full((1, tokens), 5), use_cache=False)  # type: ignore[operator]
    return sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in own)


@pytest.mark.parametrize("tokens", [33, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_the_bytes_that_autograd_keeps_of_a_real_pass(
    dtype: torch.dtype, tokens: int
) -> None:
    model = tiny_model().to(dtype)
    activations = measure_activations(model.config, dtype, ALL, autocast=False)
    assert activations.fixed == 0
    assert activations.bytes(tokens, checkpointing=False) == pytest.approx(
        bytes_kept(model, tokens), rel=0.02
    )


@pytest.mark.parametrize("tokens", [33, 700])
def test_under_autocast_the_copies_of_the_weights_are_part_of_it(tokens: int) -> None:
    model = tiny_model()
    activations = measure_activations(model.config, torch.float32, ALL, autocast=True)
    linear = sum(m.weight.numel() for m in model.model.modules() if isinstance(m, torch.nn.Linear))
    assert activations.fixed == pytest.approx(2 * linear, rel=0.02)
    real = bytes_kept(model, tokens, autocast=True)
    assert activations.bytes(tokens, checkpointing=False) == pytest.approx(real, rel=0.02)


def test_gradient_checkpointing_keeps_inputs_and_one_layer() -> None:
    model = tiny_model()
    activations = measure_activations(model.config, torch.float32, ALL, autocast=False)
    model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[no-untyped-call]
    model.train()
    inputs = bytes_kept(model, 500)
    assert activations.inputs * 500 == pytest.approx(inputs, rel=0.02)
    layers = model.config.num_hidden_layers
    assert activations.layer == pytest.approx((activations.kept - activations.inputs) / layers, rel=0.2)
    assert activations.bytes(500, checkpointing=True) < activations.bytes(500, checkpointing=False)


def test_counting_leaves_no_hook_behind() -> None:
    model = tiny_model()
    with count_kept(model) as kept:
        model.base_model(input_ids=torch.full((1, 20), 5), use_cache=False)
    before = (kept.outside, list(kept.layers), list(kept.inputs))
    model.base_model(input_ids=torch.full((1, 20), 5), use_cache=False)
    assert before == (kept.outside, kept.layers, kept.inputs)
    assert kept.outside > 0 and all(kept.layers) and all(kept.inputs)
    assert not any(layer._forward_pre_hooks or layer._forward_hooks for layer in model.modules())
