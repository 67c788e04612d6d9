import math

import torch

from robustops.objectives.masking import keep, masked_max, masked_mean, masked_sum

MASK = torch.tensor([[True, False, True], [False, False, False]])
VALUES = torch.tensor([[1.0, math.inf, 3.0], [math.nan, 5.0, -math.inf]])


def test_masked_values_count_for_nothing_even_when_not_finite():
    assert masked_sum(VALUES, MASK) == 4.0
    assert masked_mean(VALUES, MASK) == 2.0
    assert masked_max(VALUES, MASK) == 3.0
    assert masked_sum(VALUES, MASK, dim=1).tolist() == [4.0, 0.0]


def test_empty_rows_take_the_empty_value():
    assert masked_mean(VALUES, MASK, dim=1).tolist() == [2.0, 0.0]
    assert masked_mean(VALUES, MASK, dim=1, empty=math.nan)[1].isnan()
    assert masked_mean(VALUES, torch.zeros_like(MASK)) == 0.0
    assert masked_max(VALUES, torch.zeros_like(MASK)).isnan()


def test_no_gradient_through_the_masked():
    values = torch.tensor([[2.0, 800.0]], requires_grad=True)
    keep(values, torch.tensor([[True, False]])).exp().sum().backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad, torch.tensor([[math.exp(2.0), 0.0]]))


def test_a_nan_under_the_mask_is_not_hidden():
    values = torch.tensor([1.0, math.nan])
    assert masked_max(values, torch.tensor([True, True])).isnan()
    assert masked_mean(values, torch.tensor([True, True])).isnan()
