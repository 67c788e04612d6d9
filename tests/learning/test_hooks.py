from __future__ import annotations

import dataclasses

import pytest
import torch

from robustops.errors import TrainingError
from robustops.learning.hooks import HooksCallback, TrainingHooks
from robustops.learning.optimisation import update
from robustops.learning.sync_probe import SyncProbe
from robustops.rollout.hf import HFSampler
from tests.bench.run_faults.support import fit as small_fit
from tests.learning.grpo_cases import LOSS, groups, one_step, reference_model
from tests.learning.support import fit
from tests.learning.test_optimisation import TwoWeights
from tests.tiny_model import shake, tiny_model


class Hooked(TwoWeights):
    """`TwoWeights` whose updates ask hooks."""

    def __init__(self, hooks, gradients, **options) -> None:
        super().__init__(gradients, **options)
        self.hooks = hooks
        self.places: list[float] = []

    def training_step(self, step, batch_idx):
        self.pair.grad = torch.tensor(self.gradients[int(step)])
        self.returned.append(update(self, self.grad_clip, step=int(step) + 1, hooks=self.hooks))
        self.places.append(float(self.pair[0]))


class Rates(TrainingHooks):
    """Ten times the learning rate in step 2."""

    def on_update(self, step, optimizer):
        if step == 2:
            optimizer.param_groups[0]["lr"] *= 10
        return True


class Skips(TrainingHooks):
    """No update in step 2."""

    def on_update(self, step, optimizer):
        return step != 2


class Doubles(TrainingHooks):
    """Twice the gradient, before it is clipped."""

    def on_gradient(self, step, parameters):
        for parameter in parameters:
            parameter.grad *= 2


def trace(tmp_path, hooks) -> Hooked:
    """Three steps of the same gradient; `places`: the first weight after each of them."""
    module = Hooked(hooks, [[3.0, 4.0]] * 3)
    trainer = fit(tmp_path, module, 3, lambda step: step)
    assert trainer.global_step == 3, "every step counts, whether its update was made or not"
    return module


def test_a_changed_rate_holds_for_one_update_and_is_not_told(tmp_path):
    plain, hooked = trace(tmp_path, TrainingHooks()), trace(tmp_path, Rates())
    assert plain.returned == hooked.returned
    moved, changed = (
        [a - b for a, b in zip([1.0, *run.places], run.places, strict=False)] for run in (plain, hooked)
    )
    assert changed == pytest.approx([moved[0], 10 * moved[1], moved[2]], rel=1e-4)


def test_a_skipped_update_leaves_weights_and_moments(tmp_path):
    plain, hooked = trace(tmp_path, TrainingHooks()), trace(tmp_path, Skips())
    assert hooked.places[0] == plain.places[0] == hooked.places[1] != plain.places[1]
    assert [norm for norm, _ in hooked.returned] == [norm for norm, _ in plain.returned] == [5.0] * 3
    state = hooked.trainer.optimizers[0].state[hooked.pair]
    assert int(state["step"]) == 2, "Adam has seen two gradients"


def test_the_norm_is_taken_after_the_hook(tmp_path):
    assert trace(tmp_path, Doubles()).returned[0][0] == 10.0


# --- the loss -------------------------------------------------------------------------------------
class Coefficients(TrainingHooks):
    def on_loss(self, step, loss):
        return dataclasses.replace(loss, kl=0.0) if step == 1 else loss


def test_the_loss_of_a_step_has_the_coefficients_of_the_hook(tmp_path):
    reference = reference_model()
    _, hooked, _ = one_step(tmp_path, reference, groups(), hooks=Coefficients())
    _, plain, _ = one_step(tmp_path, reference, groups(), loss=dataclasses.replace(LOSS, kl=0.0))
    _, other, _ = one_step(tmp_path, reference, groups())
    assert all(hooked[name].equal(plain[name]) for name in plain)
    assert not all(hooked[name].equal(other[name]) for name in other)


