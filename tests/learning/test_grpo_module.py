from __future__ import annotations

import dataclasses
import math
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from robustops.errors import TrainingError
from robustops.learning import grpo_loss
from robustops.learning.data import RolloutTicket
from robustops.learning.groups import GroupMaker, GroupPlan
from robustops.learning.grpo_loss import GRPOLoss
from robustops.learning.grpo_module import GRPOModule, Optimisation
from robustops.learning.rollout_callback import RolloutCallback
from robustops.objectives.advantages import aggregate, component
from robustops.records import RewardParts, ToolCall, ToolResult
from robustops.rewards.combine import RewardWeights
from robustops.rollout.collector import Collector
from robustops.rollout.episode import Limits
from robustops.rollout.hf import HFSampler
from tests.learning.grpo_cases import (
    LOSS,
    groups,
    grpo_module,
    one_step,
    reference_model,
    sampled,
    slow_terms,
)
from tests.learning.support import (
    Metrics,
    fit,
    group_of,
    made_episode,
    same_weights,
    slow_log_probs,
    toy_policy,
    weights_of,
)
from tests.tiny_model import tiny_model
from tests.toy_domain import TOY, toy_tasks


@pytest.fixture(scope="module")
def reference():
    return reference_model()


@pytest.mark.parametrize("aggregation", ["token", "trajectory"])
@pytest.mark.parametrize("normalise", [aggregate, component])
def test_loss_and_gradient_are_those_of_the_slow_reference(tmp_path, reference, normalise, aggregation):
    model, loss = tiny_model(seed=3, width=32), dataclasses.replace(LOSS, aggregation=aggregation)
    slow = slow_terms(model, reference, groups(), normalise, loss)
    slow.backward()
    expected = {f"model.{name}": p.grad for name, p in model.named_parameters()}
    options = {"normalise": normalise, "loss": loss, "micro_batch_tokens": 66}
    metrics, gradient, _ = one_step(tmp_path, reference, groups(), **options)
    assert metrics["train/loss"] == pytest.approx(slow.item(), abs=1e-6)
    assert metrics["clip_low"] > 0.02 and metrics["clip_high"] > 0.02, "both clips must bind"
    assert gradient.keys() == expected.keys()
    for name, value in gradient.items():
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=1e-5)
    squares = sum(float(g.square().sum()) for g in expected.values())
    assert metrics["grad_norm"] == pytest.approx(squares**0.5, rel=1e-4)
    assert metrics["train/episodes"] == 5.0 and metrics["train/tokens"] == 11 + 7 + 2 + 18 + 4


@pytest.mark.parametrize("condition", ["clean", "fault"])
def test_a_flow_that_is_alone_counts_whole(tmp_path, reference, condition):
    chosen = [group for group in groups() if group.condition == condition]
    with torch.no_grad():
        slow = slow_terms(tiny_model(seed=3, width=32), reference, chosen, component)
    metrics, _, _ = one_step(tmp_path, reference, chosen)
    assert metrics["train/loss"] == pytest.approx(slow.item(), abs=1e-6)


def test_each_flow_has_half_the_weight_whatever_its_tokens(tmp_path, reference):
    # The fault flow has 24 tokens, the clean one 18; with a KL only, the loss is the mean of two means.
    loss = GRPOLoss(kl=1.0)
    equal = [
        group_of(*(made_episode(spans, 30, seed=seed, condition=condition, old=None) for seed in seeds))
        for condition, spans, seeds in (("clean", [(5, 6)], (1, 2)), ("fault", [(5, 25)], (3, 4)))
    ]
    alone = [one_step(tmp_path, reference, [group], loss=loss)[0]["kl_ref_k3"] for group in equal]
    metrics, _, _ = one_step(tmp_path, reference, equal, loss=loss)
    assert metrics["train/loss"] == pytest.approx(sum(alone) / 2, rel=1e-4)
    assert metrics["adv_absmax"] == 0.0, "equal rewards are no advantage"


