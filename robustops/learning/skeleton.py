"""A policy's model without its weights: parameters, and what a training pass keeps for the backward pass.

Nothing is downloaded and nothing is computed: the model is built on the meta device, and its forward pass
runs on fake tensors, which have shapes and types but no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer

from robustops.errors import ConfigError
from robustops.learning.adapters import add_lora
from robustops.learning.sizing import ModelSize
from robustops.resources import model_folder
from robustops.settings import LoRASettings, ModelSettings

#: PyTorch's fused attention without a mask, as for a batch without padding. (transformers makes the whole
#: mask where it cannot look at the values of its input.)
_ATTENTION = "sdpa_unmasked"
AttentionInterface.register(_ATTENTION, sdpa_attention_forward)
#: Two lengths fix the straight line; any would do.
_LENGTHS = (256, 512)


def find_config(settings: ModelSettings) -> tuple[PreTrainedConfig, str]:
    """The transformers config of the policy's model, and where it was found.

    Looked for in turn: `checkpoint`, the folder under data/models, the Hugging Face cache,
    `settings.architecture`.

    Raises:
        ConfigError: none of them is there, or it describes no causal language model.
    """
    folder = _folder(settings)
    if folder is not None:
        try:
            return AutoConfig.from_pretrained(folder), str(folder)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"{folder} holds no usable model config: {reason}") from error
    if settings.architecture:
        return _from_architecture(settings), "model.architecture"
    raise ConfigError(
        f"the shape of model '{settings.name}' is not known here; set model.checkpoint to a model's folder, "
        "or model.architecture to its model_type and shape"
    )


def _folder(settings: ModelSettings) -> Path | None:
    """Folder with a config.json, if there is one on this machine."""
    if settings.checkpoint is not None:
        if not (Path(settings.checkpoint) / "config.json").is_file():
            raise ConfigError(f"no model in {settings.checkpoint} (no config.json); correct model.checkpoint")
        return Path(settings.checkpoint)
    if settings.source == "gguf_package":
        return None  # reading a GGUF file takes longer than all the rest
    folder = model_folder(settings)
    return folder if folder is not None and (folder / "config.json").is_file() else None


def _from_architecture(settings: ModelSettings) -> PreTrainedConfig:
    shape = dict(settings.architecture)
    kind = shape.pop("model_type", None)
    try:
        known = AutoConfig.for_model(kind).to_dict()
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"model.architecture.model_type is '{kind}'; it must be one that transformers has, e.g. qwen3"
        ) from error
    unknown = sorted(set(shape) - set(known))
    if unknown:
        raise ConfigError(f"model.architecture has {', '.join(unknown)}, which {kind} does not; remove it")
    config: PreTrainedConfig = AutoConfig.for_model(kind, **shape)
    return config


def build_skeleton(config: PreTrainedConfig, dtype: torch.dtype, lora: LoRASettings) -> PreTrainedModel:
    """The model with its adapters on the meta device."""
    with torch.device("meta"):
        return _build(config, dtype, lora)


def _build(config: PreTrainedConfig, dtype: torch.dtype, lora: LoRASettings) -> PreTrainedModel:
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype, attn_implementation=_ATTENTION
        )
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"model_type {config.model_type} is no causal language model: {reason}") from error
    if lora.rank > 0:
        add_lora(model, lora)
    model.config.use_cache = False
    return model


def size_of(model: PreTrainedModel) -> ModelSize:
    """Counts of a model, which may be on the meta device."""
    config: Any = model.config.get_text_config()
    parameters = list(model.parameters())
    own = [sum(p.numel() for p in module.parameters(recurse=False)) for module in model.modules()]
    heads = config.num_attention_heads
    return ModelSize(
        parameters=sum(p.numel() for p in parameters),
        trained=sum(p.numel() for p in parameters if p.requires_grad),
        largest_layer=max(own),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_width=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
    )


# activations --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Activations:
    """Bytes that the layers keep for the backward pass: straight lines in the number of tokens.

    A token: kept: without gradient checkpointing; inputs: with it, of every layer's input, and all that is
    kept outside of layers; layer: of the layer that keeps most, while it is computed again. fixed: whatever
    the tokens, such as the 16-bit copies of float32 weights under autocast.
    """

    kept: float
    inputs: float
    layer: float
    fixed: float

    def bytes(self, tokens: int, *, checkpointing: bool) -> int:
        """Most that is kept at one time, without logits."""
        return self.peak(tokens, 0, checkpointing=checkpointing)

    def peak(self, tokens: int, logits: int, *, checkpointing: bool) -> int:
        """With the bytes of the logits: a layer that is computed again comes after they are gone."""
        if checkpointing:
            return int(self.fixed + tokens * self.inputs + max(tokens * self.layer, logits))
        return int(self.fixed + tokens * self.kept + logits)


def measure_activations(
    config: PreTrainedConfig, dtype: torch.dtype, lora: LoRASettings, *, autocast: bool
) -> Activations:
    """Run the model on fake tensors and add up what autograd keeps.

    Attention is PyTorch's fused kernel, which keeps queries, keys, values and its output, but no
    (tokens x tokens) matrix. autocast: to bfloat16, as `bf16-mixed` does.
    """
    short, long = _LENGTHS
    first = _measure(config, dtype, lora, short, autocast).totals
    # Without autocast everything grows with the tokens.
    second = _measure(config, dtype, lora, long, autocast).totals if autocast else first
    kept, inputs, layer = (
        (after - before) / (long - short) if autocast else before / short
        for before, after in zip(first, second, strict=True)
    )
    return Activations(kept, inputs, layer, first[0] - short * kept)


def _measure(
    config: PreTrainedConfig, dtype: torch.dtype, lora: LoRASettings, tokens: int, autocast: bool
) -> Kept:
    """What the forward pass of one sequence keeps."""
    skeleton = build_skeleton(config, dtype, lora)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model: PreTrainedModel = skeleton.to_empty(device="cpu")
        model.train(False)  # no dropout, as in training
        ids = torch.zeros(1, tokens, dtype=torch.long)
        with count_kept(model) as kept, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model.base_model(input_ids=ids, use_cache=False)
    return kept


@dataclass
class Kept:
    """Bytes kept for the backward pass: outside of layers, by each layer, and by each layer's input."""

    outside: int
    layers: list[int]
    inputs: list[int]

    @property
    def totals(self) -> tuple[int, int, int]:
        """Of everything; of layer inputs and what is outside; of the layer that keeps most."""
        return self.outside + sum(self.layers), self.outside + sum(self.inputs), max(self.layers, default=0)


