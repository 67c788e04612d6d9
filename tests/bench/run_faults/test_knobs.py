"""Every knob that the catalogue names really disconnects or weakens its mechanism, by standing behind it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from robustops.bench.run_faults.catalog import all_mechanisms
from robustops.learning.grpo_loss import GRPOLoss
from robustops.learning.hooks import NO_TRAINING_HOOKS
from robustops.objectives import advantage_guards
from robustops.objectives.advantage_guards import AdvantageGuards
from robustops.objectives.advantages import aggregate
from robustops.objectives.credit import LocalCredit, token_advantages
from robustops.records import CUT_OFF
from robustops.rewards.combine import total
from robustops.rewards.guards import RewardGuards, guarded
from robustops.rewards.parts import call_evidence
from robustops.rollout.constraints import constrained
from robustops.rollout.hf_session import Session
from robustops.rollout.sampler import Request
from tests.bench.run_faults.support import (
    NEEDS_CRITIC,
    PLACE,
    WEIGHTS,
    Fit,
    fit,
    infos,
    initial,
    injector,
    uses_tools,
)
from tests.learning.support import group_of, made_episode, same_weights

COUNTERS = {
    (mechanism.name, counter.key): counter
    for _, mechanism in all_mechanisms()
    for counter in mechanism.countered_by
}


REWARD_GUARDS = ("reward.bounded", "reward.recheck")
ADVANTAGE_GUARDS = {
    "grpo.advantage_guard": "rule",
    "grpo.regroup": "regroup",
    "grpo.even_credit": "even",
}


def options_of(key: str, value) -> dict:
    """A setting as an argument of `support.fit`."""
    section, name = key.split(".", 1)
    if key in REWARD_GUARDS:
        return {"reward_guards": RewardGuards(**{name: value})}
    if section == "reward":
        return {"weights": dataclasses.replace(WEIGHTS, **{name: value})}
    if key in ADVANTAGE_GUARDS:
        return {"guards": AdvantageGuards(**{ADVANTAGE_GUARDS[key]: value})}
    if section in ("model", "domain") or name == "min_new_tokens":
        return {"limits": {name: value}}
    return {name: value}


def disconnecting() -> list[tuple[str, str]]:
    """Those of a value head are in `test_critic`."""
    pairs = (pair for pair, counter in COUNTERS.items() if counter.effect == "disconnects")
    return sorted(pair for pair in pairs if pair[0] not in NEEDS_CRITIC)


def spent(run: Fit) -> list:
    """What the policy did, without the rewards that it was told of."""
    return [[(e.token_ids, e.old_log_probs) for e in step] for step in run.episodes]


@pytest.mark.parametrize(("name", "key"), disconnecting())
def test_behind_a_knob_that_disconnects_the_policy_is_that_of_the_control(tmp_path, name, key):
    """Episodes and weights are those of a run with the same knob and without the fault."""
    options = options_of(key, COUNTERS[name, key].value) | {"expert": uses_tools(name)}
    info = infos()[name][1]
    # What strikes all episodes of a group alike would be cancelled by its normalisation.
    some = {"probability": 0.5} if key == "reward.recheck" and info.units[0] == "episode" else {}
    free = fit(tmp_path / "free", injector(tmp_path / "free", name, **some), expert=uses_tools(name))
    control = fit(tmp_path / "control", NO_TRAINING_HOOKS, **options)
    repaired = fit(tmp_path / "repaired", injector(tmp_path / "repaired", name, **some), **options)
    assert any(line["touched"] for line in repaired.exposure), "the fault is still there"
    if key == "grpo.advantage_guard":  # the mean of a group is found and subtracted with rounding
        for parameter, weight in control.weights.items():
            assert weight.allclose(repaired.weights[parameter], atol=1e-3), parameter
    else:
        assert spent(repaired) == spent(control) and same_weights(repaired.weights, control.weights)
    assert not same_weights(free.weights, control.weights) or not info.grad_effect


# --- knobs that weaken, one by one ----------------------------------------------------------------
def group_with(*parts, tokens=30):
    """Success as the parts say it; texts of different lengths that repeat themselves to different degrees."""
    episodes = []
    for index, part in enumerate(parts):
        made = made_episode([(6, tokens - 3 * index)], tokens, seed=index, parts=part, index=index)
        ids = list(made.token_ids)
        ids[:6] = [9] * 6
        ids[6 : 6 + 4 * index] = [9] * (4 * index)
        episodes.append(dataclasses.replace(made, token_ids=tuple(ids), stop="final_answer"))
    return group_of(*episodes)


GROUP = group_with((1.0, 1.0, 0.5), (0.0, 0.9, 0.0), (1.0, 0.8, 1.0), (0.0, 0.9, 0.0))


def distance(one, two) -> float:
    """Of rewards, summed over the group."""
    pairs = zip(one.episodes, two.episodes, strict=True)
    return sum(abs(total(a.reward_parts, WEIGHTS) - total(b.reward_parts, WEIGHTS)) for a, b in pairs)


@pytest.mark.parametrize(("name", "key"), sorted(p for p in COUNTERS if p[1] == "reward.bounded"))
def test_bounds_of_the_reward_bring_it_closer_to_the_true_one(tmp_path, name, key):
    faulty = injector(tmp_path, name).on_group(5, 0, GROUP)
    guards = options_of(key, True)["reward_guards"]
    assert guarded(GROUP, guards) == GROUP, "a sound reward stays as it is"
    assert distance(guarded(faulty, guards), GROUP) < distance(faulty, GROUP)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("heavy_noise", {"clip": 1.0}),
        ("heavy_noise", {"rule": "consistent"}),
        ("sign_flips", {"rule": "consistent"}),
        ("lagged_advantages", {"rule": "consistent"}),
    ],
)
def test_guards_of_advantages_bring_them_closer_to_the_true_ones(tmp_path, name, rule):
    hooks = injector(tmp_path, name)
    groups = [GROUP, group_with((0.0, 0.1, 0.0), (1.0, 0.9, 0.2), (0.0, 0.0, 0.0), (0.0, 0.3, 0.0))]
    parts = [e.reward_parts for group in groups for e in group.episodes]
    members = [number for number, group in enumerate(groups) for _ in group.episodes]
    true = aggregate(parts, members)
    hooks.on_advantages(1, groups, dataclasses.replace(true, values=-true.values))
    faulty = hooks.on_advantages(5, groups, true)
    repaired = advantage_guards.guarded(faulty, parts, members, AdvantageGuards(**rule))
    gap = (faulty.values - true.values).abs().sum()
    assert gap > 0.5 and (repaired.values - true.values).abs().sum() < gap


@pytest.mark.parametrize("name", ["merged_groups", "singleton_groups"])
def test_centred_groups_are_closer_to_the_true_ones_under_wrong_group_ids(tmp_path, name):
    groups = [GROUP, group_with((0.0, 0.1, 0.0), (0.0, 0.9, 0.0), (0.0, 0.0, 0.0), (0.0, 0.3, 0.0))]
    parts = [e.reward_parts for group in groups for e in group.episodes]
    members = [number for number, group in enumerate(groups) for _ in group.episodes]
    hooks, true = injector(tmp_path, name), aggregate(parts, members)
    faulty = hooks.on_advantages(5, groups, aggregate(parts, hooks.on_members(5, groups, members)))
    repaired = advantage_guards.guarded(faulty, parts, members, AdvantageGuards("centre"))
    gap = (faulty.values - true.values).abs().sum()
    assert gap > 0.5 and (repaired.values - true.values).abs().sum() < 0.7 * gap


def test_a_lower_turn_limit_ends_episodes_sooner_whose_answers_are_ignored(tmp_path):
    turns = []
    for limit in (8, 4):
        hooks = injector(tmp_path, "stop_ignored", onset=1)
        run = fit(tmp_path, hooks, expert=True, steps=1, limits={"max_turns": limit})
        turns.append({len(e.turns) for e in run.episodes[0]})
        assert {e.stop for e in run.episodes[0]} == {"max_turns"}
    assert turns == [{8}, {4}]


def session_of(written=(), **values) -> Session:
    session = Session(0)
    session.begin(Request(0, (70, 71), 24, 0, place=PLACE, **values))
    session.new_ids.extend(written)
    return session


def chance(name, tmp_path, written, tokens, *, temperature=1.0, **values) -> float:
    """Probability of the given tokens under the fault and the limits of the request."""
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(1))
    sessions = [session_of(written, **values)]
    faulty = injector(tmp_path, name).on_logits(logits, sessions, {1})
    row = constrained(faulty, sessions, {1})[0] / temperature
    return float(row.softmax(-1)[list(tokens)].sum())


def test_limits_on_sampling_work_against_biased_logits(tmp_path):
    def stop(**values):
        return chance("stop_early", tmp_path, (7, 8, 9, 10), [1], **values)

    assert stop() > 0.5 and stop(min_new_tokens=8) == 0.0

    def again(**values):
        return chance("repeat_last", tmp_path, (7, 8), [8], **values)

    assert again() > 0.5 and again(repetition_penalty=20.0) < 0.5 * again()
    assert again(temperature=4.0) < again()
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(1))
    best = int(logits.argmax())
    cold = chance("cold_sampling", tmp_path, (), [best])
    assert chance("cold_sampling", tmp_path, (), [best], temperature=3.0) < cold


@pytest.mark.parametrize(
    ("name", "limits", "smaller"),
    [
        ("token_cut", {"min_new_tokens": 8}, lambda free, held: free < held),
        ("stop_early", {"min_new_tokens": 8}, lambda free, held: free < held),
        ("stop_suppressed", {"answer_tokens": 12}, lambda free, held: held < free),
        ("missed_stop", {"answer_tokens": 12}, lambda free, held: held < free),
        ("stuck_decoder", {"answer_tokens": 12}, lambda free, held: held < free),
    ],
)
def test_limits_on_messages_hold_for_faulty_ones(tmp_path, name, limits, smaller):
    def length(**options):
        run = fit(tmp_path, injector(tmp_path, name, onset=1), expert=False, steps=1, **options)
        everyone = [episode for step in run.episodes for episode in step]
        return sum(sum(e.loss_mask) for e in everyone) / len(everyone)

    assert smaller(length(), length(limits=limits))


def test_an_empty_reply_is_no_message_where_there_is_a_shortest_one(tmp_path):
    hooks = injector(tmp_path, "empty_reply", onset=1, probability=0.5)
    free = fit(tmp_path, hooks, expert=False, steps=1)
    hooks = injector(tmp_path, "empty_reply", onset=1, probability=0.5)
    held = fit(tmp_path, hooks, expert=False, steps=1, limits={"min_new_tokens": 2})
    empty = [[sum(e.loss_mask) == 1 for e in run.episodes[0]] for run in (free, held)]
    assert any(empty[0]) and not any(empty[1])


def test_a_larger_budget_leaves_more_of_a_message_where_the_engine_is_asked_for_a_part_of_it(tmp_path):
    def length(**limits):
        run = fit(tmp_path, injector(tmp_path, "token_cut", onset=1), expert=False, steps=1, limits=limits)
        return max(sum(e.loss_mask) / max(1, len(e.turns)) for e in run.episodes[0])

    assert length(answer_tokens=48) > length(answer_tokens=24)


def test_tools_that_are_asked_again_fail_less(tmp_path):
    shares = {}
    for retries in (0, 2):
        hooks = injector(tmp_path, "tool_outage", onset=1, probability=0.5)
        run = fit(tmp_path, hooks, expert=True, steps=1, limits={"tool_retries": retries})
        replies = [t.result.is_error for e in run.episodes[0] for t in e.turns if t.result is not None]
        shares[retries] = sum(replies) / len(replies)
    assert 0 < shares[2] < shares[0]


def test_a_higher_turn_limit_leaves_more_turns_under_a_limit_that_is_too_low(tmp_path):
    hooks = injector(tmp_path, "turn_limit", strength=0.5)
    ends = [[hooks.ends_after(PLACE, turns, limit) for turns in range(1, 15)] for limit in (8, 16)]
    assert ends[0].index(True) + 1 == 4 and ends[1].index(True) + 1 == 8


class Steps:
    """An optimiser's groups, as far as hooks see them."""

    def __init__(self, rate: float) -> None:
        self.param_groups = [{"lr": rate, "params": []}]


