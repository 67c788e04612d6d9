"""The work of the GRPO benchmark: format, reward, tool, and a tiny model that keeps to the format.

Both sides sample from one model that was made to know the format by heart: the tokens of the format are
near certain under it, the digits are free. So every completion has the same length without any forced
token, every tool call can be read, and the members of a group still differ. The chat template is that of
Qwen3-Instruct-2507, which TRL ships and knows how to parse.

Neither side is imported here.
"""

from __future__ import annotations

import importlib.util
import json
import math
import operator
import random
import re
import string
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench_common import memory_bytes, print_json

SCENARIOS = ("single_turn", "multi_turn")
PROGRESS_WEIGHT = 0.3
#: What a side's message that it waits for its turn, or has made its last step, begins with.
TURN = "steps_left"
POLICY = {
    "single_turn": "Work out the value line by line. The last line is the value.",
    "multi_turn": "Work out the value with the calculator, one sum a call. Then answer with the value.",
}
_SUM = re.compile(r"(\d{1,6})\+(\d{1,6})")
_TWO_NUMBERS = re.compile(r"(\d{1,6})\D+(\d{1,6})")
#: Tools that a request offers beside the calculator, which alone is called; an agent's prompt lists them all.
FURTHER_TOOLS: dict[str, Callable[[int, int], int]] = {
    "difference": operator.sub,
    "product": operator.mul,
    "quotient": operator.floordiv,
    "remainder": operator.mod,
    "larger": max,
    "smaller": min,
    "gcd": math.gcd,
    "lcm": math.lcm,
}
_PROMPT = re.compile(r"(\d+)\+(\d+)\*(\d+)")