@contextmanager
def count_kept(model: torch.nn.Module) -> Iterator[Kept]:
    """Count what autograd keeps meanwhile.

    Each storage counts once, where it was kept first; parameters and buffers do not count.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    kept = Kept(0, [0] * len(layers), [0] * len(layers))
    place: list[int | None] = [None]
    known = {_storage(tensor) for tensor in (*model.parameters(), *model.buffers())}
    held: list[Tensor] = []  # so that no storage's address is used again

    def pack(tensor: Tensor) -> Tensor:
        if _storage(tensor) not in known:
            known.add(_storage(tensor))
            held.append(tensor)
            size = tensor.untyped_storage().nbytes()
            if place[0] is None:
                kept.outside += size
            else:
                kept.layers[place[0]] += size
        return tensor

    def enter(number: int, states: Tensor) -> None:
        place[0] = number
        kept.inputs[number] = states.untyped_storage().nbytes()

    def leave(*_: Any) -> None:
        place[0] = None

    handles = [
        handle
        for number, layer in enumerate(layers)
        for handle in (
            layer.register_forward_pre_hook(lambda _, args, number=number: enter(number, args[0])),
            layer.register_forward_hook(leave),
        )
    ]
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield kept
    finally:
        for handle in handles:
            handle.remove()


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
