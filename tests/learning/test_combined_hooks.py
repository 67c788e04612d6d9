from __future__ import annotations

import dataclasses

import pytest
import torch

from robustops.errors import TrainingError
from robustops.learning.combined_hooks import CombinedHooks, combined
from robustops.learning.grpo_loss import GRPOLoss
from robustops.learning.hooks import NO_TRAINING_HOOKS, TrainingHooks
from robustops.objectives.advantages import Advantages
from robustops.records import ToolCall, ToolResult
from robustops.rollout.hooks import HeldBack, Place, RolloutHooks
from robustops.rollout.sampler import Completion, Request
from tests.learning.support import group_of, made_episode

PLACE = Place(2, "case/oracle", "clean", 0, 1)
CALL, REPLY = ToolCall("list_boxes", {}), ToolResult("ab")
REQUEST, SAID = Request(0, (70, 71), 12, 0, place=PLACE), Completion(0, (20, 1), (-0.1, -0.2))
GROUP = group_of(made_episode([(4, 9)], 12, seed=0, parts=(0.0, 0.5, 0.0)))


class Scales(TrainingHooks):
    """x -> factor * x + 1 for everything that has a number, so that order shows; says no where told to."""

    def __init__(self, factor: int, *, says: bool = True) -> None:
        self.factor, self.says = factor, says
        self.asked: list[str] = []
        self.state = factor

    def turn(self, name, value):
        self.asked.append(name)
        return value * self.factor + 1

    def on_logits(self, logits, sessions, stop_ids):
        return self.turn("logits", logits)

    def on_request(self, place, request):
        return dataclasses.replace(request, max_new_tokens=self.turn("request", request.max_new_tokens))

    def on_completion(self, place, request, completion, stop_ids):
        probs = tuple(self.turn("completion", p) for p in completion.log_probs)
        return dataclasses.replace(completion, log_probs=probs)

    def on_tool_call(self, place, call):
        self.asked.append("call")
        return call if self.says else HeldBack(ToolResult("held back"))

    def on_tool_reply(self, place, call, result, earlier):
        self.asked.append("reply")
        return dataclasses.replace(result, text=result.text * self.factor + "+")

    def ends_after(self, place, turns, max_turns):
        self.asked.append("end")
        return not self.says

    def on_group(self, step, number, group):
        parts = group.episodes[0].reward_parts
        parts = dataclasses.replace(parts, progress=self.turn("group", parts.progress))
        return group_of(dataclasses.replace(group.episodes[0], reward_parts=parts))

    def overlooks_answer(self, place):
        self.asked.append("answer")
        return not self.says

    def on_members(self, step, groups, members):
        return [self.turn("members", member) for member in members]

    def on_value_targets(self, step, groups, targets):
        return self.turn("targets", targets)

    def on_value_update(self, step, optimizer):
        self.asked.append("value")
        return self.says

    def on_credit(self, step, groups, credit):
        return [self.turn("credit", values) for values in credit]

    def on_advantages(self, step, groups, advantages):
        return dataclasses.replace(advantages, values=self.turn("advantages", advantages.values))

    def on_loss(self, step, loss):
        return dataclasses.replace(loss, kl=self.turn("loss", loss.kl))

    def on_gradient(self, step, parameters):
        for parameter in parameters:
            parameter.grad = self.turn("gradient", parameter.grad)

    def on_update(self, step, optimizer):
        self.asked.append("update")
        return self.says

    def on_sync(self, step):
        self.asked.append("sync")
        return self.says

    def begin(self, steps_done):
        self.asked.append("begin")

    def end_step(self, step):
        self.asked.append("end_step")

    def state_dict(self):
        return {"state": self.state}

    def load_state_dict(self, state):
        self.state = state["state"]


