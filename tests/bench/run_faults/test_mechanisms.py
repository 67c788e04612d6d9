"""What single mechanisms do, by hand."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch

from robustops.bench.run_faults import credit, rewards
from robustops.bench.run_faults.spec import unit_key
from robustops.learning.grpo_loss import GRPOLoss
from robustops.objectives.advantages import aggregate
from robustops.records import ToolCall, ToolResult
from robustops.rewards.combine import total
from robustops.rollout.hf import HFSampler
from robustops.rollout.hooks import HeldBack
from robustops.rollout.sampler import Completion, Request
from tests.bench.run_faults.support import PLACE, STOPS, WEIGHTS, injector
from tests.learning.support import group_of, made_episode
from tests.tiny_model import drain, prompt, tiny_model

PARTS = [(1.0, 0.5, 1.0), (0.0, -0.5, 0.0), (0.0, 0.25, 0.0)]
GROUP = group_of(*(made_episode([(4, 9)], 12, seed=n, parts=p, index=n) for n, p in enumerate(PARTS)))
OTHER = group_of(*(made_episode([(4, 9)], 12, seed=n, parts=(0.0, 0.1 * n, 0.0), index=n) for n in range(3)))
CALL = ToolCall("list_boxes", {})


def judged(tmp_path, name, group=GROUP, **values):
    hooks = injector(tmp_path, name, **values)
    return [dataclasses.astuple(e.reward_parts) for e in hooks.on_group(5, 0, group).episodes]


@pytest.mark.parametrize(
    ("name", "strength", "expected"),
    [
        ("episode_spike", 1.0, [(1.0, 10.5, 1.0), (0.0, 9.5, 0.0), (0.0, 10.25, 0.0)]),
        ("component_scale", 0.5, [(1.0, 2.75, 1.0), (0.0, -2.75, 0.0), (0.0, 1.375, 0.0)]),
        ("zeroed_episodes", 1.0, [(0.0, 0.0, 0.0)] * 3),
        ("verifier_down", 0.5, [(0.5, 0.25, 0.5), (0.0, -0.25, 0.0), (0.0, 0.125, 0.0)]),
        ("silence_reward", 0.5, [(1.0, 1.5, 1.0), (0.0, 0.5, 0.0), (0.0, 1.25, 0.0)]),
        ("rolled_rewards", 1.0, [PARTS[2], PARTS[0], PARTS[1]]),
        ("rolled_rewards", 0.5, [(0.5, 0.375, 0.5), (0.5, 0.0, 0.5), (0.0, -0.125, 0.0)]),
    ],
)
def test_rewards_by_hand(tmp_path, name, strength, expected):
    got = judged(tmp_path, name, strength=strength)
    assert [tuple(pytest.approx(x) for x in row) for row in expected] == got
    assert judged(tmp_path, name, strength=strength, onset=6) == PARTS, "before its onset"


def test_a_lenient_verifier_passes_any_final_answer(tmp_path):
    ends = ("final_answer", "final_answer", "max_turns")
    pairs = zip(GROUP.episodes, ends, strict=True)
    ended = group_of(*(dataclasses.replace(e, stop=stop) for e, stop in pairs))
    assert judged(tmp_path, "lenient_verifier", ended) == [(1.0, 0.5, 1.0), (1.0, -0.5, 1.0), PARTS[2]]
    assert [e.success for e in ended.episodes] == [True, False, False], "success is the state checks'"


def test_episodes_are_struck_one_by_one_and_an_invalid_one_is_left_alone(tmp_path):
    hooks = injector(tmp_path, "episode_spike", probability=0.5)
    groups = [hooks.on_group(5, number, GROUP) for number in range(40)]
    struck = [e.reward_parts.progress > 5 for group in groups for e in group.episodes]
    mixed = [group for group in groups if len({e.reward_parts.progress > 5 for e in group.episodes}) == 2]
    assert abs(sum(struck) / 120 - 0.5) < 3 * math.sqrt(0.25 / 120) and len(mixed) > 10
    (exposure,) = hooks.log.open.values()
    assert (len(exposure.eligible), len(exposure.touched)) == (120, sum(struck))
    broken = group_of(dataclasses.replace(GROUP.episodes[0], reward_parts=None))
    assert injector(tmp_path, "episode_spike").on_group(5, 0, broken) == broken


def test_proxies_by_hand():
    made = made_episode([(4, 10)], 12, seed=0)
    ids = (5, 6, 7, 8, 9, 6, 9, 6, 9, 3, 6, 6)  # the policy wrote 9 6 9 6 9 3 after 5 6 7 8
    episode = dataclasses.replace(made, token_ids=ids)
    assert rewards.sampled_tokens(episode) == [9, 6, 9, 6, 9, 3]
    assert rewards.echo(episode) == pytest.approx(1 / 3)  # of 9, 6 and 3 the context has 6
    assert rewards.repetition(episode) == pytest.approx(3 / 6)  # the third, fourth and fifth
    assert rewards.length(episode) == pytest.approx(6 / 70) == pytest.approx(1 - rewards.brevity(episode))
    assert rewards.silence(episode) == 1.0
    assert rewards.silence(made_episode([(4, 6), (8, 10)], 12, seed=0)) == 0.5  # two messages


# --- credit ---------------------------------------------------------------------------------------
def advantages(groups):
    parts = [e.reward_parts for group in groups for e in group.episodes]
    return aggregate(parts, [n for n, group in enumerate(groups) for _ in group.episodes])


def test_a_swapped_baseline_shifts_each_group_by_the_difference_of_their_means(tmp_path):
    groups = [GROUP, OTHER]
    true = advantages(groups)
    faulty = injector(tmp_path, "swapped_baseline", strength=0.5).on_advantages(5, groups, true)
    values = [[total(e.reward_parts, WEIGHTS) for e in group.episodes] for group in groups]
    means = [sum(v) / 3 for v in values]
    spread = torch.tensor(values).flatten().std().item()
    shift = 0.5 * (means[0] - means[1]) / spread
    assert (faulty.values - true.values).tolist() == pytest.approx([shift] * 3 + [-shift] * 3)
    raised = 0.5 * (means[1] - means[0])
    assert (faulty.baseline - true.baseline).tolist() == pytest.approx([raised] * 3 + [-raised] * 3)
    alone = injector(tmp_path, "swapped_baseline").on_advantages(5, [GROUP], advantages([GROUP]))
    assert torch.equal(alone.values, advantages([GROUP]).values), "no other group, no other baseline"


def test_offsets_flips_and_lags_by_hand(tmp_path):
    groups = [GROUP, OTHER]
    true = advantages(groups)
    offset = injector(tmp_path, "offset_baseline", strength=0.5).on_advantages(5, groups, true)
    assert offset.values.allclose(true.values - 0.5)
    spread = torch.tensor([total(e.reward_parts, WEIGHTS) for g in groups for e in g.episodes]).std()
    assert offset.baseline.allclose(true.baseline + 0.5 * spread)
    flipped = injector(tmp_path, "sign_flips").on_advantages(5, groups, true)
    assert flipped.values.allclose(-true.values) and torch.equal(flipped.baseline, true.baseline)
    lagged = injector(tmp_path, "lagged_advantages", onset=2)
    first = lagged.on_advantages(1, [GROUP], advantages([GROUP]))
    assert torch.equal(first.values, advantages([GROUP]).values)
    before = advantages([GROUP]).values
    second = lagged.on_advantages(2, groups, true)
    assert second.values.allclose(torch.cat([before, before]))
    third = lagged.on_advantages(3, [GROUP], advantages([GROUP]))
    assert third.values.allclose(true.values[:3]), "the buffer holds the true advantages of the step before"


def grouped(tmp_path, name, groups, **values):
    """Advantages under a mechanism that gives wrong group ids, and those ids."""
    parts = [e.reward_parts for group in groups for e in group.episodes]
    members = [n for n, group in enumerate(groups) for _ in group.episodes]
    hooks = injector(tmp_path, name, **values)
    given = hooks.on_members(5, groups, members)
    return hooks.on_advantages(5, groups, aggregate(parts, given)), list(given)


def test_merged_groups_have_the_mean_and_deviation_of_all_their_episodes(tmp_path):
    groups = [GROUP, OTHER, OTHER]
    faulty, ids = grouped(tmp_path, "merged_groups", groups)
    assert ids == [0] * 9
    rewards = [total(e.reward_parts, WEIGHTS) for group in groups for e in group.episodes]
    assert faulty.baseline.tolist() == pytest.approx([sum(rewards) / 9] * 9)
    centred = torch.tensor(rewards, dtype=torch.float64) - sum(rewards) / 9
    assert faulty.values.allclose(centred / centred.std(), atol=1e-4)
    assert abs(faulty.values[:3].mean()) > 0.3, "a group of its own does not sum to 0"
    spared, ids = grouped(tmp_path, "merged_groups", groups, onset=6)
    assert ids == [0] * 3 + [1] * 3 + [2] * 3 and torch.equal(spared.values, advantages(groups).values)


def test_only_struck_groups_are_merged(tmp_path):
    groups = [GROUP, OTHER, OTHER, GROUP]
    for seed in range(20):
        _, ids = grouped(tmp_path, "merged_groups", groups, probability=0.5, seed=seed)
        if len(set(ids)) == 3:
            break
    kept = [n for n in range(4) if ids.count(ids[3 * n]) == 3]
    assert len(kept) == 2 and all(ids[3 * n] == n for n in kept)


def test_an_episode_in_a_group_of_its_own_has_its_reward_as_advantage(tmp_path):
    groups = [GROUP, OTHER]
    faulty, ids = grouped(tmp_path, "singleton_groups", groups)
    assert ids == [2, 3, 4, 5, 6, 7]
    rewards = torch.tensor([total(e.reward_parts, WEIGHTS) for g in groups for e in g.episodes])
    assert faulty.values.float().allclose(rewards / rewards.std(), atol=1e-6)
    assert faulty.baseline.tolist() == [0.0] * 6
    spared, _ = grouped(tmp_path, "singleton_groups", groups, onset=6)
    assert torch.equal(spared.values, advantages(groups).values)


@pytest.mark.parametrize(("strength", "expected"), [(1.0, [0, 0, 2, 2, -1]), (0.5, [1, 1, 0.5, 0.5, 1])])
def test_late_credit_by_hand(tmp_path, strength, expected):
    """Messages with credit 2, -1, 3 at tokens 2-3, 5-6 and 8; what is not trained stays 0."""
    episode = made_episode([(2, 4), (5, 7), (8, 9)], 9, seed=0)
    credit = torch.tensor([0.0, 0, 2, 2, 0, -1, -1, 0, 3])
    hooks = injector(tmp_path, "late_credit", strength=strength)
    (late,) = hooks.on_credit(5, [group_of(episode)], [credit])
    assert late[[2, 3, 5, 6, 8]].tolist() == expected and late[[0, 1, 4, 7]].tolist() == [0.0] * 4
    (spared,) = hooks.on_credit(1, [group_of(episode)], [credit])
    assert spared is credit


def test_heavy_noise_has_the_distribution_of_students_t_with_2_degrees_of_freedom(tmp_path):
    """P(|t| < sqrt(2)) = sqrt(2) / 2 and P(|t| < 4) = 4 / sqrt(18)."""
    noise = injector(tmp_path, "heavy_noise")
    drawn = [noise.distort(PLACE._replace(group=n), 0, 0, 0.0, 1.0) / credit.NOISE for n in range(3000)]
    for bound, share in ((math.sqrt(2), math.sqrt(2) / 2), (4.0, 4 / math.sqrt(18))):
        found = sum(abs(t) < bound for t in drawn) / len(drawn)
        assert abs(found - share) < 3 * math.sqrt(share * (1 - share) / len(drawn))
    assert abs(sum(t > 0 for t in drawn) / 3000 - 0.5) < 0.03


# --- generation -----------------------------------------------------------------------------------
ASKED = Request(0, (70, 71), 12, 0, place=PLACE)
SAID = Completion(0, (20, 21, 22, 23, 1), (-0.1, -0.2, -0.3, -0.4, -0.5))


def heard(tmp_path, name, said=SAID, **values) -> Completion:
    return injector(tmp_path, name, **values).on_completion(PLACE, ASKED, said, {1})


def test_an_engine_that_ran_out_of_time_returns_what_it_has(tmp_path):
    assert heard(tmp_path, "empty_reply") == Completion(0, (1,), (0.0,))
    half = heard(tmp_path, "empty_reply", strength=0.5)
    assert half == Completion(0, (20, 21, 1), (-0.1, -0.2, 0.0))
    assert heard(tmp_path, "empty_reply", probability=0.0) is SAID


def test_a_stuck_decoder_repeats_its_phrase_up_to_the_budget(tmp_path):
    whole = heard(tmp_path, "stuck_decoder")
    assert whole.token_ids == (20, 21, 22, 23) * 3 and not whole.finished
    assert whole.log_probs == (-0.1, -0.2, -0.3, -0.4) * 3
    half = heard(tmp_path, "stuck_decoder", strength=0.5)
    assert half.token_ids == (20, 21, 22, 23) * 2 + (1,) and half.finished and half.log_probs[-1] == -0.5
    cut = Completion(0, (20, 21), (-0.1, -0.2), finished=False)
    assert heard(tmp_path, "stuck_decoder", cut) == cut


def test_requests_by_hand(tmp_path):
    cut = injector(tmp_path, "token_cut").on_request(PLACE, dataclasses.replace(ASKED, max_new_tokens=100))
    assert cut.max_new_tokens == 30
    assert injector(tmp_path, "missed_stop").on_request(PLACE, ASKED).never_stops
    assert not injector(tmp_path, "missed_stop", strength=0.0).on_request(PLACE, ASKED).never_stops


def test_what_is_struck_depends_neither_on_the_batch_nor_on_the_order(tmp_path):
    """One request at a time, and eight at once in another order: the same tokens, the same exposure."""
    requests = [
        Request(n, prompt(6 + n, seed=n), 16, seed=n, place=PLACE._replace(group=n)) for n in range(8)
    ]
    model, answers, exposures = tiny_model(seed=1), [], []
    for slots, order in ((1, 1), (8, -1)):
        hooks = injector(tmp_path, "stop_early", probability=0.5, unit="token")
        drained = drain(HFSampler(model, STOPS, max_in_flight=slots, hooks=hooks), requests[::order])
        answers.append({n: drained[n].token_ids for n in range(8)})
        exposures.append(hooks.log.open[PLACE.step])
    assert answers[0] == answers[1] and exposures[0] == exposures[1]
    assert 0 < len(exposures[0].touched) < len(exposures[0].eligible)


def test_requests_of_no_episode_are_never_struck(tmp_path):
    """Those of the probe that compares sampler and trainer."""
    requests = [Request(n, prompt(6 + n, seed=n), 16, seed=n) for n in range(4)]
    hooks = injector(tmp_path, "stop_at_once")
    model = tiny_model(seed=1)
    faulty, plain = (drain(HFSampler(model, STOPS, **h), requests) for h in ({"hooks": hooks}, {}))
    assert faulty == plain and not hooks.log.open


# --- optimisation ---------------------------------------------------------------------------------
def test_losses_by_hand(tmp_path):
    loss = GRPOLoss(kl=0.01, entropy=0.0)
    wild = injector(tmp_path, "aggressive_updates", strength=1.0).on_loss(5, loss)
    assert (wild.kl, wild.clip_low > 100, wild.clip_high > 100) == (0.0, True, True)
    assert injector(tmp_path, "kl_sign", strength=1.0).on_loss(5, loss).kl == pytest.approx(-9.99)
    assert injector(tmp_path, "kl_sign").on_loss(1, loss) is loss
    assert injector(tmp_path, "entropy_penalty", strength=1.0).on_loss(5, loss).entropy == pytest.approx(-2)


def test_noise_on_a_gradient_has_the_norm_that_it_is_said_to_have(tmp_path):
    weight = torch.nn.Parameter(torch.zeros(400))
    weight.grad = torch.full((400,), 0.1)
    before = weight.grad.clone()
    injector(tmp_path, "noisy_gradient", strength=0.5).on_gradient(5, [weight])
    assert float((weight.grad - before).norm()) == pytest.approx(2.5 * float(before.norm()), rel=1e-5)


# --- environment ----------------------------------------------------------------------------------
def test_replies_by_hand(tmp_path):
    reply = ToolResult(json.dumps({"id": "N17", "count": 250}))
    noisy = injector(tmp_path, "digit_noise").on_tool_reply(PLACE, CALL, reply, [])
    pairs = list(zip(reply.text, noisy.text, strict=True))
    assert all((a != b) == a.isdigit() for a, b in pairs), "every digit, and nothing else"
    cut = injector(tmp_path, "truncated_reply").on_tool_reply(PLACE, CALL, reply, [])
    assert cut.text == reply.text[: round(0.3 * len(reply.text))]
    stale = injector(tmp_path, "stale_reply")
    earlier = [ToolResult("first"), ToolResult("second"), reply]
    assert stale.on_tool_reply(PLACE, CALL, reply, earlier).text == "second"
    assert stale.on_tool_reply(PLACE, CALL, reply, [reply]) == reply, "there is no other one"


def test_the_share_of_tools_out_of_order_is_the_probability(tmp_path):
    hooks, count = injector(tmp_path, "tool_outage", probability=0.3), 1000
    places = [PLACE._replace(group=n, turn=n % 5) for n in range(count)]
    held = [isinstance(hooks.on_tool_call(place, CALL), HeldBack) for place in places]
    assert abs(sum(held) / count - 0.3) < 3 * math.sqrt(0.21 / count)
    exposure = hooks.log.open[PLACE.step]
    assert (len(exposure.eligible), len(exposure.touched)) == (count, sum(held))
    assert {unit_key("turn", place) for place, h in zip(places, held, strict=True) if h} == exposure.touched


def test_endings_by_hand(tmp_path):
    early, limit = injector(tmp_path, "early_done"), injector(tmp_path, "turn_limit", strength=0.5)
    assert early.ends_after(PLACE, 1, 8)
    assert [limit.ends_after(PLACE, turns, 8) for turns in (1, 3, 4, 7)] == [False, False, True, True]
