"""A tiny Qwen3 that knows the benchmark's formats by heart, and the lengths that follow from them.

    python scripts/bench_grpo_model.py FOLDER

FOLDER holds `work.json`; model, tokenizer and the lengths are added.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from pathlib import Path

import torch
from bench_grpo_ours import prompt_ids
from bench_grpo_work import SCENARIOS, Work, build_tokenizer, conversation, messages, prompts, tools
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from robustops.learning.batching import Sequences, pad
from robustops.learning.forward import score_tokens

#: Training ends when, in some checks in a row, every token kept to the format with at least this probability
#: in fresh conversations ...
NEAR_CERTAIN, CHECKS = 0.95, 4
#: ... and then all logits grow by this factor, which leaves less than one in a million for other tokens,
#: while the digits, which are all about as likely, stay so.
SHARPEN = 5.0
RATE, MOST_STEPS, CHECK_EVERY = 5e-3, 2000, 10
SIDES = ("ours", "trl")


def prepare(work: Work, folder: Path) -> Work:
    """Write model, tokenizer and `work.json`; returns the work with its lengths."""
    tokenizer = build_tokenizer(_texts(work), work.vocabulary)
    work = dataclasses.replace(work, lengths={name: _lengths(tokenizer, name, work) for name in SCENARIOS})
    torch.manual_seed(work.seed)
    model = _model(work, tokenizer)
    _learn(model, tokenizer, work)
    with torch.no_grad():
        model.model.norm.weight.mul_(SHARPEN)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    work.save(folder)
    return work


def _texts(work: Work) -> list[str]:
    """What the vocabulary is learnt from: the prompts' words and conversations."""
    draw = random.Random(work.seed)
    bare = build_tokenizer([], 300)
    texts = []
    for scenario in SCENARIOS:
        for prompt in prompts(work)[:4]:
            chat, known = messages(scenario, prompt), tools(scenario, work)
            start = str(bare.apply_chat_template(chat, tools=known, tokenize=False))
            texts.append(start + "".join(text for text, _ in conversation(scenario, work, draw)))
    return texts


def _prompt(
    tokenizer: PreTrainedTokenizerBase, scenario: str, work: Work, prompt: str, side: str
) -> list[int]:
    """A prompt as one of the sides renders it: tools in JSON whose keys may come in another order."""
    if side == "ours":
        return prompt_ids(tokenizer, scenario, work, prompt)
    text = tokenizer.apply_chat_template(
        messages(scenario, prompt), tools=tools(scenario, work), tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer.encode(str(text), add_special_tokens=False))


def _episode(
    tokenizer: PreTrainedTokenizerBase, scenario: str, work: Work, draw: random.Random, side: str
) -> tuple[list[int], list[bool]]:
    """Ids of a whole conversation and which of them the assistant wrote."""
    ids = _prompt(tokenizer, scenario, work, draw.choice(prompts(work)), side)
    mask = [False] * len(ids)
    for text, own in conversation(scenario, work, draw):
        part = tokenizer.encode(text, add_special_tokens=False)
        ids += part
        mask += [own] * len(part)
    return ids, mask


def _lengths(tokenizer: PreTrainedTokenizerBase, scenario: str, work: Work) -> dict[str, int]:
    """Tokens of the longest prompt, message and episode; all episodes of a scenario are alike."""
    draw = random.Random(work.seed)
    sides = [_episode(tokenizer, scenario, work, draw, side) for side in SIDES]
    start = max(mask.index(True) for _, mask in sides)
    texts = [text for text, own in conversation(scenario, work, draw) if own]
    message = max(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
    return {"prompt": start, "message": message, "episode": max(len(ids) for ids, _ in sides)}


def _model(work: Work, tokenizer: PreTrainedTokenizerBase) -> Qwen3ForCausalLM:
    heads = max(1, work.width // 32)
    config = Qwen3Config(
        vocab_size=work.vocabulary,
        hidden_size=work.width,
        intermediate_size=3 * work.width,
        num_hidden_layers=work.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=32,
        tie_word_embeddings=True,
        initializer_range=0.06,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    model.config.use_cache = False
    return model


def _learn(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, work: Work) -> None:
    """Imitate random conversations until the format is known; SystemExit where it is not learnt."""
    draw = random.Random(work.seed + 1)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.0)
    good = 0
    for step in range(MOST_STEPS):
        # Small steps from where the format is known: with large ones it would be lost again at times.
        optimizer.param_groups[0]["lr"] = RATE / 10 if good else RATE * min(1.0, (step + 1) / 10)
        for scenario in SCENARIOS:
            batch = _batch(tokenizer, scenario, work, draw, rows=2)
            loss = -score_tokens(model, batch).log_probs.sum() / batch.loss_mask.sum() / len(SCENARIOS)
            loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % CHECK_EVERY == 0:
            fresh = [_batch(tokenizer, scenario, work, draw, rows=8) for scenario in SCENARIOS]
            known = min(least_allowed(model, tokenizer, batch) for batch in fresh)
            good = good + 1 if known > NEAR_CERTAIN else 0
            if good == CHECKS:
                return
    raise SystemExit(
        f"the model did not learn the formats in {MOST_STEPS} steps (least certain token: {known:.3f}); "
        "choose fewer --turns or --new-tokens, or a larger --width"
    )


def _batch(
    tokenizer: PreTrainedTokenizerBase, scenario: str, work: Work, draw: random.Random, rows: int
) -> Sequences:
    """Every other row as the other side renders it."""
    episodes = [_episode(tokenizer, scenario, work, draw, SIDES[row % 2]) for row in range(rows)]
    return pad([ids for ids, _ in episodes], [mask for _, mask in episodes], range(rows))


@torch.no_grad()
def least_allowed(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, batch: Sequences) -> float:
    """Over the trained tokens, the least probability of a token that keeps to the format.

    Allowed are the token itself; in the place of a first digit 1 to 4, of a second one every digit.
    """
    digits = torch.tensor(tokenizer.convert_tokens_to_ids(list("0123456789")))
    chances = model(input_ids=batch.token_ids, use_cache=False).logits[:, :-1].softmax(-1)
    is_digit = torch.isin(batch.token_ids, digits)
    second = is_digit[:, 1:] & is_digit[:, :-1]
    allowed = chances.gather(-1, batch.token_ids[:, 1:, None])[..., 0]
    allowed = torch.where(is_digit[:, 1:], chances[..., digits[1:5]].sum(-1), allowed)
    allowed = torch.where(second, chances[..., digits].sum(-1), allowed)
    return float(allowed[batch.loss_mask[:, 1:]].min())


def main() -> None:
    folder = Path(sys.argv[1])
    work = Work.load(folder)
    torch.set_num_threads(work.threads)
    prepare(work, folder)


if __name__ == "__main__":
    main()