def slow_entropy(model, episodes) -> torch.Tensor:
    """Mean over trained tokens of each flow of the entropy of the distribution that they were drawn from."""
    flows: dict[str, list[torch.Tensor]] = {}
    for episode in episodes:
        row = torch.tensor([list(episode.token_ids)])
        log_probs = model(input_ids=row, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        each = -(log_probs.exp() * log_probs).sum(-1)
        own = [each[place - 1] for place, trained in enumerate(episode.loss_mask) if trained]
        flows.setdefault(episode.condition, []).extend(own)
    return torch.stack([torch.stack(terms).mean() for terms in flows.values()]).mean()


def test_the_gradient_of_the_entropy_bonus_is_that_of_a_slow_entropy(tmp_path):
    given, weight = groups(), 0.3
    bonus = dataclasses.replace(LOSS, entropy=weight)
    _, plain, _ = one_step(tmp_path, None, given, loss=dataclasses.replace(LOSS, kl=0.0))
    _, with_it, _ = one_step(tmp_path, None, given, loss=dataclasses.replace(bonus, kl=0.0))
    model = tiny_model(seed=3, width=32)
    slow_entropy(model, [e for group in given for e in group.episodes]).backward()
    for name, parameter in model.named_parameters():
        found = with_it[f"model.{name}"] - plain[f"model.{name}"]
        assert found.allclose(-weight * parameter.grad, atol=2e-5), name


# --- synchronisation ------------------------------------------------------------------------------
class Never(TrainingHooks):
    holds_weights = True

    def on_sync(self, step):
        return step == 1


@pytest.mark.parametrize("guard", ["stop", "resync", "report"])
def test_what_the_probe_does_about_a_sampler_that_got_no_weights(tmp_path, guard):
    if guard == "stop":
        with pytest.raises(TrainingError, match="stale"):
            small_fit(tmp_path, Never(), expert=False, sync_guard=guard)
        return
    run = small_fit(tmp_path, Never(), expert=False, sync_guard=guard)
    versions = [{e.weight_version for e in step} for step in run.episodes]
    assert versions == ([{0}, {1}, {2}] if guard == "resync" else [{0}, {0}, {0}])


def test_a_resync_that_does_not_help_is_an_error():
    model, sampler = tiny_model(width=32), HFSampler(tiny_model(width=32), {1}, shared=False, max_in_flight=4)
    shake(model, seed=1)
    probe, tries = SyncProbe(tuple(range(20, 50)), 1e-4, guard="resync"), []
    with pytest.raises(TrainingError, match="sampler and trainer differ"):
        probe.check(sampler, model, torch.device("cpu"), 1, lambda: tries.append(1))
    assert tries == [1]


# --- the callback ---------------------------------------------------------------------------------
class Steps(TrainingHooks):
    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def begin(self, steps_done):
        self.calls.append(("begin", steps_done))

    def end_step(self, step):
        self.calls.append(("end", step))

    def state_dict(self):
        return {"calls": list(self.calls)}

    def load_state_dict(self, state):
        self.calls = [tuple(call) for call in state["calls"]]


def test_hooks_are_told_of_the_steps_and_their_state_travels(tmp_path):
    hooks, saved = Steps(), tmp_path / "saved"
    small_fit(tmp_path, hooks, expert=False, save=saved)
    assert hooks.calls == [("begin", 0), ("end", 1), ("end", 2), ("end", 3)]
    (middle,) = [path for path in saved.iterdir() if "step=2" in path.name]
    again = Steps()
    small_fit(tmp_path, again, expert=False, resume=middle)
    assert again.calls == [("begin", 0), ("end", 1), ("end", 2), ("begin", 2), ("end", 3)]


def test_the_callback_hands_the_state_through():
    hooks = Steps()
    callback = HooksCallback(hooks)
    callback.load_state_dict({"calls": [("end", 4)]})
    assert hooks.calls == [("end", 4)] and callback.state_dict() == {"calls": [("end", 4)]}
