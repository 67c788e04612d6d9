"""The other side of the GRPO benchmark: TRL's GRPOTrainer, with its own generation and tools support.

    python scripts/bench_grpo_trl.py FOLDER SCENARIO ...

FOLDER is what `bench_grpo_model.prepare` wrote. Prints one JSON line a scenario, see `bench_grpo_work.Clock`.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

# TRL imports vLLM where it is installed. Nothing here samples with it, so that its memory does not count.
sys.modules["vllm"] = None  # type: ignore[assignment]

import torch  # noqa: E402
from bench_common import print_json  # noqa: E402
from bench_grpo_work import (  # noqa: E402
    PROGRESS_WEIGHT,
    Clock,
    Work,
    messages,
    prompts,
    reward,
    tools,
)
from datasets import Dataset  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    TrainerCallback,
)
from trl.trainer.grpo_config import GRPOConfig  # noqa: E402
from trl.trainer.grpo_trainer import GRPOTrainer  # noqa: E402


class StepEnd(TrainerCallback):
    """Tells the clock where a step ends."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.clock.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.clock.step_done()


class ClockedTrainer(GRPOTrainer):
    """The trainer as it is, which also tells the clock what each step did and how long sampling took."""

    clock: Clock

    def _generate(self, prompts: list[Any]) -> Any:
        with self.clock.sampling():
            result = super()._generate(prompts)
        prompt_ids, completion_ids, tool_mask, completions = result[:4]
        masks = tool_mask or [[1] * len(ids) for ids in completion_ids]
        self.clock.count(
            completions=len(completion_ids),
            tool_calls=sum(message["role"] == "tool" for messages in completions for message in messages),
            sampled_tokens=sum(sum(mask) for mask in masks),
            all_tokens=sum(map(len, prompt_ids)) + sum(map(len, completion_ids)),
        )
        return result


def rewards_of(work: Work, clock: Clock) -> Any:
    """TRL's reward function; counts the groups whose members differ."""

    def answer_reward(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        values = []
        for request, answer in zip(prompts, completions, strict=True):
            asked = next(message["content"] for message in request if message["role"] == "user")
            right, text = reward(asked, answer[-1]["content"])
            values.append(right + PROGRESS_WEIGHT * text)
        size = work.group_size
        groups = [values[first : first + size] for first in range(0, len(values), size)]
        clock.count(groups=sum(len(set(group)) > 1 for group in groups))
        return values

    return answer_reward


def config(work: Work, scenario: str, steps: int, folder: str) -> GRPOConfig:
    """The same objective and sizes as on the other side; no checkpoints, no logs."""
    lengths = work.lengths[scenario]
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=steps,
        per_device_train_batch_size=work.batch_rows,
        gradient_accumulation_steps=work.completions // work.batch_rows,
        num_generations=work.group_size,
        max_completion_length=lengths["episode"] - lengths["prompt"] + lengths["message"],
        generation_kwargs={"max_new_tokens": lengths["message"]},
        max_tool_calling_iterations=work.turns,
        temperature=1.0,
        beta=work.kl,
        epsilon=work.clip_low,
        epsilon_high=work.clip_high,
        num_iterations=1,
        learning_rate=work.learning_rate,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=work.seed,
    )


def training(folder: Path, scenario: str, output: str) -> tuple[GRPOTrainer, Clock]:
    """The trainer, ready to train."""
    work = Work.load(folder)
    clock = Clock(work.steps)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    rows = [messages(scenario, prompt) for prompt in prompts(work)] * clock.steps
    trainer = ClockedTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=rewards_of(work, clock),
        args=config(work, scenario, clock.steps, output),
        train_dataset=Dataset.from_dict({"prompt": rows}),
        processing_class=tokenizer,
        callbacks=[StepEnd(clock)],
        tools=tools(scenario, work),
    )
    trainer.clock = clock
    return trainer, clock


def main() -> None:
    folder = Path(sys.argv[1])
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(Work.load(folder).threads)
    for scenario in sys.argv[2:]:
        with tempfile.TemporaryDirectory() as output:
            trainer, clock = training(folder, scenario, output)
            trainer.train()
        print_json(clock.report(), digits=9)


if __name__ == "__main__":
    main()
