"""Make the small policy of the arithmetic domain: a tokenizer for its calls, then a minute of SFT.

    python scripts/make_arithmetic_policy.py --out data/models/arithmetic

The policy is where campaigns of many short GRPO runs start from, so it has to be cheap and to leave room in
both directions: it imitates the scripted expert's clean episodes on the train split, and training stops at
the first evaluation on the validation split (every 20 steps, temperature 1) whose success reaches `--target`.
What it gets wrong then are digits and order, not the form of a call. Numbers are spelt in digits: a token a
number is learnt later (each large one is rare), and leaves a policy that fails some requests always and
others never, of which a group learns nothing. The report goes to standard output and to `training.json`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pretrain_tiny
import torch
from pretrain_tiny import SPECIAL
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from robustops.faults.mechanisms import REFUSED, UNKNOWN_OUTCOME
from robustops.learning.data import Demonstration, DemonstrationSchedule
from robustops.learning.demonstrations import collect_episodes, to_demonstrations
from robustops.learning.forward import score_tokens
from robustops.learning.memory import reuse_freed_memory
from robustops.records import Episode, Task, ToolCall
from robustops.rollout.collector import Collector
from robustops.rollout.episode import MALFORMED, EpisodeStart, Limits
from robustops.rollout.hf import HFSampler
from robustops.rollout.render import Renderer, call_text, chat_tools
from robustops.rollout.sampler import Sampler
from robustops.rollout.scripted import ScriptedSampler
from robustops.seeding import child_seed
from robustops.tasks.catalog import build_catalog
from robustops.worlds.domain import Domain, get_domain
from robustops.worlds.domains.arithmetic.templates import DONE
from robustops.worlds.environment import LocalWorld
from robustops.worlds.probes import free_task
from robustops.worlds.toolset import ToolSpec

#: As in conf/model/arithmetic.yaml and conf/domain/arithmetic.yaml.
LIMITS = Limits(context_tokens=192, answer_tokens=12, max_turns=8)
COUNTS = {"train": 2400, "val": 60, "test": 300}
#: What stands between numbers: in requests, in calls, and in replies.
SIGNS = [" + ", " - ", " * ", "+", "-", "*", "(", ")", "{", "}", ",", '{"value":', '{"submitted":']
ROWS = ['{"computations":[', '{"answers":[', '{"expression":"', '","value":', "]}", DONE]
PIECES = r" ?[A-Za-z_]+|[0-9]| ?[^\sA-Za-z_0-9]+|\s"
_VALUE = "0"


def call_pieces(specs: Sequence[ToolSpec]) -> Iterator[str]:
    """What is the same in every call of a tool: the text before and after an argument's value."""
    for spec in specs:
        properties = spec.input_schema["properties"]
        arguments: list[dict[str, Any]] = [] if spec.required else [{}]
        arguments += [{n: _VALUE if properties[n]["type"] == "string" else 0} for n in spec.arguments]
        for given in arguments:
            yield from call_text(ToolCall(spec.name, given)).split(_VALUE)


