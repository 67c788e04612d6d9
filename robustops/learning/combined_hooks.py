"""Several sets of hooks as one: two failures at once, or a failure under observation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from robustops.errors import TrainingError
from robustops.learning.grpo_loss import GRPOLoss
from robustops.learning.hooks import NO_TRAINING_HOOKS, TrainingHooks
from robustops.objectives.advantages import Advantages
from robustops.records import Group, ToolCall, ToolResult
from robustops.rollout.hooks import HeldBack, Place

if TYPE_CHECKING:
    from robustops.rollout.hf_session import Session
    from robustops.rollout.sampler import Completion, Request


class CombinedHooks(TrainingHooks):
    """Each value goes through all sets in their order; what one may forbid is allowed where all allow it.

    A set is asked whatever the others said, so that its own draws and log depend on no other. Only a tool
    call that one has held back reaches none of those behind it.
    """

    def __init__(self, sets: Sequence[TrainingHooks]) -> None:
        self.sets = tuple(sets)
        self.reads_logits = any(hooks.reads_logits for hooks in self.sets)
        self.holds_weights = any(hooks.holds_weights for hooks in self.sets)

    # rollouts -----------------------------------------------------------------------------------
    def on_logits(self, logits: Tensor, sessions: Sequence[Session], stop_ids: Collection[int]) -> Tensor:
        for hooks in self.sets:
            logits = hooks.on_logits(logits, sessions, stop_ids)
        return logits

    def on_request(self, place: Place, request: Request) -> Request:
        for hooks in self.sets:
            request = hooks.on_request(place, request)
        return request

    def on_completion(
        self, place: Place, request: Request, completion: Completion, stop_ids: Collection[int]
    ) -> Completion:
        for hooks in self.sets:
            completion = hooks.on_completion(place, request, completion, stop_ids)
        return completion

    def on_tool_call(self, place: Place, call: ToolCall) -> ToolCall | HeldBack:
        for hooks in self.sets:
            answer = hooks.on_tool_call(place, call)
            if isinstance(answer, HeldBack):
                return answer
            call = answer
        return call

    def on_tool_reply(
        self, place: Place, call: ToolCall, result: ToolResult, earlier: Sequence[ToolResult]
    ) -> ToolResult:
        for hooks in self.sets:
            result = hooks.on_tool_reply(place, call, result, earlier)
        return result

    def ends_after(self, place: Place, turns: int, max_turns: int) -> bool:
        return any([hooks.ends_after(place, turns, max_turns) for hooks in self.sets])

    def overlooks_answer(self, place: Place) -> bool:
        return any([hooks.overlooks_answer(place) for hooks in self.sets])

    # training -----------------------------------------------------------------------------------
    def on_group(self, step: int, number: int, group: Group) -> Group:
        for hooks in self.sets:
            group = hooks.on_group(step, number, group)
        return group

    def on_members(self, step: int, groups: Sequence[Group], members: Sequence[int]) -> Sequence[int]:
        for hooks in self.sets:
            members = hooks.on_members(step, groups, members)
        return members

    def on_advantages(self, step: int, groups: Sequence[Group], advantages: Advantages) -> Advantages:
        for hooks in self.sets:
            advantages = hooks.on_advantages(step, groups, advantages)
        return advantages

    def on_value_targets(self, step: int, groups: Sequence[Group], targets: Tensor) -> Tensor:
        for hooks in self.sets:
            targets = hooks.on_value_targets(step, groups, targets)
        return targets

    def on_value_update(self, step: int, optimizer: Optimizer) -> bool:
        return all([hooks.on_value_update(step, optimizer) for hooks in self.sets])

    def on_credit(self, step: int, groups: Sequence[Group], credit: list[Tensor]) -> list[Tensor]:
        for hooks in self.sets:
            credit = hooks.on_credit(step, groups, credit)
        return credit

    def on_loss(self, step: int, loss: GRPOLoss) -> GRPOLoss:
        for hooks in self.sets:
            loss = hooks.on_loss(step, loss)
        return loss

    def on_gradient(self, step: int, parameters: Sequence[Parameter]) -> None:
        for hooks in self.sets:
            hooks.on_gradient(step, parameters)

    def on_update(self, step: int, optimizer: Optimizer | LightningOptimizer) -> bool:
        return all([hooks.on_update(step, optimizer) for hooks in self.sets])

    def on_sync(self, step: int) -> bool:
        return all([hooks.on_sync(step) for hooks in self.sets])

    # the run ------------------------------------------------------------------------------------
    def begin(self, steps_done: int) -> None:
        for hooks in self.sets:
            hooks.begin(steps_done)

    def end_step(self, step: int) -> None:
        for hooks in self.sets:
            hooks.end_step(step)

    def state_dict(self) -> dict[str, Any]:
        return {"sets": [hooks.state_dict() for hooks in self.sets]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        states = state.get("sets", [])
        if len(states) != len(self.sets):
            raise TrainingError(
                f"the checkpoint has the state of {len(states)} sets of hooks, this run {len(self.sets)}; "
                "resume with the run faults that the run began with"
            )
        for hooks, own in zip(self.sets, states, strict=True):
            hooks.load_state_dict(own)


def combined(*sets: TrainingHooks) -> TrainingHooks:
    """One set of hooks that does what all of them do; those that do nothing are left out."""
    doing = [hooks for hooks in sets if hooks is not NO_TRAINING_HOOKS]
    if len(doing) < 2:
        return doing[0] if doing else NO_TRAINING_HOOKS
    return CombinedHooks(doing)
