"""What a step's updates do: inner epochs, mini-batches, old log-probs, importance weights, precision."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from robustops.learning.adapters import add_lora, merged_weights
from robustops.learning.data import RolloutTicket, StepData
from robustops.learning.grpo_loss import GRPOLoss
from robustops.learning.grpo_module import GRPOModule, Optimisation
from robustops.learning.policy import Policy, Reference
from robustops.objectives.advantages import component
from robustops.rollout.hf import HFSampler
from robustops.rollout.sampler import Request
from robustops.settings import LoRASettings
from tests.learning.grpo_cases import LOSS, groups, grpo_module, one_step, reference_model, slow_terms
from tests.learning.support import Gradients, Metrics, group_of, quiet_trainer, slow_log_probs, weights_of
from tests.tiny_model import prompt, tiny_model


@pytest.fixture(scope="module")
def reference():
    return reference_model()


EXACT = {"atol": 1e-6, "rtol": 1e-5}


def run_steps(folder, module, steps, given, *callbacks, **options):
    trainer = quiet_trainer(folder, *callbacks, **options)
    data = StepData(steps, lambda step: RolloutTicket(step, given), module.updates_per_step)
    trainer.fit(module, datamodule=data)
    return trainer


def slow_updates(model, reference, batches, loss, learning_rate=1e-3):
    """AdamW by hand, one update a batch of groups; the old log-probs stay those of the sampler."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    values = []
    for batch in batches:
        value = slow_terms(model, reference, batch, component, loss)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(value.item())
    return values


def test_inner_epochs_are_so_many_updates_on_the_same_episodes(tmp_path, reference):
    module, metrics = grpo_module(reference, epochs=3), Metrics()
    trainer = run_steps(tmp_path, module, 1, groups(), metrics)
    slow = tiny_model(seed=3, width=32)
    losses = slow_updates(slow, reference, [groups()] * 3, LOSS)
    assert trainer.global_step == 3 and module.steps_done == 1
    assert metrics.steps[0]["train/loss"] == pytest.approx(sum(losses) / 3, abs=1e-5)
    for name, weight in slow.named_parameters():
        torch.testing.assert_close(module.model.get_parameter(name), weight, atol=1e-5, rtol=1e-4)


def test_the_second_epoch_brings_ratios_to_life(tmp_path, reference):
    """Old log-probs that are the policy's own: with one update every ratio is 1, with two they move."""

    def own(episode):
        with torch.no_grad():
            values = slow_log_probs(tiny_model(seed=3, width=32), episode.token_ids).tolist()
        return dataclasses.replace(episode, old_log_probs=(0.0, *values))

    on_policy = [group_of(*map(own, group.episodes)) for group in groups()]
    for epochs in (1, 2):
        metrics = Metrics()
        run_steps(tmp_path, grpo_module(reference, epochs=epochs), 1, on_policy, metrics)
        moved = abs(metrics.steps[0]["ratio_max"] - 1)
        assert (moved < 1e-4) == (epochs == 1)
        assert metrics.steps[0]["samp_logp_absdiff_max"] < 1e-4, "of the first update alone"


def test_mini_batches_deal_out_the_groups_of_each_kind(tmp_path, reference):
    """Advantages are those of the whole step; the weights of each update those of its own episodes."""
    four = [*groups(), *groups()]
    module = grpo_module(reference, mini_batches=2, epochs=2)
    assert module._mini_batches(four) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]] * 2
    metrics = Metrics()
    trainer = run_steps(tmp_path, module, 2, four, metrics)
    assert trainer.global_step == 8 and len(metrics.steps) == 2


def test_a_step_without_groups_counts_its_updates_and_changes_nothing(tmp_path, reference):
    module = grpo_module(reference, epochs=2, mini_batches=2)
    before = weights_of(module)
    trainer = run_steps(tmp_path, module, 2, [])
    assert trainer.global_step == 8 and module.steps_done == 2
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(module).items())