def test_the_micro_batch_budget_changes_neither_loss_nor_gradient(tmp_path, reference):
    wanted_metrics, wanted, _ = one_step(tmp_path, reference, groups(), micro_batch_tokens=10_000)
    for budget in (1, 45, 70):
        metrics, gradient, _ = one_step(tmp_path, reference, groups(), micro_batch_tokens=budget)
        assert metrics["train/loss"] == pytest.approx(wanted_metrics["train/loss"], abs=1e-6)
        for name in ("ratio_mean", "ratio_max", "kl_ref_k3", "clip_frac", "entropy"):
            assert metrics[name] == pytest.approx(wanted_metrics[name], abs=1e-5)
        for name in wanted:
            torch.testing.assert_close(gradient[name], wanted[name], atol=1e-6, rtol=1e-5)


def test_only_trained_positions_reach_the_output_layer(tmp_path, reference):
    rows = []
    model = tiny_model(seed=3, width=32)
    model.get_output_embeddings().register_forward_hook(lambda m, inputs, out: rows.append(len(inputs[0])))
    metrics, _, _ = one_step(tmp_path, reference, groups(), model=model)
    assert (
        sum(rows)
        == metrics["train/tokens"]
        == sum(sum(e.loss_mask) for group in groups() for e in group.episodes)
    )


def test_the_learning_rate_is_constant_or_decays_to_a_tenth(tmp_path, reference):
    for steps, wanted in ((None, [1e-3] * 4), (3, [1e-3, 7e-4, 4e-4, 1e-4])):
        metrics = Metrics()
        module = grpo_module(reference, decay_steps=steps)
        fit(tmp_path / str(steps), module, 4, lambda step: RolloutTicket(step, groups()), metrics)
        assert [step["lr"] for step in metrics.steps] == pytest.approx(wanted)


def test_numbers_at_masked_positions_count_for_nothing(tmp_path, reference):
    def spoilt(episode):
        old = [
            o if m else float("nan") for o, m in zip(episode.old_log_probs, episode.loss_mask, strict=True)
        ]
        return dataclasses.replace(episode, old_log_probs=tuple(old))

    bad = [group_of(*(spoilt(episode) for episode in group.episodes)) for group in groups()]
    clean_metrics, wanted, _ = one_step(tmp_path, reference, groups())
    metrics, gradient, _ = one_step(tmp_path, reference, bad)
    assert metrics == clean_metrics
    assert all(torch.equal(gradient[name], wanted[name]) for name in wanted)


def test_an_inherited_prefix_is_context_but_is_not_trained(tmp_path, reference):
    """Another prefix changes the gradient only through what it makes of the suffix's log-probs."""
    fault = groups()[1]
    _, gradient, _ = one_step(tmp_path, reference, [fault])
    model = tiny_model(seed=3, width=32)
    slow_terms(model, reference, [fault], component).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradient[f"model.{name}"], parameter.grad, atol=1e-6, rtol=1e-5)
    # Trained as well, the prefix would make a difference that the above would have seen.
    whole = [
        sampled(
            episode.index,
            [(turn.start, turn.end) for turn in episode.turns],
            len(episode.token_ids),
            condition="fault",
            parts=tuple(vars(episode.reward_parts).values()),
        )
        for episode in fault.episodes
    ]
    _, other, _ = one_step(tmp_path, reference, [group_of(*whole)])
    assert any(not torch.allclose(other[name], gradient[name], atol=1e-4) for name in gradient)