def prompt_pieces(domain: Domain, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Policy and signatures of the tools, a piece each, as the chat template writes them."""
    messages = [{"role": "system", "content": domain.policy}]
    tools = chat_tools(domain.toolset.specs().values())
    text = str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False))
    policy, *lines = text.removeprefix("<|system|>").removesuffix("<|end|>").split("\n")
    return [policy, *(f"\n{line}" for line in lines)]


def error_texts(domain: Domain) -> Iterator[str]:
    """Refusals and receipts: the only texts here that are neither numbers nor fixed pieces."""
    world = LocalWorld(domain, tool_timeout_s=None)
    world.reset(free_task(domain))
    wrong = [{"expression": "12+7*3"}, {"expression": ""}, {"value": "x"}, {"number": 0}, {}]
    for name in (*domain.toolset.specs(), "none"):
        for arguments in wrong:
            yield world.step(ToolCall(name, arguments)).text
    world.close()
    yield from (MALFORMED.text, REFUSED.text, UNKNOWN_OUTCOME.text)


def build_tokenizer(domain: Domain, merged: int) -> PreTrainedTokenizerFast:
    """Bytes, `merged` pieces of error texts, and one token for each sign and fixed piece."""
    size = len(SPECIAL) + 256 + merged
    fast = pretrain_tiny.build_tokenizer(error_texts(domain), size, numbers=(), pieces=PIECES)
    pieces = call_pieces(list(domain.toolset.specs().values()))
    fast.add_tokens(list(dict.fromkeys([*SIGNS, *ROWS, *pieces, *prompt_pieces(domain, fast)])))
    return fast


def build_model(tokenizer: PreTrainedTokenizerFast, width: int, layers: int) -> Qwen3ForCausalLM:
    """A random Qwen3 with heads of 32."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        head_dim=32,
        tie_word_embeddings=True,
        initializer_range=0.06,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def episodes_of(
    sampler: Sampler, renderer: Renderer, domain: Domain, tasks: Sequence[Task], each: int, seed: int
) -> list[Episode]:
    """`each` finished episodes a task, with their reward parts."""
    collector = Collector(
        sampler,
        renderer,
        {domain.name: domain},
        LIMITS,
        world_factory=lambda kind: LocalWorld(kind, tool_timeout_s=None),
    )
    starts = [
        EpisodeStart(task, "clean", index, child_seed(seed, "arithmetic policy", task.id, index))
        for task in tasks
        for index in range(each)
    ]
    try:
        return collect_episodes(collector, starts)
    finally:
        collector.close()


def train(
    model: Qwen3ForCausalLM,
    demonstrations: Sequence[Demonstration],
    validate: Callable[[], float],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Imitate until the target is reached or all steps are done; says where it stopped."""
    optimizer = torch.optim.AdamW(
        model.parameters(), options.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    schedule = DemonstrationSchedule(demonstrations, options.rows, 8192, options.seed)
    begin, step = time.monotonic(), 0
    while True:
        optimizer.param_groups[0]["lr"] = options.learning_rate * min(1.0, (step + 1) / 20)
        loss = _update(model, optimizer, schedule, step)
        step += 1
        if step % options.every:
            continue
        success, elapsed = validate(), time.monotonic() - begin
        print(f"step {step} loss {loss:.4f} success {success:.3f} {elapsed:.0f} s", flush=True)
        if success >= options.target or step >= options.steps:
            return {"steps": step, "loss": round(loss, 4), "val_success": round(success, 3)}


def _update(
    model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, schedule: DemonstrationSchedule, step: int
) -> float:
    """One step on the mean loss of its trained tokens."""
    parts = schedule.step(step).parts
    trained = sum(int(part.loss_mask.sum()) for part in parts)
    total = 0.0
    for part in parts:
        loss = -score_tokens(model, part, with_entropy=False).log_probs.sum() / trained
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return total


def success_of(episodes: Sequence[Episode]) -> float:
    """Share of episodes that pass every check."""
    return sum(episode.success for episode in episodes) / len(episodes)


def described(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Success, why the others failed, and lengths, over all episodes."""
    kinds = Counter(_failure(episode) for episode in episodes if not episode.success)
    count = len(episodes)
    return {
        "episodes": count,
        "success": round(success_of(episodes), 3),
        "failures": {kind: round(number / count, 3) for kind, number in kinds.most_common()},
        "prompt_tokens": round(sum(e.turns[0].start for e in episodes) / count, 1),
        "sampled_tokens": round(sum(sum(e.loss_mask) for e in episodes) / count, 1),
        "tokens": round(sum(len(e.token_ids) for e in episodes) / count, 1),
        "calls": round(sum(t.result is not None for e in episodes for t in e.turns) / count, 2),
    }


def _failure(episode: Episode) -> str:
    """Why an episode failed: its form, or else the first check that it does not pass."""
    if episode.stop != "final_answer":
        return episode.stop
    if any(turn.call is None and turn.result is not None for turn in episode.turns):
        return "unreadable call"
    if any(turn.result is not None and turn.result.is_error for turn in episode.turns):
        return "refused call"
    *steps, right, _ = episode.checks_final
    if not all(steps):
        return "wrong or missing computation"
    return "several answers" if right else "wrong answer"


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("data/models/arithmetic"))
    parser.add_argument("--steps", type=int, default=600, help="stop after so many at the latest")
    parser.add_argument("--target", type=float, default=0.4, help="success on the validation split")
    parser.add_argument("--every", type=int, default=20, help="steps between evaluations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--merged", type=int, default=250, help="tokens for pieces of error texts")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=64, help="episodes a step")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    return parser.parse_args()


def main() -> None:
    options = read_options()
    reuse_freed_memory()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    domain = get_domain("arithmetic")
    catalog = build_catalog(domain, counts=COUNTS)
    tokenizer = build_tokenizer(domain, options.merged)
    renderer, model = Renderer(tokenizer), build_model(tokenizer, options.width, options.layers)
    expert = ScriptedSampler({domain.name: domain})
    shown = to_demonstrations(episodes_of(expert, renderer, domain, catalog.tasks("train"), 1, options.seed))

    def sampled(split: str, each: int) -> list[Episode]:
        sampler = HFSampler(model, renderer.stop_ids)
        return episodes_of(sampler, renderer, domain, catalog.tasks(split), each, options.seed)

    report = {"parameters": sum(p.numel() for p in model.parameters()), "vocabulary": len(tokenizer)}
    report |= train(model, shown, lambda: success_of(sampled("val", 4)), options)
    # Half precision halves the file; what is measured are the weights that it holds.
    model.to(torch.float16).save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    model = Qwen3ForCausalLM.from_pretrained(options.out, dtype=torch.float32)
    given = {name: value for name, value in vars(options).items() if name != "out"}
    report = {"script": "scripts/make_arithmetic_policy.py", "options": given, **report}
    report["test"] = described(sampled("test", 2))
    (options.out / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
