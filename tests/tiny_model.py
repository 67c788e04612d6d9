"""A tokenizer and a random language model, small enough to be made in a test; helpers around samplers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from robustops.learning.batching import Sequences, pad
from robustops.learning.forward import TokenScores, score_tokens
from robustops.rollout.render import Renderer, call_text
from robustops.rollout.sampler import Completion, Request, Sampler
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import run_expert
from tests.toy_domain import TOY, toy_tasks

# Matrices this small gain nothing from threads, which then mostly wait for each other.
torch.set_num_threads(1)

#: The common form of chat templates: results are wrapped into a user message.
CHATML = (
    "{%- for m in messages -%}"
    "{%- if m.role == 'tool' -%}"
    "<|user|>\n<tool_response>\n{{ m.content }}\n</tool_response><|end|>\n"
    "{%- elif m.role == 'system' -%}<|system|>\n{{ m.content }}"
    "{%- if tools -%}{{ '\\n' }}{%- for t in tools -%}{{ t | tojson }}{{ '\\n' }}{%- endfor -%}{%- endif -%}"
    "<|end|>{{ '\\n' }}"
    "{%- else -%}<|{{ m.role }}|>{{ '\\n' }}{{ m.content }}<|end|>{{ '\\n' }}{%- endif -%}"
    "{%- endfor -%}{%- if add_generation_prompt -%}<|assistant|>{{ '\\n' }}{%- endif -%}"
)


@cache
def pretraining() -> ModuleType:
    """The script that makes the embedded model: tests use its tokenizer and template."""
    path = Path(__file__).resolve().parents[1] / "scripts" / "pretrain_tiny.py"
    spec = importlib.util.spec_from_file_location("pretrain_tiny", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def _texts() -> Iterator[str]:
    world = LocalWorld(TOY)
    for task in toy_tasks(6):
        yield task.policy + " " + task.prompt
        run = run_expert(world, TOY, task)
        for call, result in run.calls:
            yield call_text(call) + " " + result.text
        yield run.answer
    world.close()


def tiny_tokenizer(chat_template: str | None = None, vocab_size: int = 480) -> PreTrainedTokenizerFast:
    """Byte-level BPE trained on conversations of the toy domain."""
    tokenizer = pretraining().build_tokenizer(_texts(), vocab_size, numbers=())
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    return tokenizer


def tiny_renderer(chat_template: str | None = None) -> Renderer:
    return Renderer(tiny_tokenizer(chat_template))


def tiny_model(
    vocab_size: int = 512, *, seed: int = 0, tied: bool = True, width: int = 64
) -> Qwen3ForCausalLM:
    """A random Qwen3 with two layers, and weights large enough that its distributions are not flat."""
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        tie_word_embeddings=tied,
        max_position_embeddings=2048,
        initializer_range=0.15,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.config.use_cache = False
    return model.eval()


def shake(model: torch.nn.Module, seed: int, size: float = 0.03) -> None:
    """Change every weight a little, as an optimiser step would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * size)


def prompt(length: int, seed: int, vocab_size: int = 512) -> tuple[int, ...]:
    """Random ids."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(8, vocab_size, (length,), generator=generator).tolist())


def drain(sampler: Sampler, requests: Iterable[Request], polls: int = 20_000) -> dict[int, Completion]:
    """Submit and poll until every request is answered; fails on a second or a foreign answer."""
    waiting = set()
    for request in requests:
        sampler.submit(request)
        waiting.add(request.session)
    answers: dict[int, Completion] = {}
    for _ in range(polls):
        if not waiting:
            break
        for completion in sampler.poll():
            assert completion.session in waiting, f"session {completion.session} answered twice or unasked"
            waiting.remove(completion.session)
            answers[completion.session] = completion
    assert not waiting, f"no answer for {waiting}"
    return answers


def as_sequences(pairs: Iterable[tuple[Request, Completion]]) -> Sequences:
    """What the trainer makes of sampled messages: context masked, sampled ids trained."""
    rows = [(list(r.token_ids) + list(c.token_ids), len(r.token_ids)) for r, c in pairs]
    masks = [[False] * start + [True] * (len(ids) - start) for ids, start in rows]
    return pad([ids for ids, _ in rows], masks, range(len(rows)))


def largest_gap(
    model: Qwen3ForCausalLM, requests: list[Request], answers: dict[int, Completion], temperature: float
) -> float:
    """Largest |sampler's log-prob - trainer's log-prob| over all sampled tokens."""
    batch = as_sequences((r, answers[r.session]) for r in requests)
    with torch.no_grad():
        scores: TokenScores = score_tokens(model, batch, temperature=temperature)
    gaps = []
    for row, request in enumerate(requests):
        sampled = torch.tensor(answers[request.session].log_probs)
        start = len(request.token_ids)
        gaps.append((scores.log_probs[row, start : start + len(sampled)] - sampled).abs().max().item())
    return max(gaps)