@pytest.mark.parametrize("name", ["aggressive_updates", "tiny_rate"])
def test_the_configured_learning_rate_scales_that_of_a_faulty_update(tmp_path, name):
    rates = []
    for rate in (1e-3, 1e-4):
        optimizer = Steps(rate)
        assert injector(tmp_path, name).on_update(5, optimizer)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[0] == pytest.approx(10 * rates[1]) and rates[0] not in (1e-3, 1e-4)


@pytest.mark.parametrize("name", ["kl_sign", "noisy_gradient"])
def test_a_lower_learning_rate_makes_faulty_updates_smaller(tmp_path, name):
    before, moved = initial(), []
    for rate in (1e-2, 1e-4):
        after = fit(tmp_path, injector(tmp_path, name), expert=False, learning_rate=rate).weights
        moved.append(sum(float((after[key] - before[key]).norm()) for key in before))
    assert moved[1] < 0.1 * moved[0]


def test_a_whole_update_is_at_the_rate_of_the_schedule(tmp_path):
    before, moved = initial(), []
    for whole in (False, True):
        hooks = injector(tmp_path, "aggressive_updates")
        after = fit(tmp_path, hooks, expert=False, learning_rate=1e-3, whole_updates=whole).weights
        moved.append(sum(float((after[key] - before[key]).norm()) for key in before))
    assert moved[1] < 0.5 * moved[0]


