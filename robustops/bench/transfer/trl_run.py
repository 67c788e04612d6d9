"""One run of TRL's GRPOTrainer with the settings of experiment=faultbench, and perhaps a fault."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from robustops.bench.run_faults.exposure import ExposureLog, log_name
from robustops.bench.run_faults.injector import MECHANISMS, injections, spec_of
from robustops.bench.transfer.trl_calculator import Calculator, Rewards, readable
from robustops.bench.transfer.trl_injection import Injection
from robustops.errors import ConfigError
from robustops.records import Task
from robustops.resources import model_folder
from robustops.rewards.combine import RewardWeights
from robustops.rewards.parts import RewardRules
from robustops.settings import TrainSettings
from robustops.tasks.opening import open_catalog

STATE = "trainer_state.json"


class InjectedTrainer(GRPOTrainer):  # type: ignore[misc]
    """The trainer as it is; an injection may change the advantages that a loss is computed with."""

    injection: Injection | None = None

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """As documented by TRL."""
        if self.injection is not None:
            inputs = {**inputs, "advantages": self.injection.advantages(inputs["advantages"])}
        return super().compute_loss(model, inputs, *args, **kwargs)


class Bias(LogitsProcessor):  # type: ignore[misc]
    """The injection's logits, for one call of `generate`."""

    def __init__(self, injection: Injection, start: int, stop_ids: list[int]) -> None:
        self.injection = injection
        self.start = start
        self.stop_ids = stop_ids
        self.call = injection.next_call()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self.injection.logits(input_ids, scores, self.start, self.stop_ids, self.call)


def train(settings: TrainSettings, seed: int, folder: Path) -> None:
    """Train, and leave TRL's own log (`trainer_state.json`) in the folder, and the exposure of a fault.

    seed: of TRL; everything else is as the settings say, as far as TRL has it.

    Raises:
        ConfigError: the settings are of another domain, or the model is not on this machine.
    """
    if settings.domain.name != "arithmetic":
        raise ConfigError(f"TRL is driven with domain=arithmetic, not with {settings.domain.name}")
    injection = _injection(settings, folder)
    work = Path(tempfile.mkdtemp(prefix="trl."))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = _trainer(settings, seed, work, injection)
            trainer.train()
        trainer.save_state()
        shutil.copyfile(work / STATE, folder / STATE)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _injection(settings: TrainSettings, folder: Path) -> Injection | None:
    for fault in injections(settings)[:1]:
        spec, reward = spec_of(fault), settings.reward
        weights = RewardWeights(reward.success, reward.progress, reward.quality)
        mechanism = MECHANISMS[spec.mechanism](spec, ExposureLog(folder / log_name(1), spec), weights)
        grpo = settings.grpo
        return Injection(mechanism, grpo.epochs, grpo.group_size, settings.model.max_turns)
    return None


def _trainer(settings: TrainSettings, seed: int, work: Path, injection: Injection | None) -> InjectedTrainer:
    source = model_folder(settings.model)
    if source is None:
        raise ConfigError(f"the weights of model={settings.model.name} are not here; see robustops doctor")
    tasks = {task.id: task for task in open_catalog(settings.domain)[1].tasks("train")}
    tokenizer = readable(AutoTokenizer.from_pretrained(source))
    grpo, reward = settings.grpo, settings.reward
    rules = RewardRules(reward.gated, grpo.credit.repeats if grpo.credit.enabled else None)
    rewards = Rewards(tokenizer, grpo.group_size, rules, injection)
    trainer = InjectedTrainer(
        model=_model(source, injection),
        reward_funcs=[rewards.success, rewards.progress, rewards.quality],
        args=_config(settings, seed, work),
        train_dataset=_rows(tasks),
        processing_class=tokenizer,
        callbacks=[] if injection is None else [injection],
        environment_factory=cast(Any, partial(Calculator, tasks, injection)),
    )
    trainer.injection = injection
    if injection is not None:
        injection.attach(trainer)
    return trainer


def _rows(tasks: Mapping[str, Task]) -> Dataset:
    prompts = [
        [{"role": "system", "content": task.policy}, {"role": "user", "content": task.prompt}]
        for task in tasks.values()
    ]
    return Dataset.from_dict({"prompt": prompts, "task": list(tasks)})


def _model(source: Path, injection: Injection | None) -> Any:
    """The policy; with an injection, of a class whose `generate` asks it for logits."""
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    if injection is None or not injection.mechanism.reads_logits:
        return model
    kind, own = type(model), injection

    class Biased(kind):  # type: ignore[misc, valid-type]
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            config = kwargs["generation_config"]
            stops = config.eos_token_id
            stop_ids = [int(stops)] if isinstance(stops, int) else [int(token) for token in stops]
            bias = Bias(own, kwargs["input_ids"].shape[1], stop_ids)
            return super().generate(*args, logits_processor=LogitsProcessorList([bias]), **kwargs)

    return Biased.from_pretrained(source, dtype=torch.float32)


def _config(settings: TrainSettings, seed: int, work: Path) -> GRPOConfig:
    """Objective and sizes of the settings. A step of ours is one generation with `epochs` updates, so that
    TRL's log has a row a step; what it calls a step is an update.
    """
    grpo, model, reward = settings.grpo, settings.model, settings.reward
    episodes = grpo.groups * grpo.group_size
    return GRPOConfig(
        output_dir=str(work),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=grpo.steps * grpo.epochs,
        num_iterations=grpo.epochs,
        per_device_train_batch_size=episodes,
        gradient_accumulation_steps=1,
        num_generations=grpo.group_size,
        max_completion_length=model.context_tokens,
        generation_kwargs={"max_new_tokens": model.answer_tokens},
        max_tool_calling_iterations=model.max_turns,
        temperature=settings.sampler.temperature,
        reward_weights=[reward.success, reward.progress, reward.quality],
        beta=grpo.kl,
        epsilon=grpo.clip_low,
        epsilon_high=grpo.clip_high,
        learning_rate=grpo.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=grpo.warmup_steps * grpo.epochs,
        adam_beta2=0.95,
        adam_epsilon=grpo.adam_epsilon,
        weight_decay=grpo.weight_decay,
        max_grad_norm=grpo.grad_clip,
        logging_strategy="steps",
        logging_steps=grpo.epochs,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=seed,
    )
