from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning import LightningModule

from robustops.errors import TrainingError
from robustops.learning.optimisation import adamw, rate, update
from tests.learning.support import fit, weights_of


def test_the_rate_by_hand():
    # Three warm-up steps at 1/4, 2/4, 3/4; then from 1 down to 0.1 over the eight steps that follow.
    got = [rate(step, warmup=3, total=11) for step in range(12)]
    assert got[:4] == [0.25, 0.5, 0.75, 1.0]
    assert got[3:] == pytest.approx([1 - 0.9 * k / 8 for k in range(9)])
    assert got[11] == pytest.approx(0.1)
    assert [rate(step, warmup=1, total=None) for step in range(4)] == [0.5, 1, 1, 1]
    assert rate(0, warmup=0, total=1) == 1.0


def test_a_decay_may_set_in_late_by_hand():
    # Full rate through step 5, then from 1 down to 0.1 over the five steps to 10.
    got = [rate(step, warmup=0, total=10, begin=5) for step in range(12)]
    assert got == pytest.approx([1] * 6 + [0.82, 0.64, 0.46, 0.28, 0.1, 0.1])
    assert [rate(s, warmup=4, total=9, begin=2) for s in range(9)] == [
        rate(s, warmup=4, total=9) for s in range(9)
    ]


@given(st.integers(0, 400), st.integers(0, 60), st.one_of(st.none(), st.integers(1, 300)))
def test_the_rate_rises_then_falls_and_stays_positive(step, warmup, total):
    here, there = (rate(s, warmup=warmup, total=total) for s in (step, step + 1))
    assert 0 < here <= 1
    assert here < there if step < warmup else there <= here
    if total is not None and step >= max(warmup + 1, total):
        assert here == pytest.approx(0.1)


class TwoWeights(LightningModule):
    """One trainable pair and one frozen weight; the gradient of each step is given."""

    def __init__(
        self, gradients, grad_clip=1e9, weight_decay=0.0, learning_rate=0.5, total=None, epsilon=1e-8
    ):
        super().__init__()
        self.automatic_optimization = False
        self.pair = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
        self.frozen = torch.nn.Parameter(torch.tensor([5.0]), requires_grad=False)
        self.gradients, self.grad_clip = gradients, grad_clip
        self.settings = (learning_rate, weight_decay, 1, total, epsilon)
        self.returned: list[tuple[float, float]] = []

    def configure_optimizers(self):
        return adamw(self, *self.settings)

    def training_step(self, step, batch_idx):
        given_now = self.gradients[int(step)]
        if given_now is not None:
            self.pair.grad = torch.tensor(given_now)
        self.returned.append(update(self, self.grad_clip))
        assert self.pair.grad is None


def run(tmp_path, module):
    return fit(tmp_path, module, len(module.gradients), lambda step: torch.tensor(step))


def test_a_larger_epsilon_spares_weights_with_tiny_gradients(tmp_path):
    """The first step of Adam is lr * g / (|g| + epsilon), here with half the rate as warm-up."""
    for epsilon, moved in ((1e-8, 0.25), (1e-3, 0.25 * 1e-6 / (1e-6 + 1e-3))):
        module = TwoWeights([[1.0, 1e-6]], epsilon=epsilon)
        run(tmp_path / str(epsilon), module)
        assert module.pair.tolist() == pytest.approx([0.75, 1 - moved], rel=2e-2)


def test_an_update_tells_the_norm_before_clipping_and_the_rate_it_used(tmp_path):
    module = TwoWeights([[3.0, 4.0], None, [0.0, 0.0]], grad_clip=1.0, total=3)
    trainer = run(tmp_path, module)
    assert [norm for norm, _ in module.returned] == [5.0, 0.0, 0.0]
    assert [used for _, used in module.returned] == pytest.approx([0.25, 0.5, 0.275])
    assert trainer.global_step == 3, "a step without a gradient is a step"
    assert module.frozen.item() == 5.0


def test_the_first_step_of_adamw_by_hand(tmp_path):
    # Bias-corrected, the first step of Adam is lr * sign(g); decay comes before it: w (1 - lr * decay).
    module = TwoWeights([[3.0, -4.0]], weight_decay=0.1)
    run(tmp_path, module)
    lr = 0.25
    assert module.pair.tolist() == pytest.approx([1 - lr * 0.1 - lr, 1 - lr * 0.1 + lr], abs=1e-6)


def test_the_second_step_uses_betas_of_0_9_and_0_95(tmp_path):
    module = TwoWeights([[1.0, 1.0], [2.0, 2.0]])
    run(tmp_path, module)
    mean, square = 0.9 * 0.1 * 1 + 0.1 * 2, 0.95 * 0.05 * 1 + 0.05 * 4
    second = 0.5 * (mean / (1 - 0.9**2)) / ((square / (1 - 0.95**2)) ** 0.5)
    assert module.pair.tolist() == pytest.approx([1 - 0.25 - second] * 2, abs=1e-6)


def test_the_clip_scales_what_adam_sees(tmp_path):
    # The same direction, ten times and once as long: with a clip below both, the moments are equal.
    clipped = [TwoWeights([[g, g], [0.1, -0.1]], grad_clip=0.05) for g in (10.0, 1.0)]
    free = [TwoWeights([[g, g], [0.1, -0.1]]) for g in (10.0, 1.0)]
    for module in (*clipped, *free):
        run(tmp_path, module)
    assert torch.allclose(clipped[0].pair, clipped[1].pair, atol=1e-5)
    assert not torch.allclose(free[0].pair, free[1].pair, atol=1e-3)


def test_without_a_gradient_not_even_decay_moves_a_weight(tmp_path):
    module = TwoWeights([None, None], weight_decay=0.5)
    run(tmp_path, module)
    assert module.pair.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_gradient_that_is_not_finite_stops_the_run_and_changes_nothing(tmp_path, broken):
    module = TwoWeights([[1.0, 1.0], [broken, 1.0]])
    after_first = TwoWeights([[1.0, 1.0]])
    run(tmp_path, after_first)
    with pytest.raises(TrainingError, match=r"gradient of step 2 is not finite.*resume"):
        run(tmp_path, module)
    assert torch.equal(module.pair, after_first.pair)
    assert weights_of(module).keys() == {"pair", "frozen"}


def test_update_refuses_before_the_optimiser_is_touched():
    class Untouchable:
        param_groups = [{"lr": 1.0}]

        def step(self):
            raise AssertionError("the optimiser was stepped")

    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.tensor([float("nan")])
    module = SimpleNamespace(
        optimizers=Untouchable,
        parameters=lambda: [weight],
        global_step=4,
        lr_schedulers=lambda: None,
        trainer=SimpleNamespace(strategy=None),
    )
    with pytest.raises(TrainingError, match="step 5"):
        update(module, 1.0)  # type: ignore[arg-type]
