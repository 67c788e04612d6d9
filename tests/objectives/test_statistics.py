import math

import pytest
import torch

from robustops.errors import TrainingError
from robustops.objectives.losses import policy_loss
from robustops.objectives.statistics import (
    TrainedTokens,
    capped_share,
    importance_statistics,
    join,
    nonfinite_gradients,
    nonfinite_values,
    policy_statistics,
    quantile,
    sampler_gap,
    surrogate,
    total_norm,
)


def tokens(new, old, advantages, ref=None, entropy=None, sampler=None, weights=None):
    return TrainedTokens(
        torch.tensor(new),
        torch.tensor(old),
        torch.tensor(sampler or old),
        torch.tensor(entropy or [0.0] * len(new)),
        torch.tensor(advantages),
        None if ref is None else torch.tensor(ref),
        None if weights is None else torch.tensor(weights),
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
    assert numbers["ratio_p99"] == numbers["ratio_max"], "of four values"
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


def test_quantile_is_a_value_that_the_share_does_not_exceed():
    values = torch.arange(1.0, 201.0)[torch.randperm(200, generator=torch.Generator().manual_seed(0))]
    assert quantile(values, 0.99) == 198.0 and quantile(values, 1.0) == 200.0 and quantile(values, 0.0) == 1.0
    assert quantile(torch.tensor([7.0]), 0.99) == 7.0
    assert math.isnan(quantile(torch.zeros(0), 0.5)) and math.isnan(
        quantile(torch.tensor([1.0, math.nan]), 0.5)
    )


def test_the_surrogate_is_the_weighted_loss_without_its_kl():
    """Ratios 2, 1/2, 1 with advantages 1, -1, 3: clipped to 1.2 and 0.8 in the first two."""
    old, new = [-2.0] * 3, [-2.0 + math.log(r) for r in (2.0, 0.5, 1.0)]
    clips = {"clip_low": 0.2, "clip_high": 0.2}
    step = tokens(new, old, [1.0, -1.0, 3.0], sampler=[-2.0, -2.0, -3.0], weights=[0.5, 0.25, 0.25])
    by_hand = 0.5 * -1.2 + 0.25 * 0.8 + 0.25 * -3.0
    assert surrogate(step, **clips, importance_cap=None) == pytest.approx(by_hand)
    capped = 0.5 * -1.2 + 0.25 * 0.8 + 0.25 * -3.0 * 1.5
    assert surrogate(step, **clips, importance_cap=1.5) == pytest.approx(capped), "exp(1) is cut to 1.5"
    assert math.isnan(surrogate(tokens([], [], [], weights=[]), **clips, importance_cap=None))
    with pytest.raises(TrainingError, match="no loss weights"):
        surrogate(tokens(new, old, [1.0] * 3), **clips, importance_cap=None)


def test_values_that_are_not_finite_are_counted_wherever_they_are():
    assert nonfinite_values(tokens([-1.0], [-1.0], [1.0])) == 0
    nan, inf = math.nan, math.inf
    bad = tokens(
        [nan, -1.0], [-1.0, -inf], [inf, nan], ref=[nan, -1.0], entropy=[0.1, nan], sampler=[-1.0, -1.0]
    )
    assert nonfinite_values(bad) == 6


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
    trainer, sampler = torch.tensor(old), torch.full((4,), -2.0)
    numbers = importance_statistics(trainer, sampler)
    squares = 4 + 0.25 + 1 + 64
    assert numbers == pytest.approx(
        {
            "is_ratio_mean": 11.5 / 4,
            "is_ratio_min": 0.5,
            "is_ratio_max": 8.0,
            "is_ratio_ess": 11.5**2 / (4 * squares),
        },
        rel=1e-5,
    )
    assert capped_share(trainer, sampler, 4.0) == 0.25


def test_equal_policies_have_all_their_samples_and_one_huge_weight_leaves_one():
    same = torch.tensor([-1.0, -2.0, -3.0])
    assert importance_statistics(same, same)["is_ratio_ess"] == 1.0
    huge = importance_statistics(torch.tensor([0.0, -500.0, -500.0]), torch.tensor([-600.0, -500.0, -500.0]))
    assert huge["is_ratio_ess"] == pytest.approx(1 / 3)
    assert all(math.isnan(v) for v in importance_statistics(torch.zeros(0), torch.zeros(0)).values())