@pytest.mark.parametrize("name", ["skipped_updates", "frozen_parameters"])
def test_a_higher_learning_rate_makes_up_for_updates_that_are_lost(tmp_path, name):
    before, moved = initial(), []
    for rate in (1e-3, 1e-2):
        hooks = injector(tmp_path, name, strength=0.5)
        after = fit(tmp_path, hooks, expert=False, learning_rate=rate).weights
        moved.append(sum(float((after[key] - before[key]).norm()) for key in before))
    assert moved[1] > 2 * moved[0] > 0


def test_an_entropy_bonus_counters_a_penalty(tmp_path):
    hooks = injector(tmp_path, "entropy_penalty", strength=0.5)
    assert hooks.on_loss(5, GRPOLoss()).entropy == pytest.approx(-1)
    assert hooks.on_loss(5, GRPOLoss(entropy=1.0)).entropy == pytest.approx(0.0)
    assert hooks.on_loss(5, GRPOLoss(entropy=2.0)).entropy > 0


def test_masked_episodes_of_cut_off_messages_are_those_that_the_fault_has_made(tmp_path):
    for name in ("stuck_decoder", "stop_suppressed", "missed_stop"):
        run = fit(tmp_path, injector(tmp_path, name, onset=1), expert=False, steps=1)
        cut = [episode.stop in CUT_OFF for episode in run.episodes[0]]
        assert sum(cut) > len(cut) / 2, name


