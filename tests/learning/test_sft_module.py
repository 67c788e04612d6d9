from __future__ import annotations

import pytest
import torch

from robustops.learning.data import Demonstration, DemonstrationSchedule
from robustops.learning.sft_module import SFTModule
from tests.learning.support import Gradients, Metrics, fit, same_weights, slow_log_probs, weights_of
from tests.tiny_model import prompt, tiny_model

#: Lengths and spans of decisions: one of 1, 6 and 2 tokens, one alone, two with a gap, one at the end.
SHAPES = [
    (24, ((5, 6), (8, 14), (20, 22))),
    (9, ((4, 7),)),
    (31, ((10, 13), (25, 30))),
    (16, ((15, 16),)),
]


def demonstrations() -> list[Demonstration]:
    made = []
    for seed, (length, spans) in enumerate(SHAPES):
        mask = [any(start <= place < end for start, end in spans) for place in range(length)]
        made.append(Demonstration(prompt(length, seed), tuple(mask), spans))
    return made


def slow_loss(model, chosen: list[Demonstration]) -> torch.Tensor:
    """Mean over trajectories of the mean over decisions of the mean over tokens of the NLL."""
    per_trajectory = []
    for one in chosen:
        nll = -slow_log_probs(model, one.token_ids)
        per_decision = [nll[start - 1 : end - 1].mean() for start, end in one.decisions]
        per_trajectory.append(torch.stack(per_decision).mean())
    return torch.stack(per_trajectory).mean()


def one_step(tmp_path, chosen, budget, model=None):
    """The loss and the gradient of one step on all of these demonstrations."""
    model = model or tiny_model(seed=3, width=32)
    module = SFTModule(model, learning_rate=1e-3, total_steps=1, grad_clip=1e9)
    schedule = DemonstrationSchedule(chosen, len(chosen), budget, seed=0)
    gradients, metrics = Gradients(), Metrics()
    fit(tmp_path, module, 1, schedule.step, gradients, metrics)
    return metrics.steps[0], gradients.steps[0]


def test_loss_and_gradient_are_those_of_the_slow_reference(tmp_path):
    model = tiny_model(seed=3, width=32)
    slow = slow_loss(model, demonstrations())
    slow.backward()
    expected = {f"model.{name}": p.grad for name, p in model.named_parameters()}
    metrics, gradient = one_step(tmp_path, demonstrations(), budget=64)
    assert metrics["train/loss"] == pytest.approx(slow.item(), abs=1e-6)
    assert gradient.keys() == expected.keys()
    assert max(float(g.abs().max()) for g in expected.values()) > 1e-2
    for name, value in gradient.items():
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=1e-5)
    squares = sum(float(g.square().sum()) for g in expected.values())
    assert metrics["grad_norm"] == pytest.approx(squares**0.5, rel=1e-4)


def test_the_micro_batch_budget_changes_neither_loss_nor_gradient(tmp_path):
    reference, wanted = one_step(tmp_path, demonstrations(), budget=10_000)
    for budget in (1, 40, 62):
        metrics, gradient = one_step(tmp_path, demonstrations(), budget)
        assert metrics["train/loss"] == pytest.approx(reference["train/loss"], abs=1e-6)
        assert metrics["entropy"] == pytest.approx(reference["entropy"], abs=1e-5)
        for name in wanted:
            torch.testing.assert_close(gradient[name], wanted[name], atol=1e-6, rtol=1e-5)


def test_long_decisions_and_long_trajectories_weigh_no_more(tmp_path):
    # A trajectory with one decision of one token next to one of 40 tokens: each is half of the loss.
    short = Demonstration(prompt(6, 1), (False,) * 5 + (True,), ((5, 6),))
    long = Demonstration(prompt(48, 2), (False,) * 8 + (True,) * 40, ((8, 48),))
    model = tiny_model(seed=3, width=32)
    with torch.no_grad():
        halves = [float(slow_loss(model, [one])) for one in (short, long)]
    metrics, _ = one_step(tmp_path, [short, long], budget=200)
    assert metrics["train/loss"] == pytest.approx(sum(halves) / 2, abs=1e-6)
    assert abs(halves[0] - halves[1]) > 0.05, "the two must differ for this to say anything"


def test_masked_tokens_are_not_trained(tmp_path):
    # The same decisions with one of them invalid: as if the invalid one were an observation.
    one = demonstrations()[0]
    mask = list(one.loss_mask)
    mask[8:14] = [False] * 6
    without = Demonstration(one.token_ids, tuple(mask), (one.decisions[0], one.decisions[2]))
    model = tiny_model(seed=3, width=32)
    expected = slow_loss(model, [without])
    metrics, _ = one_step(tmp_path, [without], budget=100)
    assert metrics["train/loss"] == pytest.approx(expected.item(), abs=1e-6)
    assert metrics["train/tokens"] == 3.0 and metrics["train/trajectories"] == 1.0


def test_it_overfits_four_demonstrations(tmp_path):
    module = SFTModule(tiny_model(seed=3, width=32), learning_rate=1e-2, total_steps=40, warmup_steps=2)
    schedule = DemonstrationSchedule(demonstrations(), 4, 64, seed=0)
    metrics = Metrics()
    fit(tmp_path, module, 40, schedule.step, metrics)
    losses = [step["train/loss"] for step in metrics.steps]
    assert losses[0] > 4 and losses[-1] < 0.1 * losses[0]
    assert losses[-1] < losses[20] < losses[5] < losses[0]
    rates = [step["lr"] for step in metrics.steps]
    assert rates[:3] == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2]) and rates[-1] < rates[20] < rates[2]


def test_training_is_repeatable_and_seeded_only_by_the_schedule(tmp_path):
    runs = []
    for _ in range(2):
        module = SFTModule(tiny_model(seed=3, width=32), learning_rate=1e-2, total_steps=3)
        schedule = DemonstrationSchedule(demonstrations(), 2, 40, seed=5)
        metrics = Metrics()
        fit(tmp_path, module, 3, schedule.step, metrics)
        runs.append((weights_of(module), metrics.steps))
    assert same_weights(runs[0][0], runs[1][0]) and runs[0][1] == runs[1][1]