def test_the_reference_is_frozen_and_is_no_part_of_the_module(tmp_path, reference):
    before = weights_of(reference)
    _, _, module = one_step(tmp_path, reference, groups())
    assert same_weights(before, weights_of(reference))
    assert {name.split(".")[0] for name in module.state_dict()} == {"model"}


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_step_without_groups_leaves_the_weights_bit_for_bit(tmp_path, reference, weight_decay):
    module = grpo_module(reference, weight_decay=weight_decay)
    before = weights_of(module)
    metrics = Metrics()
    trainer = fit(tmp_path, module, 2, lambda step: RolloutTicket(step, [], {"rollout/x": 1.0}), metrics)
    assert same_weights(before, weights_of(module))
    assert trainer.global_step == 2
    nothing = metrics.steps[1]
    assert nothing["train/episodes"] == 0.0 and nothing["skipped_updates"] == 1.0
    assert nothing["update_norm_rel"] == 0.0 and math.isnan(nothing["grad_norm"]), "no gradient, no norm"
    assert nothing["rollout/x"] == 1.0 and "train/loss" not in nothing


def test_an_empty_step_between_two_others_does_not_move_weights_by_momentum(tmp_path, reference):
    module, seen = grpo_module(reference), []

    def make(step):
        seen.append(weights_of(module))
        return RolloutTicket(step, groups() if step == 0 else [])

    fit(tmp_path, module, 3, make)
    # Items are fetched one step ahead, so the weights are compared after the first update has been seen.
    assert not same_weights(seen[0], weights_of(module))
    assert same_weights(seen[-1], weights_of(module))


def stopped(tmp_path, module, given_groups) -> str:
    """The message of the error that ends the first step; the weights are as they were, bit for bit."""
    before = weights_of(module)
    with pytest.raises(TrainingError) as caught:
        fit(tmp_path, module, 1, lambda step: RolloutTicket(step, given_groups))
    assert same_weights(before, weights_of(module))
    return str(caught.value)


def test_a_nan_logit_stops_the_step_and_names_step_episode_and_token(tmp_path, reference):
    """One logit of the fourth trained token of the longer episode, in a micro-batch of its own."""
    calls = []

    def spoil(head, inputs, logits):
        calls.append(len(logits))
        if len(calls) == 2:
            logits = logits.clone()
            logits[3, 5] = float("nan")
        return logits

    module = grpo_module(reference, micro_batch_tokens=1)
    module.model.get_output_embeddings().register_forward_hook(spoil)
    message = stopped(tmp_path, module, [groups()[0]])
    assert calls == [11, 7]
    token = groups()[0].episodes[1].token_ids[15]
    assert message.startswith(
        f"step 1: log-prob under the trained policy is nan at token 15 (id {token}) of episode 2 of "
    )


def test_a_nan_of_the_sampler_is_named_although_the_cap_swallows_its_gradient(tmp_path, reference):
    first, second = groups()[0].episodes
    old = [float("nan") if n == 15 else o for n, o in enumerate(first.old_log_probs)]
    spoilt = dataclasses.replace(first, old_log_probs=tuple(old))
    message = stopped(tmp_path, grpo_module(reference), [group_of(spoilt, second)])
    assert message.startswith("step 1: log-prob of the sampler is nan at token 15 ")


def test_a_gradient_that_is_not_finite_is_traced_to_its_token(tmp_path, reference, monkeypatch):
    """A finite loss with an infinite derivative: the root of zero, at one token of episode 4."""
    original = grpo_loss._terms

    def rooted(scores, old, batch, loss):
        terms = original(scores, old, batch, loss)
        for row, episode in enumerate(batch.episodes):
            if episode.index == 4:
                log_prob = scores.log_probs[row, 20]
                terms[row, 20] = terms[row, 20] + (log_prob - log_prob.detach()).clamp(min=0).sqrt()
        return terms

    monkeypatch.setattr(grpo_loss, "_terms", rooted)
    message = stopped(tmp_path, grpo_module(reference), groups())
    assert message.startswith("step 1: the gradient is not finite at token 20 ")
    assert "of episode 4 of made/oracle (fault)" in message


