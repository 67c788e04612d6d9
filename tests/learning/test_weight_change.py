import math

import pytest
import torch

from robustops.learning import weight_change
from robustops.learning.adapters import add_lora
from robustops.learning.weight_change import Weights, holds_weights
from robustops.settings import LoRASettings
from tests.tiny_model import shake, tiny_model


def moved(module, by):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(by)


def test_by_hand():
    module = torch.nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[3.0, 0.0]]))
        module.bias.copy_(torch.tensor([4.0]))
    before = Weights(module)
    assert before.change() == 0.0, "nothing has moved"
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[3.0, 0.3]]))
        module.bias.copy_(torch.tensor([4.4]))
    assert before.change() == pytest.approx(0.5 / 5)


def test_it_is_that_of_the_flat_vector():
    model = tiny_model(seed=1, width=32)
    old = torch.cat([p.detach().flatten().double() for p in model.parameters()])
    before = Weights(model)
    shake(model, seed=5)
    new = torch.cat([p.detach().flatten().double() for p in model.parameters()])
    assert before.change() == pytest.approx(float((new - old).norm() / old.norm()), rel=1e-5)


def test_a_change_that_a_short_float_rounds_away_is_none():
    module = torch.nn.Linear(4, 4).to(torch.bfloat16)
    with torch.no_grad():
        module.weight.fill_(1.0)
        module.bias.fill_(1.0)
    before = Weights(module)
    moved(module, 1e-4)
    assert before.change() == 0.0
    moved(module, 0.25)
    assert before.change() == pytest.approx(0.25)


def test_only_what_is_trained_counts():
    model = tiny_model(seed=1, width=32)
    add_lora(model, LoRASettings(rank=2, alpha=4.0))
    before = Weights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.requires_grad:
                parameter.add_(1.0)
    assert before.change() == 0.0


def test_without_a_copy_nothing_is_observed(monkeypatch):
    spread_out = torch.nn.Linear(2, 1)
    spread_out.weight.ds_id = 0
    assert not holds_weights(spread_out) and math.isnan(Weights(spread_out).change())
    large = torch.nn.Linear(2, 1)
    monkeypatch.setattr(weight_change, "MAX_BYTES", 11)
    assert not holds_weights(large) and math.isnan(Weights(large).change()), "three floats are twelve bytes"
    monkeypatch.setattr(weight_change, "MAX_BYTES", 12)
    assert holds_weights(large) and Weights(large).change() == 0.0


def test_weights_that_were_all_zero_have_no_relative_change():
    module = torch.nn.Linear(1, 1)
    with torch.no_grad():
        module.weight.zero_()
        module.bias.zero_()
    before = Weights(module)
    moved(module, 1.0)
    assert math.isnan(before.change())
