import pytest
import torch

from robustops.learning.finite import first_bad_gradient, first_nonfinite, has_finite_gradient

TRAINED = torch.tensor([[False, True, True, True, True, True]])


def test_the_first_trained_token_is_named_in_the_order_of_blame():
    good = torch.zeros(2, 3)
    bad = torch.tensor([[0.0, float("nan"), 0.0], [float("inf"), 0.0, 0.0]])
    mask = torch.tensor([[True, False, True], [True, True, True]])
    assert first_nonfinite({"a": good, "b": bad}, mask) == ("b", 1, 0, float("inf"))
    assert first_nonfinite({"b": bad, "a": good}, torch.tensor([[True, False, True], [False] * 3])) is None


@pytest.mark.parametrize("token", range(5))
def test_a_derivative_that_is_not_finite_is_found_at_its_token(token):
    weight = torch.nn.Parameter(torch.tensor(1.0))
    log_probs = (weight * torch.arange(6.0))[None]
    terms = log_probs[TRAINED].clone()
    terms[token] = terms[token] + (terms[token] - terms[token].detach()).clamp(min=0).sqrt()
    assert terms.isfinite().all() and not has_finite_gradient(terms.sum(), [weight])
    assert first_bad_gradient(terms, log_probs, TRAINED, [weight]) == token
    assert weight.grad is None, "nothing is left behind"


@pytest.mark.parametrize("token", range(5))
def test_a_model_whose_own_backward_pass_breaks_is_bisected(token):
    weights = torch.nn.Parameter(torch.ones(6))

    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(context, values):
            return values.clone()

        @staticmethod
        def backward(context, gradient):
            return torch.where(gradient[:, token + 1] != 0, gradient / 0, gradient)

    log_probs = Breaks.apply(weights[None] * 2)
    assert first_bad_gradient(log_probs[TRAINED], log_probs, TRAINED, [weights]) == token


def test_a_finite_gradient_has_no_bad_token():
    weights = torch.nn.Parameter(torch.ones(6))
    log_probs = weights[None] * 2
    assert first_bad_gradient(log_probs[TRAINED], log_probs, TRAINED, [weights]) is None