def test_values_go_through_all_sets_in_order():
    hooks = combined(Scales(2), Scales(3))  # 3 (2 x + 1) + 1
    assert hooks.on_logits(torch.tensor([1.0]), [], set()).tolist() == [10.0]
    assert hooks.on_request(PLACE, REQUEST).max_new_tokens == 76
    said = hooks.on_completion(PLACE, REQUEST, dataclasses.replace(SAID, log_probs=(1.0, 0.0)), {1})
    assert said.log_probs == (10.0, 4.0)
    assert hooks.on_tool_call(PLACE, CALL) == CALL
    assert hooks.on_tool_reply(PLACE, CALL, REPLY, []).text == "abab+" * 3 + "+"
    assert hooks.on_group(2, 0, GROUP).episodes[0].reward_parts.progress == 7.0
    advantages = Advantages(torch.tensor([1.0, 0.0]), torch.zeros(2))
    assert hooks.on_advantages(2, [GROUP], advantages).values.tolist() == [10.0, 4.0]
    assert hooks.on_members(2, [GROUP], [1]) == [10]
    assert hooks.on_credit(2, [GROUP], [torch.tensor([1.0])])[0].tolist() == [10.0]
    assert hooks.on_value_targets(2, [GROUP], torch.tensor([1.0])).tolist() == [10.0]
    assert hooks.on_loss(2, GRPOLoss(kl=1.0)).kl == 10.0
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.tensor([1.0])
    hooks.on_gradient(2, [weight])
    assert weight.grad.tolist() == [10.0]


@pytest.mark.parametrize("says", [(True, True), (False, True), (True, False), (False, False)])
def test_what_one_forbids_is_not_done_and_all_are_asked(says):
    sets = [Scales(2, says=answer) for answer in says]
    hooks = combined(*sets)
    assert hooks.on_update(2, None) == hooks.on_sync(2) == all(says)  # type: ignore[arg-type]
    assert hooks.ends_after(PLACE, 1, 8) == (not all(says))
    assert hooks.on_value_update(2, None) == all(says)  # type: ignore[arg-type]
    assert hooks.overlooks_answer(PLACE) == (not all(says))
    hooks.begin(0)
    hooks.end_step(1)
    assert [one.asked for one in sets] == [
        ["update", "sync", "end", "value", "answer", "begin", "end_step"]
    ] * 2


def test_a_call_that_was_held_back_reaches_nobody_behind():
    first, second = Scales(2, says=False), Scales(2)
    assert combined(first, second).on_tool_call(PLACE, CALL) == HeldBack(ToolResult("held back"))
    assert (first.asked, second.asked) == (["call"], [])


def test_every_hook_is_passed_on():
    names = {
        name
        for kind in (RolloutHooks, TrainingHooks)
        for name, value in vars(kind).items()
        if callable(value) and not name.startswith("_")
    }
    assert names <= set(vars(CombinedHooks))


def test_hooks_that_do_nothing_are_left_out():
    only = Scales(2)
    assert combined() is combined(NO_TRAINING_HOOKS, NO_TRAINING_HOOKS) is NO_TRAINING_HOOKS
    assert combined(NO_TRAINING_HOOKS, only) is only


def test_what_the_sampler_must_offer_is_what_any_of_them_needs():
    class Reads(TrainingHooks):
        reads_logits = True

    class Holds(TrainingHooks):
        holds_weights = True

    one, both = combined(Reads(), Scales(1)), combined(Reads(), Holds(), Scales(1))
    assert (one.reads_logits, one.holds_weights) == (True, False)
    assert (both.reads_logits, both.holds_weights) == (True, True)


def test_states_go_back_to_their_owners_and_those_of_another_number_are_refused():
    kept = combined(Scales(2), Scales(3), Scales(4)).state_dict()
    sets = [Scales(7), Scales(8), Scales(9)]
    combined(*sets).load_state_dict(kept)
    assert [one.state for one in sets] == [2, 3, 4]
    for state in (combined(Scales(2), Scales(3)).state_dict(), Scales(1).state_dict()):
        with pytest.raises(TrainingError, match="this run 3; resume with the run faults"):
            combined(*sets).load_state_dict(state)