# --- mismatch of sampler and trainer ---------------------------------------------------------------
def slow_importance(model, reference, given, loss):
    """The ratio is 1 and the mismatch a weight: mean over tokens of -min(p / p_sampler, cap) A + kl."""
    everyone = [episode for group in given for episode in group.episodes]
    numbers = [number for number, group in enumerate(given) for _ in group.episodes]
    advantages = component([e.reward_parts for e in everyone], numbers).values.tolist()
    flows = {}
    for episode, advantage in zip(everyone, advantages, strict=True):
        new = slow_log_probs(model, episode.token_ids)
        with torch.no_grad():
            ref = slow_log_probs(reference, episode.token_ids)
        for place, trained in enumerate(episode.loss_mask):
            if trained:
                now, frozen = new[place - 1], ref[place - 1]
                weight = torch.exp(now.detach() - episode.old_log_probs[place]).clamp(max=loss.importance_cap)
                term = -weight * torch.exp(now - now.detach()) * advantage
                term = term + loss.kl * (torch.exp(frozen - now) - (frozen - now) - 1)
                flows.setdefault(episode.condition, []).append(term)
    return torch.stack([torch.stack(terms).mean() for terms in flows.values()]).mean()


@pytest.mark.parametrize("cap", [1.2, 10.0])
def test_importance_weights_are_those_of_the_slow_reference(tmp_path, reference, cap):
    loss = dataclasses.replace(LOSS, importance_cap=cap)
    model = tiny_model(seed=3, width=32)
    slow = slow_importance(model, reference, groups(), loss)
    slow.backward()
    metrics, gradient, _ = one_step(tmp_path, reference, groups(), loss=loss)
    assert metrics["train/loss"] == pytest.approx(slow.item(), abs=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradient[f"model.{name}"], parameter.grad, **EXACT)
    assert (metrics["train/importance_capped_frac"] > 0.05) == (cap == 1.2)
    assert metrics["is_ratio_max"] > 1.2 and metrics["ratio_max"] == 1.0


def test_later_epochs_compare_with_the_trainers_own_log_probs_before_the_step(tmp_path, reference):
    """An old policy whose log-probs the trainer recomputes: what the sampler said is only a weight."""
    loss, metrics = dataclasses.replace(LOSS, importance_cap=5.0), Metrics()
    module = grpo_module(reference, loss=loss, epochs=2, learning_rate=1e-4)
    run_steps(tmp_path, module, 1, groups(), metrics)
    assert metrics.steps[0]["is_ratio_max"] > 1.5, "the sampler's log-probs are far off"
    assert metrics.steps[0]["ratio_max"] < 1.3, "the policy's own are near"


# --- overlong episodes -----------------------------------------------------------------------------
def test_masked_overlong_episodes_leave_numerator_and_denominator_alike(tmp_path, reference):
    cut = [
        group_of(dataclasses.replace(group.episodes[0], stop="context"), *group.episodes[1:])
        for group in groups()
    ]
    loss = GRPOLoss(kl=1.0, overlong="mask")
    metrics, _, module = one_step(tmp_path, reference, cut, loss=loss)
    rows, _ = module._prepare(cut, [e for g in cut for e in g.episodes])
    weights = {row.episode.index: row.weight for row in module._weighted(rows)}
    assert weights[1] == weights[3] == 0.0
    tokens = {e.index: sum(e.loss_mask) for g in cut for e in g.episodes}
    assert sum(weights[i] * tokens[i] for i in (2, 4, 5)) == pytest.approx(1.0)
    kept = dataclasses.replace(loss, overlong="keep")
    other, _, _ = one_step(tmp_path, reference, cut, loss=kept)
    assert other["train/loss"] != pytest.approx(metrics["train/loss"], rel=1e-3)


def test_a_batch_in_which_everything_is_masked_has_loss_zero(tmp_path, reference):
    cut = [group_of(*(dataclasses.replace(e, stop="answer_budget") for e in g.episodes)) for g in groups()]
    metrics, gradient, _ = one_step(tmp_path, reference, cut, loss=GRPOLoss(kl=1.0, overlong="mask"))
    assert metrics["train/loss"] == 0.0 and metrics["grad_norm"] == 0.0
    assert all(g.eq(0).all() for g in gradient.values())


# --- adapters, precision, dropout --------------------------------------------------------------------
def adapted(rank=4):
    model = tiny_model(seed=3, width=32)
    add_lora(model, LoRASettings(rank=rank, alpha=8.0))
    return model


