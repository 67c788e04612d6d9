"""The trained half of a GRPO record, held against slow versions that start from the episodes."""

import dataclasses
import math
import statistics

import pytest
import torch

from robustops.learning.data import RolloutTicket
from robustops.learning.grpo_loss import GRPOLoss
from robustops.learning.step_telemetry import AdvantageTelemetry, Updates, update_statistics
from robustops.monitor.schema import caps, check_metrics, names, quantity
from robustops.objectives.advantages import Advantages, component
from robustops.objectives.statistics import TrainedTokens
from robustops.records import RewardParts
from robustops.rewards.combine import total
from tests.learning.grpo_cases import LOSS, groups, grpo_module, one_step, reference_model, slow_terms
from tests.learning.support import Metrics, fit, slow_log_probs, weights_of
from tests.tiny_model import tiny_model


@pytest.fixture(scope="module")
def reference():
    return reference_model()


def everyone():
    return [episode for group in groups() for episode in group.episodes]


def trained(values):
    """Row by row, what stands at the trained tokens."""
    return [
        v
        for e, row in zip(everyone(), values, strict=True)
        for v, m in zip(row, e.loss_mask, strict=True)
        if m
    ]


def own_log_probs(model):
    with torch.no_grad():
        return trained([[0.0, *slow_log_probs(model, e.token_ids).tolist()] for e in everyone()])


def test_a_step_recomputed_from_its_episodes(tmp_path, reference):
    model = tiny_model(seed=3, width=32)
    before = weights_of(model)
    new, ref = own_log_probs(model), own_log_probs(reference)
    old = trained([e.old_log_probs for e in everyone()])
    found, _, module = one_step(tmp_path, reference, groups(), model=model)
    ratios = sorted(math.exp(n - o) for n, o in zip(new, old, strict=True))
    assert found["ratio_p99"] == pytest.approx(ratios[math.ceil(0.99 * len(ratios)) - 1], rel=1e-4)
    assert found["kl_old"] == pytest.approx(
        statistics.mean(o - n for n, o in zip(new, old, strict=True)), abs=1e-5
    )
    d = [r - n for r, n in zip(ref, new, strict=True)]
    assert found["kl_ref_k1"] == pytest.approx(-statistics.mean(d), abs=1e-5)
    assert found["kl_ref_k3"] == pytest.approx(statistics.mean(math.exp(x) - x - 1 for x in d), abs=1e-4)
    assert found["samp_logp_absdiff_mean"] == pytest.approx(
        statistics.mean(abs(n - o) for n, o in zip(new, old, strict=True)), abs=1e-5
    )
    assert found["is_ratio_mean"] == pytest.approx(statistics.mean(ratios), rel=1e-4)
    assert found["is_ratio_ess"] == pytest.approx(
        sum(ratios) ** 2 / len(ratios) / sum(r * r for r in ratios), rel=1e-4
    )
    after = weights_of(module.model)
    moved = math.sqrt(sum(float((after[n] - before[n]).double().square().sum()) for n in before))
    size = math.sqrt(sum(float(before[n].double().square().sum()) for n in before))
    assert found["update_norm_rel"] == pytest.approx(moved / size, rel=1e-5) and moved > 0


def test_the_policys_part_of_the_loss_is_the_loss_without_its_kl(tmp_path, reference):
    without = dataclasses.replace(LOSS, kl=0.0)
    with torch.no_grad():
        slow = slow_terms(tiny_model(seed=3, width=32), reference, groups(), component, without)
    found, _, _ = one_step(tmp_path, reference, groups())
    assert found["policy_loss"] == pytest.approx(slow.item(), abs=1e-6)
    assert abs(found["train/loss"] - found["policy_loss"]) > 1e-3 and found["kl_coef"] == LOSS.kl
    free, _, _ = one_step(tmp_path, None, groups())
    assert free["policy_loss"] == pytest.approx(free["train/loss"], abs=1e-6) and free["kl_coef"] == 0.0


def test_advantages_and_baseline_recomputed_from_the_rewards(tmp_path, reference):
    members = [0, 0, 1, 1, 1]
    rewards = [total(e.reward_parts) for e in everyone()]
    values = component([e.reward_parts for e in everyone()], members).values.tolist()
    means = [statistics.mean(rewards[:2])] * 2 + [statistics.mean(rewards[2:])] * 3
    relative = [r - b for r, b in zip(rewards, means, strict=True)]
    found, _, _ = one_step(tmp_path, reference, groups())
    assert found["return_mean"] == pytest.approx(statistics.mean(rewards))
    assert found["baseline_bias"] == pytest.approx(0.0, abs=1e-12)
    assert found["baseline_mae"] == pytest.approx(statistics.mean(map(abs, relative)))
    assert found["adv_reward_corr"] == pytest.approx(statistics.correlation(values, relative))
    rest = [
        r - (sum(x for x, m in zip(rewards, members, strict=True) if m == g) - r) / (members.count(g) - 1)
        for r, g in zip(rewards, members, strict=True)
    ]
    assert found["ev_loo"] == pytest.approx(1 - statistics.variance(rest) / statistics.variance(rewards))
    assert found["adv_std"] == pytest.approx(statistics.stdev(values))
    assert found["adv_group_mean_absmax"] < 1e-6
    assert math.isnan(found["adv_reward_lag1_corr"]), "no step came before"


