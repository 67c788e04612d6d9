"""Optimisation dynamics faults: KL explosion (OD-1), update freeze (OD-2), entropy collapse (OD-3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch.nn import Parameter
from torch.optim import Optimizer

from robustops.bench.run_faults.mechanism import Mechanism, step_place
from robustops.bench.run_faults.spec import uniform
from robustops.learning.grpo_loss import GRPOLoss
from robustops.seeding import child_seed

#: Factor on the learning rate of aggressive updates, and of a rate that hardly moves anything.
AGGRESSIVE, TINY = 20.0, 0.01
#: What the clip's bounds grow by: it never binds.
NO_CLIP = 1000.0
#: Factor on the KL coefficient with the wrong sign.
WRONG_SIGN = 1000.0
#: Norm of the noise, of the gradient's own.
NOISE = 5.0
#: Weight of the entropy that is minimised. A warm-started policy has little of it, and a small gradient.
PENALTY = 2.0


class StepMechanism(Mechanism):
    """Concerns whole steps."""

    def of_step(self, step: int) -> float:
        """Lambda of a step."""
        return self.force(step_place(step))

    def told(self, step: int, before: object, after: object) -> None:
        self.note(step_place(step), before, after)


class RateMechanism(StepMechanism):
    """Multiplies the learning rate of an update."""

    def factor(self, level: float) -> float:
        raise NotImplementedError

    def on_update(self, step: int, optimizer: Optimizer | LightningOptimizer) -> bool:
        if level := self.of_step(step):
            for group in optimizer.param_groups:
                before = group["lr"]
                group["lr"] = before * self.factor(level)
                self.told(step, before, group["lr"])
        return True


class AggressiveUpdates(RateMechanism):
    """OD-1: a learning rate many times too high, without clip and KL."""

    def factor(self, level: float) -> float:
        return 1 + (AGGRESSIVE - 1) * level

    def on_loss(self, step: int, loss: GRPOLoss) -> GRPOLoss:
        if (level := self.of_step(step)) == 0:
            return loss
        return dataclasses.replace(
            loss,
            kl=loss.kl * (1 - level),
            clip_low=loss.clip_low + NO_CLIP * level,
            clip_high=loss.clip_high + NO_CLIP * level,
        )


class KLSign(StepMechanism):
    """OD-1: the KL term pushes away from the reference, by a wrong sign and scale."""

    def on_loss(self, step: int, loss: GRPOLoss) -> GRPOLoss:
        if (level := self.of_step(step)) == 0:
            return loss
        faulty = dataclasses.replace(loss, kl=loss.kl * (1 - WRONG_SIGN * level))
        self.told(step, loss.kl, faulty.kl)
        return faulty


class NoisyGradient(StepMechanism):
    """OD-1: noise several times as large as the gradient."""

    def on_gradient(self, step: int, parameters: Sequence[Parameter]) -> None:
        if (level := self.of_step(step)) == 0:
            return
        for number, parameter in enumerate(parameters):
            if parameter.grad is None:
                continue
            source = torch.Generator().manual_seed(child_seed(self.spec.seed, "noise", step, number))
            noise = torch.randn(parameter.grad.shape, generator=source).to(parameter.grad)
            norm = parameter.grad.norm()
            parameter.grad += noise * (NOISE * level * norm / noise.norm().clamp(min=1e-12))
            self.note(step_place(step), float(norm), float(parameter.grad.norm()), number)


class TinyRate(RateMechanism):
    """OD-2: a learning rate that hardly moves anything."""

    def factor(self, level: float) -> float:
        return 1 - (1 - TINY) * level


class SkippedUpdates(StepMechanism):
    """OD-2: the backward pass is made, the update is not."""

    def on_update(self, step: int, optimizer: Optimizer | LightningOptimizer) -> bool:
        skipped = self.occurs(step_place(step))
        if skipped:
            self.told(step, True, False)
        return not skipped


class FrozenParameters(StepMechanism):
    """OD-2: a share of the weight tensors takes no part in updates; the same ones throughout."""

    def on_update(self, step: int, optimizer: Optimizer | LightningOptimizer) -> bool:
        if (level := self.of_step(step)) == 0:
            return True
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for number, parameter in enumerate(parameters):
            if parameter.grad is not None and uniform(self.spec.seed, "frozen", number) < level:
                parameter.grad = None
                self.note(step_place(step), "trained", "frozen", number)
        return True


class StaleSampler(StepMechanism):
    """OD-2: the sampler never gets the new weights."""

    holds_weights = True

    def on_sync(self, step: int) -> bool:
        stale = self.occurs(step_place(step))
        if stale:
            self.told(step, "new", "old")
        return not stale


class FrozenCritic(StepMechanism):
    """CA-1: the value head's learning rate is too low, at strength 1 it is 0."""

    def on_value_update(self, step: int, optimizer: Optimizer) -> bool:
        if level := self.of_step(step):
            for group in optimizer.param_groups:
                before = group["lr"]
                group["lr"] = before * (1 - level)
                self.told(step, before, group["lr"])
        return True


class EntropyPenalty(StepMechanism):
    """OD-3: the loss contains the entropy with the wrong sign."""

    def on_loss(self, step: int, loss: GRPOLoss) -> GRPOLoss:
        if (level := self.of_step(step)) == 0:
            return loss
        faulty = dataclasses.replace(loss, entropy=loss.entropy - PENALTY * level)
        self.told(step, loss.entropy, faulty.entropy)
        return faulty