def test_the_reported_reward_is_that_of_the_runs_weights(tmp_path, reference):
    weights = RewardWeights(1.0, 0.0, 0.0)
    metrics, _, _ = one_step(
        tmp_path, reference, groups(), normalise=partial(component, weights=weights), reward_weights=weights
    )
    assert metrics["return_mean"] == pytest.approx(2 / 5)
    default, _, _ = one_step(tmp_path, reference, groups())
    total = (1 + 0.15 + 0.1) + 0.075 + -0.15 + (1 + 0.15 + 0.05) + 0
    assert default["return_mean"] == pytest.approx(total / 5)


def test_a_failed_stop_and_a_bad_call_are_capped_in_the_loss(tmp_path, reference):
    """By hand, for two tokens of ratio 1: advantages +a and -a become 0 and -a, or -0.5 and -a."""
    with torch.no_grad():
        ids = made_episode([(5, 6)], 6, seed=1).token_ids
        own = float(slow_log_probs(tiny_model(seed=3, width=32), ids)[4])
    good = made_episode([(5, 6)], 6, seed=1, parts=(0.0, 0.5, 0.0), old=[own] * 6)
    poor = made_episode([(5, 6)], 6, seed=1, parts=(0.0, 0.0, 0.0), old=[own] * 6)
    a = 2**-0.5  # z-scores of two values, with the sample deviation
    refused = ToolResult('{"error":{}}', is_error=True)
    bad_turn = dataclasses.replace(good.turns[0], call=ToolCall("x", {}), result=refused)
    for member, loss in (
        (good, 0.0),
        (dataclasses.replace(good, stop="final_answer"), a / 2),
        (dataclasses.replace(good, turns=(bad_turn,)), (0.5 + a) / 2),
    ):
        metrics, _, _ = one_step(tmp_path, reference, [group_of(member, poor)], loss=GRPOLoss(kl=0.0))
        assert metrics["adv_max"] == pytest.approx(a, abs=1e-5)
        assert metrics["train/loss"] == pytest.approx(loss, abs=1e-5)


def pseudo_reward(task, episode) -> RewardParts:
    """Some reward that differs between episodes and follows from their tokens alone."""
    return RewardParts(0.0, (sum(episode.token_ids) % 97) / 97, 0.0)


def test_on_a_real_on_policy_step_the_ratio_is_one(tmp_path):
    policy = toy_policy()
    sampler = HFSampler(policy.model, policy.renderer.stop_ids, max_in_flight=8)
    collector = Collector(sampler, policy.renderer, {"toy": TOY}, Limits(600, 24, 3))
    maker = GroupMaker(collector, toy_tasks(4), None, GroupPlan(2, 0, 4, 0), pseudo_reward, seed=1)
    module = GRPOModule(policy.model, policy.reference(), component, GRPOLoss(), Optimisation(1e-3))
    metrics = Metrics()
    fit(tmp_path, module, 3, RolloutTicket, metrics, RolloutCallback(maker, sampler))
    for step, numbers in enumerate(metrics.steps):
        assert numbers["rollout/groups_accepted"] == 2.0 and numbers["train/tokens"] > 100
        assert numbers["samp_logp_absdiff_max"] < 1e-4
        for name in ("ratio_mean", "train/ratio_min", "ratio_max"):
            assert numbers[name] == pytest.approx(1.0, abs=1e-4)
        assert numbers["clip_frac"] == 0.0
        assert (numbers["train/kl_ref_max"] > 1e-5) == (step > 0), "the policy leaves the reference"


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(range(5)))
def test_the_order_of_episodes_changes_no_number(tmp_path, reference, order):
    parts = [episode for group in groups() for episode in group.episodes]
    clean = group_of(*(parts[i] for i in order if i < 2))
    fault = group_of(*(parts[i] for i in order if i >= 2))
    wanted, _, _ = one_step(tmp_path, reference, groups())
    metrics, _, _ = one_step(tmp_path, reference, [fault, clean])
    assert metrics["train/loss"] == pytest.approx(wanted["train/loss"], abs=1e-6)
    assert metrics["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-5)