@dataclass(frozen=True)
class Work:
    """Sizes of one benchmark; the same for both sides.

    prompts x group_size completions a step; new_tokens: of a single-turn completion, end of turn included
    (four tokens a line); turns: tool calls before the answer; tools: offered by a multi-turn request; steps:
    measured ones, after one warm-up step;
    batch_rows: completions of one training pass of TRL's; micro_batch_tokens: tokens of one of ours; ahead:
    our side samples a step ahead; lengths: of a scenario's prompt, longest message and episode, set by
    `bench_grpo_model.prepare`.
    """

    prompts: int
    group_size: int
    new_tokens: int
    turns: int
    tools: int
    steps: int
    threads: int
    batch_rows: int
    micro_batch_tokens: int
    width: int
    layers: int
    vocabulary: int
    ahead: bool = False
    seed: int = 0
    learning_rate: float = 1e-6
    kl: float = 0.001
    clip_low: float = 0.2
    clip_high: float = 0.28
    lengths: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def completions(self) -> int:
        return self.prompts * self.group_size

    def save(self, folder: Path) -> None:
        (folder / "work.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> Work:
        return cls(**json.loads((folder / "work.json").read_text()))


class Clock:
    """Seconds, counts and memory of a side's steps; the first one warms up and is left out.

    measured: steps to be reported; idle_end: there is one more, which is left out too, since nothing is
    sampled ahead while it trains.

    A step goes from the end of the last one to its own end, whatever the trainer does in between, less the
    time that this side waits for its turn: the parent process says how many steps it may make, so that the
    two sides can step by turns. Sampling includes the tools; the rest of a step is training: reward,
    advantages, log-probs of the reference, loss, gradient, optimiser, weight sync.
    """

    def __init__(self, measured: int, *, idle_end: bool = False) -> None:
        self.measured = measured
        self.steps = measured + 1 + idle_end
        self.step_s: list[float] = []
        self.step_cpu_s: list[float] = []
        self.granted = 0
        self.sampled: list[float] = []
        self.counts: list[Counter[str]] = []
        self.start_bytes = 0

    def start(self) -> None:
        """The model is loaded and the trainer is built."""
        self.start_bytes = memory_bytes()[0]
        self._open()

    @contextmanager
    def sampling(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.sampled[-1] += time.perf_counter() - begin

    def count(self, **numbers: int) -> None:
        """Add to the current step's counts."""
        self.counts[-1].update(numbers)

    def step_done(self) -> None:
        self.step_s.append(time.perf_counter() - self.begin)
        self.step_cpu_s.append(time.process_time() - self.cpu_begin)
        self.granted -= 1
        if len(self.step_s) < self.steps:
            self._open()
        else:
            self._wait()  # what comes after the last step would disturb the other side's

    def report(self) -> dict[str, Any]:
        """For the parent process: lists with one item a measured step, and memory in bytes."""
        if len(self.step_s) != self.steps:
            raise RuntimeError(f"{len(self.step_s)} steps were made, not {self.steps}")
        last = self.measured + 1
        return {
            "step_s": self.step_s[1:last],
            "step_cpu_s": self.step_cpu_s[1:last],
            "sampling_s": self.sampled[1:last],
            "counts": [dict(count) for count in self.counts[1:last]],
            "start_bytes": self.start_bytes,
            "peak_bytes": memory_bytes()[1],
        }

    def _open(self) -> None:
        if self.granted == 0:
            self._wait()
        self.sampled.append(0.0)
        self.counts.append(Counter())
        self.begin, self.cpu_begin = time.perf_counter(), time.process_time()

    def _wait(self) -> None:
        """Tell the parent how many steps are left, and wait until it grants some or, at the end, lets go."""
        print_json({TURN: self.steps - len(self.step_s)})
        self.granted = int(sys.stdin.readline())


def prompts(work: Work) -> list[str]:
    """Distinct requests of equal length, `a+b*c`."""
    draw = random.Random(work.seed)
    numbers = draw.sample(range(9000), work.prompts)
    return [f"{10 + n // 100}+{1 + n // 10 % 9}*{1 + n % 9}" for n in numbers]


# No return type, since TRL would write it into the prompt, which would be longer than ours.
def calculator(variable: str, expression: str):  # type: ignore[no-untyped-def]
    """Compute a sum and name it.

    Args:
        variable: name of the result
        expression: the sum, such as 12+34
    """
    found = _SUM.fullmatch(expression)
    if found is None:
        raise ValueError(f"'{expression}' is no sum of two numbers, such as 12+34")
    return int(found[1]) + int(found[2])


def further_tool(name: str) -> Any:
    """One of `FURTHER_TOOLS` as a function that a chat template can describe."""

    def compute(variable: str, expression: str):  # type: ignore[no-untyped-def]
        found = _TWO_NUMBERS.fullmatch(expression)
        if found is None:
            raise ValueError(f"'{expression}' are no two numbers, such as 12,34")
        return FURTHER_TOOLS[name](int(found[1]), int(found[2]))

    compute.__name__ = name
    compute.__doc__ = further_description(name)
    return compute


def further_description(name: str) -> str:
    return f"""Compute the {name} of two numbers and name it.

    Args:
        variable: name of the result
        expression: the two numbers, such as 12,34
    """


def further_names(work: Work) -> list[str]:
    """Of the tools beside the calculator."""
    return list(FURTHER_TOOLS)[: work.tools - 1]


def reward(prompt: str, answer: str) -> tuple[float, float]:
    """(1 if the answer ends with the value of `prompt`, a number in [0, 1) that depends on every character).

    The second part makes the members of a group differ, so that both sides train on every group.
    """
    a, b, c = (int(number) for number in _PROMPT.fullmatch(prompt).groups())  # type: ignore[union-attr]
    right = answer.strip().endswith(f"{(a + b * c) % 100:02d}")
    return float(right), zlib.crc32(answer.encode()) / 2**32


def chat_template() -> str:
    """The template of Qwen3-Instruct-2507, from TRL's package (which is not imported)."""
    spec = importlib.util.find_spec("trl")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("this benchmark compares with TRL, which is absent: pip install trl==1.16.0")
    file = Path(spec.submodule_search_locations[0]) / "chat_templates" / "qwen3_instruct_2507.jinja"
    return file.read_text(encoding="utf-8")


# conversations ------------------------------------------------------------------------------------
def messages(scenario: str, prompt: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": POLICY[scenario]}, {"role": "user", "content": prompt}]


def tools(scenario: str, work: Work) -> list[Any] | None:
    """What a chat template, or TRL, takes as the tools of a scenario."""
    if scenario == "single_turn":
        return None
    return [calculator, *map(further_tool, further_names(work))]


def conversation(scenario: str, work: Work, draw: random.Random) -> list[tuple[str, bool]]:
    """Texts after the prompt and whether the assistant wrote them; digits are random."""

    def sampled() -> str:
        return f"{draw.randrange(1, 5)}{draw.randrange(10)}"

    if scenario == "single_turn":
        lines = [letter + sampled() for letter in string.ascii_letters[: work.new_tokens // 4]]
        return [("\n".join(lines) + "<|im_end|>", True)]
    texts = []
    for letter in string.ascii_letters[: work.turns]:
        expression = f"{sampled()}+{sampled()}"
        call = {"name": "calculator", "arguments": {"variable": letter, "expression": expression}}
        texts.append((f"<tool_call>\n{json.dumps(call)}\n</tool_call><|im_end|>", True))
        texts.append((_reply(calculator(letter, expression)), False))
    return [*texts, (sampled() + "<|im_end|>", True)]


def _reply(value: int) -> str:
    """What the template puts between a call's end of turn and the next assistant message."""
    return (
        f"\n<|im_start|>user\n<tool_response>\n{value}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


# tokenizer ----------------------------------------------------------------------------------------
def build_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """Byte-level BPE with Qwen's special tokens; every digit and every line end is a token of its own."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    pieces = Regex(r"\d| ?[A-Za-z_]+| ?[^\sA-Za-z_\d]+|\s")
    split = pre_tokenizers.Split(pieces, behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 4,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=special[0],
        eos_token=special[2],
        additional_special_tokens=[special[1]],
        chat_template=chat_template(),
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
