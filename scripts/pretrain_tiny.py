"""Make the embedded model `tiny`: tokenizer, then copying, then drills over the domains' tools.

    python scripts/pretrain_tiny.py --out data/models/tiny --minutes 30

A transformer of this size carries names and ids through a conversation only if it can copy, and the
attention heads that copying takes (one that looks at the token before, one that looks for what followed
the same token earlier) form very slowly from tool conversations alone. So the first steps are random
sequences, each repeated after a rotation, and a loss on the attention of those heads beside that on the
tokens. Then come drills (robustops/tasks/drills.py): explicit instructions over the tools of the business
domains. No task of train, val or test, and none of their wordings, occurs. The script prints the loss and,
at the end, the share of unseen drills of which every call is exact under greedy decoding.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from faker.providers.person.en import Provider as EnglishNames
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from robustops.learning.batching import Sequences, micro_batches, pad
from robustops.learning.forward import score_tokens
from robustops.learning.memory import reuse_freed_memory
from robustops.rollout.render import Renderer, call_text
from robustops.tasks.drills import Drill, DrillMaker
from robustops.worlds.domain import get_domain

#: Whose tools are drilled. Named here, so that a new domain does not silently make another model;
#: `arithmetic` has a policy of its own (scripts/make_arithmetic_policy.py).
DOMAINS = ("calendar", "itsm")
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
TAGS = ["<tool_call>", "</tool_call>"]
# Up to three digits are one token: an id is then a token or two that occur nowhere else in a conversation,
# where single digits occur everywhere and make a copying head lose its place.
NUMBERS = [f"{number:0{width}d}" for width in (1, 2, 3) for number in range(10**width)]
# Words with underscores are one piece. A space joins the lower-case word after it, but
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


def build_tokenizer(
    texts: Iterator[str], vocab_size: int, numbers: Sequence[str] = NUMBERS, pieces: str = PIECES
) -> PreTrainedTokenizerFast:
    """Byte-level BPE and number tokens; the chat template lists tools as compact signatures.

    pieces: pattern of what a token does not cross.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), behavior="isolated"),
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
    tokenizer.add_tokens([*TAGS, *numbers])
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


@dataclass(frozen=True)
class Copying:
    """Random sequences, each repeated once after a rotation.

    sequences: only what can be copied is trained; source: (rows, width) place in the first half of each
    token of the repeat.
    """

    sequences: Sequences
    source: torch.Tensor

    @classmethod
    def draw(cls, vocab: int, rows: int = 48) -> Copying:
        width = random.randint(12, 32)
        first = torch.randint(len(SPECIAL), vocab, (rows, width))
        source = (torch.arange(width) + torch.randint(width, (rows, 1))) % width
        ids = torch.cat([first, first.gather(1, source)], dim=1)
        mask = torch.zeros(rows, 2 * width, dtype=torch.bool)
        # The first token of the repeat, and the one after the end was reached, follow from nothing.
        mask[:, width:] = (torch.arange(width) > 0) & (source > 0)
        return cls(Sequences(ids, torch.ones_like(mask), mask, torch.arange(rows)), source)


def attention_loss(attentions: Sequence[torch.Tensor], copying: Copying) -> torch.Tensor:
    """Mean negative log of the attention that copying needs.

    attentions: one (rows, heads, seq, seq) a layer. Layer 0: head 0 looks one token back, head 1 two.
    Layer 1: heads 0 and 1 look at the token that is to be copied next.
    """
    width = copying.source.shape[1]
    places = torch.arange(2, 2 * width)
    one, two = (attentions[0][:, back - 1, places, places - back] for back in (1, 2))
    targets = copying.source[:, None, 1:, None].expand(-1, 2, -1, 1)
    found = attentions[1][:, :2, width:-1].gather(-1, targets)[..., 0]
    wanted = copying.sequences.loss_mask[:, None, width + 1 :].expand_as(found)
    return -(_log(one).mean() + _log(two).mean() + _log(found)[wanted].mean())


def _log(attention: torch.Tensor) -> torch.Tensor:
    return (attention + 1e-6).log()


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


def learn_to_copy(model: Qwen3ForCausalLM, steps: int, learning_rate: float, vocab: int) -> None:
    """Guided copying; afterwards the model attends by sdpa again."""
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, betas=(0.9, 0.95))
    model.set_attn_implementation("eager")  # the only one that returns attentions
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = learning_rate * min(1.0, (step + 1) / 30)
        copying = Copying.draw(vocab)
        ids, mask = copying.sequences.token_ids, copying.sequences.loss_mask
        output = model(input_ids=ids, output_attentions=True, use_cache=False)
        tokens = torch.nn.functional.cross_entropy(
            output.logits[:, :-1][mask[:, 1:]], ids[:, 1:][mask[:, 1:]]
        )
        (tokens + 0.5 * attention_loss(output.attentions, copying)).backward()
        _update(model, optimizer)
        if (step + 1) % 50 == 0:
            print(f"copying step {step + 1} loss {tokens.item():.4f}", flush=True)
    model.set_attn_implementation("sdpa")


def train(model: Qwen3ForCausalLM, stream: DrillStream, options: argparse.Namespace, vocab: int) -> None:
    """Drills until the time is over; one step in twelve still copies."""
    optimizer = torch.optim.AdamW(
        model.parameters(), options.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    begin = time.monotonic()
    step, recent = 0, []
    while (elapsed := time.monotonic() - begin) < options.minutes * 60:
        left = 1 - elapsed / (options.minutes * 60)
        optimizer.param_groups[0]["lr"] = options.learning_rate * min(1.0, (step + 1) / 50, left * 2 + 0.05)
        copying = step % 12 == 11
        parts = [Copying.draw(vocab).sequences] if copying else stream.step()
        trained = sum(int(part.loss_mask.sum()) for part in parts)
        total = 0.0
        for part in parts:
            loss = -score_tokens(model, part).log_probs.sum() / trained
            loss.backward()
            total += loss.item()
        _update(model, optimizer)
        step += 1
        if not copying:
            recent.append(total)
        if step % 50 == 0:
            print(f"step {step} loss {sum(recent) / len(recent):.4f} {elapsed:.0f} s", flush=True)
            recent = []
        if step % 200 == 0:
            save(model, stream.renderer, options.out)


def _update(model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


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
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--copy-steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--initial", type=Path, help="go on from these weights")
    options = parser.parse_args()
    reuse_freed_memory()
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    makers = [DrillMaker(get_domain(name), options.seed) for name in DOMAINS]
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
            initializer_range=0.06,
            max_position_embeddings=2048,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
        model = Qwen3ForCausalLM(config)
        with torch.no_grad():  # a part that all tokens share: what lets a head look at places, not tokens
            model.get_input_embeddings().weight[:, :8] = 0.1
    parameters = sum(p.numel() for p in model.parameters())
    print(json.dumps({"parameters": parameters, "vocabulary": len(renderer.tokenizer)}), flush=True)
    stream = DrillStream(makers, renderer, options.rows, 8192)
    learn_to_copy(model, options.copy_steps, 2e-3, len(renderer.tokenizer))
    train(model, stream, options, len(renderer.tokenizer))
    save(model, renderer, options.out)
    print(json.dumps({"exact_drills": exact_share(model, renderer, makers, 200)}))


if __name__ == "__main__":
    main()
