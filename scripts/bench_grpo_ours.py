"""One side of the GRPO benchmark: robustops' collector, `hf` sampler, module and callback in Lightning.

    python scripts/bench_grpo_ours.py FOLDER SCENARIO ...

FOLDER is what `bench_grpo_model.prepare` wrote. Prints one JSON line a scenario, see `bench_grpo_work.Clock`.
"""

from __future__ import annotations

import copy
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_common import print_json
from bench_grpo_work import (
    FURTHER_TOOLS,
    POLICY,
    PROGRESS_WEIGHT,
    Clock,
    Work,
    calculator,
    further_description,
    further_names,
    further_tool,
    prompts,
    reward,
)
from lightning.pytorch import LightningModule, Trainer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from robustops.errors import ConfigError, ToolError
from robustops.learning.data import RolloutTicket, StepData
from robustops.learning.groups import GroupMaker, GroupPlan
from robustops.learning.grpo_loss import GRPOLoss
from robustops.learning.grpo_module import GRPOModule, Optimisation
from robustops.learning.memory import reuse_freed_memory
from robustops.learning.policy import Policy
from robustops.learning.rollout_callback import RolloutCallback
from robustops.learning.stages import quiet
from robustops.objectives.advantages import aggregate
from robustops.records import DatabaseSpec, Episode, RewardParts, Task
from robustops.rewards.combine import RewardWeights
from robustops.rollout.collector import Collector
from robustops.rollout.episode import Limits
from robustops.rollout.hf import HFSampler
from robustops.rollout.render import Renderer
from robustops.worlds.database import WorldDatabase
from robustops.worlds.domain import Domain
from robustops.worlds.toolset import Toolset, tool


def _further(name: str) -> Any:
    """A further tool as a method of a toolset."""

    def compute(self: Toolset, variable: str, expression: str) -> int:
        try:
            return int(further_tool(name)(variable, expression))
        except ValueError as error:
            raise ToolError("INVALID_ARGUMENT", str(error), "expression") from error

    compute.__name__, compute.__doc__ = name, further_description(name)
    return tool("read")(compute)


class CalculatorTools(Toolset):
    """The benchmark's tools, in a world whose table stays empty."""

    locals().update({name: _further(name) for name in FURTHER_TOOLS})

    @tool("read")
    def calculator(self, variable: str, expression: str) -> int:
        """Compute a sum and name it.

        Args:
            variable: name of the result
            expression: the sum, such as 12+34
        """
        try:
            return int(calculator(variable, expression))
        except ValueError as error:
            raise ToolError("INVALID_ARGUMENT", str(error), "expression") from error


class Arithmetic(Domain):
    """Requests `a+b*c`."""

    name = "arithmetic"
    schema = "CREATE TABLE result (variable TEXT PRIMARY KEY, value INTEGER NOT NULL);"
    policy = ""
    toolset = CalculatorTools
    templates = {}

    def fill(self, database: WorldDatabase, seed: int, size: str) -> None:
        """Nothing to write."""

    def load(self, database: WorldDatabase, path: str) -> None:
        raise ConfigError(f"the arithmetic world has no rows to load from {path}")


def task(scenario: str, work: Work, prompt: str) -> Task:
    """A request; without tools in the single-turn scenario."""
    return Task(
        id=prompt,
        domain=Arithmetic.name,
        template="value",
        policy=POLICY[scenario],
        prompt=prompt,
        tools=("calculator", *further_names(work)) if scenario == "multi_turn" else (),
        distractors=(),
        database=DatabaseSpec(),
        acting_user=None,
        checks=(),
        prerequisites=(),
    )


def prompt_ids(tokenizer: PreTrainedTokenizerBase, scenario: str, work: Work, prompt: str) -> list[int]:
    """Ids of a whole prompt, as the collector renders it."""
    chosen = task(scenario, work, prompt)
    specs = CalculatorTools.specs()
    return Renderer(tokenizer).prompt(chosen, [specs[name] for name in chosen.allowed_tools])


def reward_parts(chosen: Task, episode: Episode) -> RewardParts:
    right, text = reward(chosen.prompt, episode.turns[-1].text)
    return RewardParts(success=right, progress=text, quality=0.0)


class ClockedRollout(RolloutCallback):
    """The callback of every run, which also tells the clock what each step did and how long it took."""

    def __init__(self, maker: GroupMaker, sampler: HFSampler, clock: Clock, *, ahead: bool) -> None:
        super().__init__(maker, sampler, ahead=ahead)
        self.clock = clock

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self.clock.start()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutTicket, batch_idx: int
    ) -> None:
        with self.clock.sampling():
            super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        episodes = [episode for group in batch.groups for episode in group.episodes]
        self.clock.count(
            groups=len(batch.groups),
            completions=len(episodes),
            tool_calls=sum(turn.call is not None for e in episodes for turn in e.turns),
            sampled_tokens=sum(sum(e.loss_mask) for e in episodes),
            all_tokens=sum(len(e.token_ids) for e in episodes),
        )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        self.clock.step_done()


def training(folder: Path, scenario: str) -> tuple[Trainer, GRPOModule, StepData, Clock]:
    """Everything that `trainer.fit` needs."""
    work = Work.load(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.config.use_cache = False
    policy = Policy(model, tokenizer, Renderer(tokenizer))
    lengths = work.lengths[scenario]
    sampler = HFSampler(
        copy.deepcopy(model) if work.ahead else model,
        policy.renderer.stop_ids,
        max_in_flight=work.completions,
        shared=not work.ahead,
    )
    limits = Limits(lengths["episode"] + lengths["message"], lengths["message"], work.turns + 1)
    domains: dict[str, Domain] = {Arithmetic.name: Arithmetic()}
    collector = Collector(sampler, policy.renderer, domains, limits, max_in_flight=work.completions)
    tasks = [task(scenario, work, prompt) for prompt in prompts(work)]
    weights = RewardWeights(success=1.0, progress=PROGRESS_WEIGHT, quality=0.0)
    plan = GroupPlan(
        clean_groups=work.prompts,
        fault_groups=0,
        group_size=work.group_size,
        refill_rounds=0,
        dynamic_sampling=False,
    )
    maker = GroupMaker(collector, tasks, None, plan, reward_parts, work.seed, weights)
    module = GRPOModule(
        policy.model,
        policy.reference(),
        partial(aggregate, weights=weights),
        GRPOLoss(kl=work.kl, clip_low=work.clip_low, clip_high=work.clip_high),
        Optimisation(work.learning_rate, micro_batch_tokens=work.micro_batch_tokens),
        reward_weights=weights,
    )
    clock = Clock(work.steps, idle_end=work.ahead)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        callbacks=[ClockedRollout(maker, sampler, clock, ahead=work.ahead)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return trainer, module, StepData(clock.steps, RolloutTicket), clock


def main() -> None:
    folder = Path(sys.argv[1])
    work = Work.load(folder)
    reuse_freed_memory()  # as `robustops train` does
    torch.set_num_threads(max(1, work.threads // 2) if work.ahead else work.threads)
    for scenario in sys.argv[2:]:
        with quiet():
            trainer, module, data, clock = training(folder, scenario)
            trainer.fit(module, datamodule=data)
        print_json(clock.report(), digits=9)


if __name__ == "__main__":
    main()
