"""Make the embedded model `tiny`: tokenizer, then copying, then drills over the domains' tools.

    python scripts/pretrain_tiny.py --out data/models/tiny --minutes 30

A small transformer learns to carry names and ids through a conversation only if it is first taught to
copy (random sequences, each repeated). Then come drills (robustops/tasks/drills.py): explicit
instructions over the tools of every domain. No task of train, val or test, and none of their wordings,
occurs. The script prints the loss and, at the end, the share of unseen drills of which every call is
exact under greedy decoding.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from faker.providers.person.en import Provider as EnglishNames
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from robustops.learning.batching import Sequences, micro_batches, pad
from robustops.learning.forward import score_tokens
from robustops.rollout.render import Renderer, call_text
from robustops.tasks.drills import Drill, DrillMaker
from robustops.worlds.domain import domain_names, get_domain

SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
TAGS = ["<tool_call>", "</tool_call>"]
# Digits are single; words with underscores are one piece. A space joins the lower-case word after it, but
# neither a capitalised one nor an e-mail address: names must be the same tokens in prose and in JSON.
PIECES = r" ?[a-z_]+(?![a-z_]|\.[a-z]|@)|[A-Za-z_]+|[0-9]| ?[^\sA-Za-z_0-9]+|\s"
MAX_OPTIONAL = 6
CHAT_TEMPLATE = (
    "{%- for m in messages -%}"
    "{%- if m.role == 'system' -%}<|system|>{{ m.content }}"
    "{%- if tools -%}{%- for t in tools -%}{%- set f = t.function -%}{%- set p = f.parameters -%}"
    "{{ '\\n' + f.name }}({{ p.required | join(',') }}"
    "{%- set names = p.properties.keys() | reject('in', p.required) | list -%}"
    "{%- if names %};{{ names[:" + str(MAX_OPTIONAL) + "] | join(',') }}{%- endif -%})"
    "{%- endfor -%}{%- endif -%}<|end|>"
    "{%- elif m.role == 'user' -%}<|user|>{{ m.content }}<|end|>"
    "{%- elif m.role == 'assistant' -%}<|assistant|>{{ m.content }}<|end|>"
    "{%- elif m.role == 'tool' -%}<|tool|>{{ m.content }}<|end|>"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)


def build_tokenizer(texts: Iterator[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits; the chat template lists tools as compact signatures."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(TAGS)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=SPECIAL[2:],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def tokenizer_texts(makers: list[DrillMaker], drills: int) -> Iterator[str]:
    """What the vocabulary is learnt from: drills of every domain, and common English names."""
    for index in range(drills):
        maker = makers[index % len(makers)]
        drill = maker.draw(10_000_000 + index)
        yield drill.task.policy + " " + drill.task.prompt
        for call, result in drill.calls:
            yield call_text(call) + " " + result.text
        names = maker.specs
        yield "\n".join(f"{n}({','.join(s.required)};{','.join(s.arguments)})" for n, s in names.items())
    first = sorted({*EnglishNames.first_names_female, *EnglishNames.first_names_male})
    last = sorted({*EnglishNames.last_names})
    for name in (*first, *last):
        yield f" {name} {name}"


def drill_sequence(drill: Drill, renderer: Renderer, maker: DrillMaker) -> tuple[list[int], list[bool]]:
    """Token ids of a whole drill and which of them are trained (the assistant's)."""
    ids = renderer.prompt(drill.task, [maker.specs[n] for n in drill.task.allowed_tools])
    mask = [False] * len(ids)
    for call, result in drill.calls:
        answer, reply = renderer.answer(call_text(call)), renderer.result(result)
        ids += answer + reply
        mask += [True] * len(answer) + [False] * len(reply)
    final = renderer.answer("Done.")
    return ids + final, mask + [True] * len(final)


def copy_batch(vocab: int, rows: int = 64, width: int = 32) -> Sequences:
    """Random sequences, each repeated once; only the repeat is trained."""
    first = torch.randint(len(SPECIAL), vocab, (rows, width))
    ids = torch.cat([first, first], dim=1)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[:, width:] = True
    return Sequences(ids, torch.ones_like(mask), mask, torch.arange(rows))


class DrillStream:
    """Micro-batches of drills of all domains, in order of length within a window."""

    def __init__(self, makers: list[DrillMaker], renderer: Renderer, rows: int, budget: int) -> None:
        self.makers, self.renderer, self.rows, self.budget = makers, renderer, rows, budget
        self.index = 0

    def step(self) -> list[Sequences]:
        sequences = []
        while len(sequences) < self.rows:
            maker = self.makers[self.index % len(self.makers)]
            ids, mask = drill_sequence(maker.draw(self.index), self.renderer, maker)
            self.index += 1
            if len(ids) <= 1400:
                sequences.append((ids, mask))
        batches = micro_batches([len(ids) for ids, _ in sequences], self.budget)
        return [pad([sequences[i][0] for i in b], [sequences[i][1] for i in b], b) for b in batches]


@torch.no_grad()
def exact_share(model: Qwen3ForCausalLM, renderer: Renderer, makers: list[DrillMaker], drills: int) -> float:
    """Share of unseen drills whose every assistant token is the greedy choice."""
    model.eval()
    exact = 0
    for index in range(drills):
        maker = makers[index % len(makers)]
        ids, mask = drill_sequence(maker.draw(20_000_000 + index), renderer, maker)
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
        wrong = (logits.argmax(-1) != torch.tensor(ids[1:])) & torch.tensor(mask[1:])
        exact += int(not wrong.any())
    model.train()
    return exact / drills


def train(model: Qwen3ForCausalLM, stream: DrillStream, options: argparse.Namespace, vocab: int) -> None:
    """Copying for the first `copy_steps`, then drills (one step in twelve still copies)."""
    optimizer = torch.optim.AdamW(
        model.parameters(), options.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    begin = time.monotonic()
    step, recent = 0, []
    while (elapsed := time.monotonic() - begin) < options.minutes * 60:
        left = 1 - elapsed / (options.minutes * 60)
        optimizer.param_groups[0]["lr"] = options.learning_rate * min(1.0, (step + 1) / 50, left * 4 + 0.05)
        copying = step < options.copy_steps or step % 12 == 0
        parts = [copy_batch(vocab)] if copying else stream.step()
        trained = sum(int(part.loss_mask.sum()) for part in parts)
        total = 0.0
        for part in parts:
            loss = -score_tokens(model, part).log_probs.sum() / trained
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if not copying or step < options.copy_steps:
            recent.append(total)
        if step % 50 == 0:
            print(f"step {step} loss {sum(recent) / len(recent):.4f} {elapsed:.0f} s", flush=True)
            recent = []
        if step % 500 == 0 or step == options.copy_steps:
            save(model, stream.renderer, options.out)


def save(model: Qwen3ForCausalLM, renderer: Renderer, out: Path) -> None:
    model.save_pretrained(out)
    renderer.tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("data/models/tiny"))
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocab", type=int, default=3072)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--copy-steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--initial", type=Path, help="go on from these weights")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    makers = [DrillMaker(get_domain(name), options.seed) for name in domain_names()]
    if options.initial:
        renderer = Renderer(PreTrainedTokenizerFast.from_pretrained(options.initial))
        model = Qwen3ForCausalLM.from_pretrained(options.initial)
    else:
        tokenizer = build_tokenizer(tokenizer_texts(makers, 3000), options.vocab)
        renderer = Renderer(tokenizer)
        heads = options.width // 32
        config = Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=options.width,
            intermediate_size=3 * options.width,
            num_hidden_layers=options.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=32,
            tie_word_embeddings=True,
            max_position_embeddings=2048,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
        model = Qwen3ForCausalLM(config)
    parameters = sum(p.numel() for p in model.parameters())
    print(json.dumps({"parameters": parameters, "vocabulary": len(renderer.tokenizer)}), flush=True)
    stream = DrillStream(makers, renderer, options.rows, 8192)
    train(model, stream, options, len(renderer.tokenizer))
    save(model, renderer, options.out)
    print(json.dumps({"exact_drills": exact_share(model, renderer, makers, 200)}))


if __name__ == "__main__":
    main()