def test_lora_trains_the_adapters_alone_against_the_model_beneath_them(tmp_path):
    plain, model = tiny_model(seed=3, width=32), adapted()
    module = GRPOModule(model, Policy(model, None, None).reference(), component, LOSS, Optimisation(1e-2))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    metrics, gradients = Metrics(), Gradients()
    run_steps(tmp_path, module, 3, groups(), metrics, gradients)
    assert metrics.steps[0]["train/kl_ref_max"] < 1e-6 < metrics.steps[2]["train/kl_ref_max"]
    for name, parameter in model.named_parameters():
        trained = ".lora_" in name
        assert parameter.requires_grad == trained
        assert trained or torch.equal(parameter, before[name])
    merged = dict(merged_weights(model))
    assert merged.keys() == dict(plain.named_parameters()).keys()
    plain.load_state_dict(merged, strict=False)
    ids = prompt(30, seed=7)
    with torch.no_grad():
        torch.testing.assert_close(
            slow_log_probs(plain, ids), slow_log_probs(model, ids), atol=1e-5, rtol=1e-5
        )


def test_a_sampler_with_weights_of_its_own_takes_merged_adapters():
    model, sampler = adapted(), HFSampler(tiny_model(seed=8, width=32), {1}, shared=False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B" in name:
                parameter.normal_(0, 0.1, generator=torch.Generator().manual_seed(len(name)))
    sampler.sync(merged_weights(model), 1)
    ids = prompt(12, seed=2)
    sampler.submit(Request(0, tuple(ids), 5, seed=1))
    done = []
    while not done:
        done = sampler.poll()
    with torch.no_grad():
        own = slow_log_probs(model, [*ids, *done[0].token_ids])[len(ids) - 1 :]
    assert own.tolist() == pytest.approx(done[0].log_probs, abs=1e-4)


def test_bf16_mixed_precision_is_near_float32(tmp_path, reference):
    wanted, exact, _ = one_step(tmp_path, reference, groups())
    metrics, gradients = Metrics(), Gradients()
    run_steps(tmp_path, grpo_module(reference), 1, groups(), metrics, gradients, precision="bf16-mixed")
    assert metrics.steps[0]["train/loss"] == pytest.approx(wanted["train/loss"], abs=0.05)
    near = torch.cat([g.flatten() for g in gradients.steps[0].values()])
    true = torch.cat([exact[name].flatten() for name in gradients.steps[0]])
    assert torch.cosine_similarity(near, true, dim=0) > 0.9


def test_the_reference_is_the_policy_at_step_0_in_training_mode_with_dropout_configured(tmp_path):
    model = tiny_model(seed=3, width=32)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model.gradient_checkpointing_enable({"use_reentrant": False})
    frozen = Reference(tiny_model(seed=3, width=32))
    module, metrics = GRPOModule(model, frozen, component, LOSS, Optimisation(1e-3)), Metrics()
    run_steps(tmp_path, module, 1, groups(), metrics)
    assert model.training and metrics.steps[0]["train/kl_ref_max"] < 1e-6


def test_without_a_reference_there_is_no_kl(tmp_path):
    metrics, _, _ = one_step(tmp_path, None, groups(), loss=GRPOLoss(kl=0.0))
    assert metrics["kl_ref_k3"] != metrics["kl_ref_k3"]


def test_the_k1_estimator_is_a_choice(tmp_path, reference):
    k3, _, _ = one_step(tmp_path, reference, groups(), loss=GRPOLoss(kl=1.0))
    k1, _, _ = one_step(tmp_path, reference, groups(), loss=GRPOLoss(kl=1.0, kl_estimator="k1"))
    assert k1["train/loss"] != pytest.approx(k3["train/loss"], rel=1e-3)


def test_what_epochs_have_in_common_is_computed_once(tmp_path, reference, monkeypatch):
    """The reference scores once a step; with one mini-batch no pass is made for old log-probs alone."""
    scored = []
    monkeypatch.setattr(reference.model.base_model, "forward", _counting(reference.model.base_model, scored))
    counts = {}
    for epochs in (1, 3):
        scored.clear()
        module = grpo_module(reference, epochs=epochs)
        monkeypatch.setattr(module, "_score", lambda rows: pytest.fail("scored without need"))
        run_steps(tmp_path / str(epochs), module, 1, groups())
        counts[epochs] = len(scored)
    assert counts[1] == counts[3] > 0


def _counting(module, calls):
    original = module.forward

    def forward(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    return forward
