import math

import pytest
import torch

from robustops.objectives.losses import policy_loss
from robustops.objectives.statistics import (
    TrainedTokens,
    advantage_statistics,
    importance_statistics,
    join,
    nonfinite_gradients,
    policy_statistics,
    reward_statistics,
    sampler_gap,
    total_norm,
    zero_signal_share,
)
from robustops.records import RewardParts


def tokens(new, old, advantages, ref=None, entropy=None, sampler=None):
    return TrainedTokens(
        torch.tensor(new),
        torch.tensor(old),
        torch.tensor(sampler or old),
        torch.tensor(entropy or [0.0] * len(new)),
        torch.tensor(advantages),
        None if ref is None else torch.tensor(ref),
    )


def test_by_hand():
    """Ratios 1.5, 0.5, 1, 1.5: the upper clip binds on the first, the lower one on the second."""
    old = [-2.0] * 4
    new = [-2.0 + math.log(r) for r in (1.5, 0.5, 1.0, 1.5)]
    step = tokens(new, old, [1.0, -1.0, 1.0, -1.0], ref=old, entropy=[0.1, 0.2, 0.3, 0.6])
    numbers = policy_statistics(step, clip_low=0.2, clip_high=0.2)
    logs = [math.log(r) for r in (1.5, 0.5, 1.0, 1.5)]
    assert numbers["ratio_mean"] == pytest.approx(4.5 / 4)
    assert (numbers["ratio_min"], numbers["ratio_max"]) == pytest.approx((0.5, 1.5))
    assert (numbers["clip_low"], numbers["clip_high"], numbers["clip_frac"]) == (0.25, 0.25, 0.5)
    assert numbers["kl_old"] == pytest.approx(-sum(logs) / 4)
    assert numbers["kl_old_k3"] == pytest.approx(sum(math.exp(x) - x - 1 for x in logs) / 4)
    assert numbers["kl_ref_k1"] == pytest.approx(sum(logs) / 4)
    assert numbers["kl_ref_k3"] == pytest.approx(sum(math.exp(-x) + x - 1 for x in logs) / 4)
    assert numbers["kl_ref_max"] == pytest.approx(max(math.exp(-x) + x - 1 for x in logs))
    assert numbers["entropy"] == pytest.approx(0.3)
    assert numbers["log_prob_mean"] == pytest.approx(sum(new) / 4)


def test_clip_shares_agree_with_the_loss():
    torch.manual_seed(0)
    new, old = -torch.rand(6, 9) * 2, -torch.rand(6, 9) * 2
    advantages, mask = torch.randn(6, 9), torch.rand(6, 9) < 0.5
    terms = policy_loss(new, old, advantages, mask, clip_low=0.2, clip_high=0.28)
    step = TrainedTokens.select(
        mask,
        log_probs=new,
        old_log_probs=old,
        sampler_log_probs=old,
        entropy=new,
        advantages=advantages,
        ref_log_probs=old,
    )
    numbers = policy_statistics(step, clip_low=0.2, clip_high=0.28)
    count = int(mask.sum())
    assert numbers["clip_low"] == pytest.approx(int(terms.clip_low.sum()) / count)
    assert numbers["clip_high"] == pytest.approx(int(terms.clip_high.sum()) / count)
    assert numbers["ratio_mean"] == pytest.approx(float(terms.ratio.sum()) / count, rel=1e-5)


def test_unchanged_policy_has_ratio_one_and_no_kl():
    numbers = policy_statistics(
        tokens([-1.0, -2.0], [-1.0, -2.0], [1.0, -1.0], ref=[-1.0, -2.0]), clip_low=0.2, clip_high=0.2
    )
    assert numbers["ratio_mean"] == numbers["ratio_max"] == 1.0
    for name in ("clip_frac", "kl_old", "kl_old_k3", "kl_ref_k1", "kl_ref_k3"):
        assert numbers[name] == 0.0


def test_what_was_not_observed_is_nan_and_nan_is_kept():
    without = policy_statistics(tokens([-1.0], [-1.0], [1.0]), clip_low=0.2, clip_high=0.2)
    assert math.isnan(without["kl_ref_k3"]) and without["kl_old"] == 0.0
    nothing = policy_statistics(tokens([], [], []), clip_low=0.2, clip_high=0.2)
    assert all(math.isnan(value) for value in nothing.values())
    broken = policy_statistics(
        tokens([math.nan, -1.0], [-1.0, -1.0], [1.0, 1.0]), clip_low=0.2, clip_high=0.2
    )
    assert math.isnan(broken["ratio_max"]) and math.isnan(broken["kl_old"])


