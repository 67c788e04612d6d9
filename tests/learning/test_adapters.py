from __future__ import annotations

import torch

from robustops.learning.adapters import add_lora
from robustops.settings import LoRASettings
from tests.learning.support import same_weights, weights_of
from tests.tiny_model import tiny_model


def test_adapters_start_alike_in_every_process_and_leave_the_random_numbers_alone():
    models = [tiny_model(50, seed=1) for _ in range(2)]
    for seed, model in enumerate(models):
        torch.manual_seed(seed)
        add_lora(model, LoRASettings(rank=2))
        assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(seed)))
    assert same_weights(*map(weights_of, models))
    assert any(".lora_A." in name and value.abs().sum() > 0 for name, value in weights_of(models[0]).items())