@pytest.mark.parametrize("options", [{}, {"epochs": 2, "mini_batches": 2}, {"share_prefix": False}])
def test_every_column_that_the_source_can_fill_is_there(tmp_path, reference, options):
    module, metrics = grpo_module(reference, **options), Metrics()
    fit(tmp_path, module, 2, lambda step: RolloutTicket(step, groups()), metrics)
    found, facts = metrics.steps[1], module.record.facts
    assert check_metrics(found) == [] and tuple(found)[: len(names())] == names()
    from_rollouts = {n for n in names() if math.isnan(found[n])}
    can = set(caps(facts["lacks"]))
    assert facts["lacks"] == ["value_head"] and facts["value_source"] == "group_mean"
    assert facts["policy_version"] == module.updates_per_step and facts["schema_version"] == 1
    # Without a rollout callback, nothing of what was sampled is known; all else is.
    assert {n for n in can if quantity(n).over == "sampled"} == from_rollouts & can


def test_a_source_without_a_reference_says_so(tmp_path):
    found, _, module = one_step(tmp_path, None, groups())
    assert module.record.facts["lacks"] == ["value_head", "reference"]
    assert math.isnan(found["kl_ref_k3"]) and not math.isnan(found["kl_old"])


def test_a_step_that_trains_on_nothing_says_nan_and_counts_its_updates(tmp_path, reference):
    module, metrics = grpo_module(reference, epochs=2), Metrics()
    fit(tmp_path, module, 1, lambda step: RolloutTicket(step, []), metrics)
    (found,) = metrics.steps
    assert found["skipped_updates"] == 2.0 and found["update_norm_rel"] == 0.0 and found["lr"] == 1e-3
    for name in (
        "grad_norm",
        "grad_nonfinite",
        "entropy",
        "policy_loss",
        "adv_mean",
        "return_mean",
        "nan_count",
    ):
        assert math.isnan(found[name]), name
    assert check_metrics(found) == []


def test_a_mini_batch_without_groups_is_a_skipped_update(tmp_path, reference):
    one_group = [group for group in groups() if group.condition == "clean"]
    module, metrics = grpo_module(reference, mini_batches=2), Metrics()
    fit(tmp_path, module, 1, lambda step: RolloutTicket(step, one_group), metrics)
    assert metrics.steps[0]["skipped_updates"] == 1.0 and metrics.steps[0]["grad_norm"] > 0


def token(new, old=-1.0):
    values = torch.tensor([new]), torch.tensor([old]), torch.tensor([old]), torch.tensor([0.5])
    return TrainedTokens(*values, torch.tensor([1.0]), weights=torch.tensor([1.0]))


def test_kl_old_is_that_of_the_last_epoch():
    updates = Updates()
    for new in (-1.0, -1.0, -1.5, -1.7):  # two epochs of two mini-batches
        updates.add(0.0, 1.0, 1e-3, [token(new)])
    found = update_statistics(updates, GRPOLoss(), 2, reference=False)
    assert found["kl_old"] == pytest.approx(0.6) and found["skipped_updates"] == 0.0
    assert found["ratio_mean"] == pytest.approx((2 + math.exp(-0.5) + math.exp(-0.7)) / 4), "of all updates"


def test_the_sampler_is_compared_before_the_first_update():
    updates = Updates()
    for new in (-1.25, -3.0):
        updates.add(0.0, 1.0, 1e-3, [token(new)])
    plain = update_statistics(updates, GRPOLoss(), 2, reference=False)
    assert plain["samp_logp_absdiff_max"] == 0.25 and plain["is_ratio_max"] == pytest.approx(math.exp(-0.25))
    capped = update_statistics(updates, GRPOLoss(importance_cap=2.0), 2, reference=False)
    assert capped["samp_logp_absdiff_max"] == 0.0, "the old log-probs are then the trainer's own"


def lag_of(memory, values):
    made = Advantages(torch.tensor(values), torch.zeros(len(values)), torch.zeros(len(values)))
    rewards = [RewardParts(value, 0.0, 0.0) for value in values]
    return memory.statistics(rewards, made, [0] * len(values), None)["adv_reward_lag1_corr"]


def test_the_last_buffer_is_remembered_and_goes_with_a_checkpoint():
    memory = AdvantageTelemetry()
    assert math.isnan(lag_of(memory, [1.0, -1.0, 0.5])) and memory.state == [1.0, -1.0, 0.5]
    resumed = AdvantageTelemetry()
    resumed.state = memory.state
    assert lag_of(memory, [1.0, -1.0, 0.5]) == pytest.approx(1.0) == lag_of(resumed, [1.0, -1.0, 0.5])
    assert lag_of(memory, [-2.0, 2.0]) == pytest.approx(-1.0)
    fresh = AdvantageTelemetry()
    fresh.state = None
    assert fresh.state is None