def test_an_extreme_ratio_is_reported_as_it_is():
    numbers = policy_statistics(tokens([100.0], [0.0], [1.0], ref=[0.0]), clip_low=0.2, clip_high=0.2)
    assert numbers["ratio_max"] == pytest.approx(math.exp(100.0))


def test_numbers_do_not_depend_on_the_micro_batches():
    torch.manual_seed(1)
    names = ("log_probs", "old_log_probs", "sampler_log_probs", "entropy", "ref_log_probs")
    values = {name: -torch.rand(8, 7) for name in names}
    values["advantages"] = torch.randn(8, 7)
    mask = torch.rand(8, 7) < 0.5
    whole = TrainedTokens.select(mask, **values)
    parts = [
        TrainedTokens.select(mask[rows], **{n: v[rows] for n, v in values.items()})
        for rows in ([6, 1], [0], [7, 2, 3], [5, 4])
    ]
    expected = policy_statistics(whole, clip_low=0.2, clip_high=0.2)
    assert policy_statistics(join(parts), clip_low=0.2, clip_high=0.2) == pytest.approx(expected, abs=1e-12)


def test_join_drops_a_reference_that_is_not_whole():
    joined = join([tokens([-1.0], [-1.0], [1.0], ref=[-1.0]), tokens([-2.0], [-1.0], [1.0])])
    assert joined.ref_log_probs is None and joined.log_probs.tolist() == [-1.0, -2.0]


def test_sampler_gap():
    gap = sampler_gap(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.75]))
    assert gap == {"samp_logp_absdiff_mean": 0.375, "samp_logp_absdiff_max": 0.5}
    torn = sampler_gap(torch.tensor([-1.0, math.nan]), torch.tensor([-1.0, -1.0]))
    assert all(math.isnan(value) for value in torn.values())
    assert all(math.isnan(value) for value in sampler_gap(torch.zeros(0), torch.zeros(0)).values())


def test_advantage_statistics():
    numbers = advantage_statistics(torch.tensor([1.0, -3.0, 2.0]))
    assert numbers["adv_mean"] == 0.0
    assert numbers["adv_std"] == pytest.approx(math.sqrt(7.0))
    assert (numbers["adv_min"], numbers["adv_max"], numbers["adv_absmax"]) == (-3.0, 2.0, 3.0)


def test_reward_statistics():
    parts = [RewardParts(1, 1, 1), RewardParts(0, 0, 0), RewardParts(0, 0.5, 0), RewardParts(0, 0.5, 0)]
    numbers = reward_statistics(parts, [0, 0, 1, 1])
    assert numbers["reward_mean"] == pytest.approx((1.4 + 0.15 + 0.15) / 4)
    assert (numbers["reward_min"], numbers["reward_max"]) == (0.0, pytest.approx(1.4))
    assert (numbers["success_mean"], numbers["progress_mean"], numbers["quality_mean"]) == (0.25, 0.5, 0.25)
    assert numbers["zero_signal_frac"] == 0.5
    assert all(math.isnan(value) for value in reward_statistics([], []).values())


def test_the_zero_signal_share_counts_groups_not_episodes():
    silent, loud = [RewardParts(0, 0, 0)], [RewardParts(1, 0, 0), RewardParts(0, 0, 0)]
    assert zero_signal_share(silent * 6 + loud, [5] * 6 + [2, 2]) == 0.5


def test_gradient_norm_and_broken_gradients():
    first, second = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    without = torch.nn.Parameter(torch.zeros(2))
    assert total_norm([first]) == 0.0
    first.grad, second.grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    assert total_norm([first, second, without]) == pytest.approx(5.0)
    assert nonfinite_gradients([first, second, without]) == 0
    second.grad = torch.tensor([math.nan, math.inf])
    assert math.isnan(total_norm([first, second]))
    assert nonfinite_gradients([first, second]) == 2


def test_importance_statistics_by_hand():
    """The trainer finds 2, 1/2, 1 and 8 times the sampler's probability; the cap is 4."""
    old = [-2.0 + math.log(r) for r in (2.0, 0.5, 1.0, 8.0)]
    numbers = importance_statistics(tokens([-1.0] * 4, old, [0.0] * 4, sampler=[-2.0] * 4), 4.0)
    assert numbers == pytest.approx(
        {
            "importance_mean": 11.5 / 4,
            "importance_min": 0.5,
            "importance_max": 8.0,
            "importance_capped_frac": 0.25,
        },
        rel=1e-5,
    )
