"""Weights on their way to an engine: which it must get, and the folder that they travel in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import safe_open

from robustops.errors import SamplerError

Shapes = Mapping[str, tuple[int, ...]]
_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"
_SHARD = "4GB"


def weight_shapes(folder: Path) -> Shapes:
    """Of the weights in the folder's safetensors files; empty where it keeps them in another form."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            shapes.update({name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()})  # noqa: SIM118
    return shapes


def complete_weights(
    weights: Mapping[str, torch.Tensor], expected: Shapes, *, tied: bool
) -> dict[str, torch.Tensor]:
    """The weights, detached: none missing, none unknown, and each of its shape; else SamplerError.

    vLLM does not check: with too few it goes on with its old values, and one that does not fit breaks it for
    good. expected: names and shapes of all weights (empty: any will do); tied: the output head is the
    embedding, and is added to the weights where it is absent, since an engine may keep it apart.
    """
    named = {name: tensor.detach() for name, tensor in weights.items()}
    required = set(expected) - ({_HEAD} if tied else set())
    if missing := sorted(required - named.keys()):
        raise SamplerError(
            f"weights for vLLM lack {len(missing)} of {len(required)} names, first '{missing[0]}'; "
            "pass the whole state_dict under its transformers names (merge adapters first)"
        )
    if expected and (unknown := sorted(named.keys() - set(expected) - {_HEAD})):
        raise SamplerError(
            f"weights for vLLM hold {len(unknown)} names that its model has not, first '{unknown[0]}'; "
            "engine and trainer must hold the same model"
        )
    for name in required:
        if (shape := tuple(named[name].shape)) != expected[name]:
            raise SamplerError(
                f"weight '{name}' for vLLM has shape {shape} instead of {expected[name]}; gather partitioned "
                "weights (ZeRO-3, FSDP) first, and give engine and trainer the same model"
            )
    if tied and _HEAD not in named:
        embedding = [tensor for name, tensor in named.items() if name.endswith(_EMBEDDING)]
        if len(embedding) != 1:
            raise SamplerError(
                f"weights for vLLM lack '{_HEAD}', which this model ties to its embedding; pass the "
                "model's whole state_dict, which has both"
            )
        named[_HEAD] = embedding[0]
    return named


def write_weights(weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write safetensors files into `folder`, which is there with all of them or not at all.

    The configuration files (*.json) of the folder above go with them, so that it can be loaded by itself.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for file in folder.parent.glob("*.json"):
        shutil.copy(file, partial)
    save_torch_state_dict(_apart(weights), partial, max_shard_size=_SHARD)
    os.replace(partial, folder)


def _apart(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors that share memory made copies: the file format has no ties."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in weights.items():
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return apart
