"""Training in a test: a quiet Trainer, what it did to weights and gradients, hand-made episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from transformers import PreTrainedModel

from robustops.learning.data import StepData
from robustops.learning.policy import Policy
from robustops.records import Episode, Group, RewardParts, Turn
from robustops.rollout.render import Renderer
from tests.tiny_model import prompt, tiny_model, tiny_tokenizer


class Gradients(Callback):
    """Keeps the gradient of every step as it was before the optimiser took it."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Tensor]] = []

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        named = pl_module.named_parameters()
        self.steps.append({name: p.grad.clone() for name, p in named if p.grad is not None})


class Metrics(Callback):
    """Keeps `step_metrics` of every step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.steps.append(dict(pl_module.step_metrics))  # type: ignore[arg-type]


def quiet_trainer(folder: Path, *callbacks: Callback, **options: Any) -> Trainer:
    """One process, one epoch, on the CPU; no files unless a callback writes them."""
    return Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=options.pop("logger", False),
        callbacks=list(callbacks),
        enable_checkpointing=options.pop("enable_checkpointing", False),
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


def fit(
    folder: Path, module: LightningModule, steps: int, make: Callable[[int], object], *callbacks: Callback
) -> Trainer:
    trainer = quiet_trainer(folder, *callbacks)
    trainer.fit(module, datamodule=StepData(steps, make))
    return trainer


def weights_of(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def same_weights(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def toy_policy(seed: int = 0, width: int = 64) -> Policy:
    """A random model with a tokenizer of the toy domain."""
    tokenizer = tiny_tokenizer()
    return Policy(tiny_model(len(tokenizer), seed=seed, width=width), tokenizer, Renderer(tokenizer))


def slow_log_probs(model: PreTrainedModel, ids: Sequence[int], temperature: float = 1.0) -> Tensor:
    """(tokens - 1,) log-prob of tokens 1.. from one row without padding, through all logits."""
    row = torch.tensor([list(ids)])
    logits = model(input_ids=row, use_cache=False).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).gather(-1, row[0, 1:, None])[:, 0]


def made_episode(
    spans: Sequence[tuple[int, int]],
    length: int,
    *,
    seed: int,
    condition: str = "clean",
    inherited: int = 0,
    parts: tuple[float, float, float] = (0.0, 0.0, 0.0),
    old: Sequence[float] | None = None,
    index: int = 0,
) -> Episode:
    """Random tokens; `spans` are the messages, of which the first `inherited` are not trained.

    old: old log-probs of all tokens (masked ones are set to 0), default -3 for each.
    """
    mask = [False] * length
    for start, end in spans[inherited:]:
        mask[start:end] = [True] * (end - start)
    numbers = old if old is not None else [-3.0] * length
    success = parts[0] == 1.0
    return Episode(
        case_id="made/oracle",
        condition=condition,
        index=index,
        token_ids=prompt(length, seed),
        loss_mask=tuple(mask),
        old_log_probs=tuple(n if m else 0.0 for n, m in zip(numbers, mask, strict=True)),
        turns=tuple(Turn(f"message {n}", None, None, start, end) for n, (start, end) in enumerate(spans)),
        inherited_turns=inherited,
        stop="max_turns",
        checks_start=(False,),
        checks_final=(success,),
        reward_parts=RewardParts(*parts),
    )


def group_of(*episodes: Episode) -> Group:
    return Group(episodes[0].case_id, episodes[0].condition, episodes)