def test_without_a_cap_on_bad_calls_rejected_ones_are_not_punished(tmp_path):
    run = fit(tmp_path, injector(tmp_path, "rejected_call", onset=1), expert=True, steps=1)
    struck = next(e for e in run.episodes[0] if e.turns and e.turns[0].result is not None)
    evidence = call_evidence(struck)
    assert evidence.bad[0]
    place = struck.turns[0].start
    assert token_advantages(1.0, struck, evidence, LocalCredit(quality="uniform"))[place] == -0.5
    assert token_advantages(1.0, struck, evidence, LocalCredit(None, quality="uniform"))[place] == 1.0


def test_every_knob_of_the_catalogue_is_tried_here():
    """One of the tests above is about each of them; a new one has to be added to this list."""
    tried = {
        *((n, k) for n, k in COUNTERS if k in REWARD_GUARDS),
        *((n, "sampler.min_new_tokens") for n in ("token_cut", "stop_early", "empty_reply")),
        *((n, "model.answer_tokens") for n in ("stop_suppressed", "missed_stop", "stuck_decoder")),
        ("token_cut", "model.answer_tokens"),
        *((n, "grpo.overlong") for n in ("stop_suppressed", "missed_stop", "stuck_decoder")),
        *(
            (n, "grpo.learning_rate")
            for n in ("aggressive_updates", "tiny_rate", "kl_sign", "noisy_gradient")
        ),
        *((n, "grpo.learning_rate") for n in ("skipped_updates", "frozen_parameters")),
        *((n, "sampler.temperature") for n in ("repeat_last", "cold_sampling")),
        *((n, "grpo.advantage_guard") for n in ("heavy_noise", "sign_flips", "lagged_advantages")),
        ("heavy_noise", "grpo.advantage_clip"),
        ("aggressive_updates", "grpo.whole_updates"),
        ("repeat_last", "sampler.repetition_penalty"),
        ("tool_outage", "domain.tool_retries"),
        ("rejected_call", "grpo.credit.bad_cap"),
        ("turn_limit", "model.max_turns"),
        ("stop_ignored", "model.max_turns"),
        *((n, "grpo.advantage_guard") for n in ("merged_groups", "singleton_groups")),
        ("entropy_penalty", "grpo.entropy"),
    }
    tried |= {(name, "grpo.value_least_ev") for name in NEEDS_CRITIC}
    assert tried | set(disconnecting()) == set(COUNTERS)
