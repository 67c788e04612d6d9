"""LoRA adapters (PEFT) inside a transformers model that keeps its class and its names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from robustops.errors import ConfigError
from robustops.settings import LoRASettings

ADAPTER = "default"


def add_lora(model: PreTrainedModel, settings: LoRASettings) -> None:
    """Put adapters into the linear layers; from then on only they are trained.

    Their start is random but always the same, and adds nothing to the weights.

    Raises ConfigError where PEFT is absent or no layer has one of the target names.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("model.lora.rank > 0 needs PEFT; pip install 'robustops[lora]'") from error
    targets: Any = list(settings.targets) or "all-linear"
    alpha: Any = settings.alpha
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            inject_adapter_in_model(config, model, ADAPTER)
    except ValueError as error:
        raise ConfigError(f"model.lora.targets {targets}: {str(error).splitlines()[0]}") from error


def has_adapters(model: PreTrainedModel) -> bool:
    """Whether `add_lora` was called on the model."""
    return any(".lora_A." in name for name, _ in model.named_parameters())


def merged_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of every weight as of a model without adapters, tied ones once.

    Adapters are added into copies: the model itself stays as it is, to the bit.
    """
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        owner, _, leaf = name.rpartition(".base_layer.")
        if not owner:
            yield name, parameter.detach()
            continue
        weight = parameter.detach()
        if leaf == "weight":
            weight = weight + modules[owner].get_delta_weight(ADAPTER).detach().to(weight.dtype)
        yield f"{owner}.{leaf}", weight


def plain_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A model of its own with the same weights, adapters merged into them, for inference."""
    copied: Any = AutoModelForCausalLM.from_config(model.config, dtype=model.dtype)  # type: ignore[no-untyped-call]
    copied.to(model.device)
    copied.load_state_dict(dict(merged_weights(model)), strict=False)
    copied.tie_weights()
    copied.requires_grad_(False)
    copied.train(False)
    whole: PreTrainedModel = copied
    return whole


@contextmanager
def without_adapters(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """The model as it was before `add_lora`, as long as the context lasts."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield model
    finally:
        for layer in layers:
            layer.enable_adapters(True)
            for name, parameter in layer.named_parameters():
                parameter.requires_grad_(".lora_" in f".{name}")
