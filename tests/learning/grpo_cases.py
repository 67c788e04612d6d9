"""Groups of made episodes, a module that trains on them, and the loss by a slow reference."""

from __future__ import annotations

import dataclasses

import torch

from robustops.learning.data import RolloutTicket
from robustops.learning.grpo_loss import GRPOLoss
from robustops.learning.grpo_module import GRPOModule, Optimisation
from robustops.learning.policy import Reference
from robustops.objectives.advantages import component
from robustops.records import Group
from tests.learning.support import Gradients, Metrics, fit, group_of, made_episode, slow_log_probs
from tests.tiny_model import prompt, shake, tiny_model

LOSS = GRPOLoss(kl=0.05, clip_low=0.2, clip_high=0.28)


#: Arguments of the module itself; others are of its optimisation.
MODULE_OPTIONS = ("credit", "rules", "reward_weights", "guards", "hooks")


def reference_model():
    """Not the policy: its weights are shaken."""
    model = tiny_model(seed=3, width=32)
    shake(model, seed=9)
    return model.requires_grad_(False)


def sampled(seed, spans, length, *, condition="clean", inherited=0, parts=(0.0, 0.0, 0.0), begin=()):
    """A made episode whose old log-probs are the model's own, moved a little to either side.

    begin: its first tokens.
    """
    ids = (*begin, *prompt(length, seed)[len(begin) :])
    with torch.no_grad():
        own = slow_log_probs(tiny_model(seed=3, width=32), ids)
    moves = torch.randn(len(own), generator=torch.Generator().manual_seed(seed)) * 0.4
    made = made_episode(
        spans,
        length,
        seed=seed,
        condition=condition,
        inherited=inherited,
        parts=parts,
        old=[0.0, *(own + moves).tolist()],
        index=seed,
    )
    return dataclasses.replace(made, token_ids=ids)


def groups() -> list[Group]:
    """A clean group of two and a fault group of three; every kind of difference in their parts."""
    clean = [
        sampled(1, [(6, 11), (14, 20)], 20, parts=(1.0, 0.5, 1.0)),
        sampled(2, [(6, 9), (15, 19)], 25, parts=(0.0, 0.25, 0.0)),
    ]
    fault = [
        sampled(3, [(4, 8), (12, 14)], 14, condition="fault", inherited=1, parts=(0.0, -0.5, 0.0)),
        sampled(4, [(4, 8), (12, 30)], 33, condition="fault", inherited=1, parts=(1.0, 0.5, 0.5)),
        sampled(5, [(4, 8), (12, 13), (16, 19)], 22, condition="fault", inherited=1),
    ]
    return [group_of(*clean), group_of(*fault)]


def sharing_groups() -> list[Group]:
    """As `groups`, but members begin alike: the clean ones up to the first reply of 40 tokens on, those of
    the fault group up to token 50, past an inherited reply; one has a single token of its own.
    """
    prompts = prompt(40, seed=50), prompt(50, seed=51)
    clean = [
        sampled(1, [(40, 45), (48, 54)], 54, parts=(1.0, 0.5, 1.0), begin=prompts[0]),
        sampled(2, [(40, 43), (49, 53)], 59, parts=(0.0, 0.25, 0.0), begin=prompts[0]),
        sampled(6, [(40, 41)], 41, begin=prompts[0]),
    ]
    options = {"condition": "fault", "inherited": 1, "begin": prompts[1]}
    fault = [
        sampled(3, [(40, 44), (52, 54)], 54, parts=(0.0, -0.5, 0.0), **options),
        sampled(4, [(40, 44), (50, 70)], 73, parts=(1.0, 0.5, 0.5), **options),
        sampled(5, [(40, 44), (51, 53), (56, 59)], 62, **options),
    ]
    return [group_of(*clean), group_of(*fault)]


def slow_terms(model, reference, groups, normalise, loss=LOSS) -> torch.Tensor:
    """Token by token: clipped surrogate and KL; mean of each flow's tokens (or of its trajectories'
    means), mean of the flows."""
    everyone = [episode for group in groups for episode in group.episodes]
    numbers = [number for number, group in enumerate(groups) for _ in group.episodes]
    advantages = normalise([e.reward_parts for e in everyone], numbers).values.tolist()
    flows: dict[str, list[torch.Tensor]] = {}
    for episode, advantage in zip(everyone, advantages, strict=True):
        new = slow_log_probs(model, episode.token_ids)
        with torch.no_grad():
            ref = slow_log_probs(reference, episode.token_ids)
        own = []
        for place, trained in enumerate(episode.loss_mask):
            if not trained:
                continue
            now, old, frozen = new[place - 1], episode.old_log_probs[place], ref[place - 1]
            ratio = torch.exp(now - old)
            inside = ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
            gain = torch.minimum(ratio * advantage, inside * advantage)
            kl = torch.exp(frozen - now) - (frozen - now) - 1
            own.append(-gain + loss.kl * kl)
        terms = [torch.stack(own).mean()] if loss.aggregation == "trajectory" else own
        flows.setdefault(episode.condition, []).extend(terms)
    return torch.stack([torch.stack(terms).mean() for terms in flows.values()]).mean()


def grpo_module(reference, model=None, normalise=component, loss=LOSS, **options) -> GRPOModule:
    of_module = {name: options.pop(name) for name in MODULE_OPTIONS if name in options}
    optimisation = Optimisation(**{"learning_rate": 1e-3, "grad_clip": 1e9, **options})
    model = model or tiny_model(seed=3, width=32)
    frozen = Reference(reference) if reference is not None else None
    return GRPOModule(model, frozen, normalise, loss, optimisation, **of_module)


def one_step(tmp_path, reference, given_groups, **options):
    module = grpo_module(reference, **options)
    gradients, metrics = Gradients(), Metrics()
    fit(tmp_path, module, 1, lambda step: RolloutTicket(step, given_groups), gradients, metrics)
    return metrics.steps[0], gradients.steps[0], module
