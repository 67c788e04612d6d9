"""The mechanisms at TRL's extension points, without TRL."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from robustops.bench.run_faults.exposure import read_exposure
from robustops.bench.transfer.trl_injection import OFF
from robustops.records import Episode, Group, RewardParts
from tests.bench.transfer.test_trl_calculator import injection


def trainer():
    return SimpleNamespace(beta=0.01, epsilon_low=0.2, epsilon_high=0.28, max_tool_calling_iterations=8)


def attached(fault, mechanism, tmp_path, **values):
    made, of = injection(fault, mechanism, tmp_path, **values), trainer()
    made.attach(of)
    made.on_train_begin(None, None, None)
    return made, of


def step(made, updates_done):
    made.on_step_begin(None, SimpleNamespace(global_step=updates_done), None)


def test_coefficients_are_turned_from_the_onset_on_and_back_at_the_end(tmp_path):
    made, of = attached("kl_explosion", "aggressive_updates", tmp_path, unit="step", onset=2, end=3)
    step(made, 0)
    assert (of.beta, of.epsilon_low, of.epsilon_high) == (0.01, 0.2, 0.28)
    step(made, 2)  # two updates a step: the second step begins
    assert (of.beta, of.epsilon_low, of.epsilon_high) == (OFF, 1000.2, 1000.28)
    step(made, 4)
    assert (of.beta, of.epsilon_low, of.epsilon_high) == (0.01, 0.2, 0.28)


def test_the_limit_of_turns(tmp_path):
    made, of = attached("termination_error", "turn_limit", tmp_path, strength=0.6, unit="step", onset=2)
    step(made, 0)
    assert of.max_tool_calling_iterations == 8
    step(made, 2)
    assert of.max_tool_calling_iterations == 3  # 8 x (1 - 0.6), rounded
    made, of = attached("termination_error", "early_done", tmp_path, unit="step")
    step(made, 0)
    assert of.max_tool_calling_iterations == 1


def updated(made, rate=1e-3):
    model = torch.nn.Linear(3, 1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    before = [p.detach().clone() for p in model.parameters()]
    made.on_pre_optimizer_step(None, None, None, model=model, optimizer=optimizer)
    optimizer.step()
    return max(float((p - b).abs().max()) for p, b in zip(model.parameters(), before, strict=True))


def test_updates_are_skipped_or_twenty_times_as_large(tmp_path):
    usual = updated(attached("update_freeze", "skipped_updates", tmp_path, unit="step", onset=5)[0])
    assert usual == pytest.approx(1e-3, rel=0.01)
    assert updated(attached("update_freeze", "skipped_updates", tmp_path, unit="step")[0]) == 0.0
    large = updated(attached("kl_explosion", "aggressive_updates", tmp_path, unit="step")[0])
    assert large == pytest.approx(20e-3, rel=0.01)


def rewarded(made, rows=4):
    parts = [RewardParts(float(row % 2), 0.0, 0.0) for row in range(rows)]
    episodes = [
        Episode("c", "clean", row, (), (), (), (), 0, "final_answer", (), (), reward_parts=part)
        for row, part in enumerate(parts)
    ]
    made.rewarded([Group("c", "clean", tuple(episodes))])


def test_advantages_are_the_same_in_each_update_of_a_step(tmp_path):
    made, _ = attached("advantage_instability", "heavy_noise", tmp_path, onset=2)
    values = torch.tensor([0.5, -0.5, 1.0, -1.0])
    step(made, 0)
    rewarded(made)
    assert torch.equal(made.advantages(values), values)
    step(made, 2)
    rewarded(made)
    first = made.advantages(values)
    assert (first != values).all() and torch.equal(made.advantages(values), first)
    step(made, 4)
    rewarded(made)
    assert not torch.equal(made.advantages(values), first)


def test_a_lag_takes_the_advantages_of_the_step_before(tmp_path):
    made, _ = attached("delayed_credit", "lagged_advantages", tmp_path, onset=2)
    steps = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0])]
    seen = []
    for place, values in enumerate(steps):
        step(made, 2 * place)
        rewarded(made, 2)
        made.advantages(values)
        seen.append(made.advantages(values).tolist())  # of the second update
    assert seen == [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]]


def test_logits_are_changed_where_a_message_begins(tmp_path):
    made, _ = attached("empty_response", "stop_at_once", tmp_path, unit="turn")
    step(made, 0)
    scores = torch.zeros(2, 6)
    ids = torch.tensor([[0, 0, 1], [0, 2, 1]])
    first = made.logits(ids, scores, 3, [4], made.next_call())
    assert first[:, 4].tolist() == [12.0, 12.0] and first[:, :4].abs().sum() == 0
    later = made.logits(torch.tensor([[0, 0, 1, 3], [0, 2, 1, 3]]), scores, 3, [4], 0)
    assert torch.equal(later, scores)


def test_what_was_touched_is_logged_step_by_step(tmp_path):
    made, _ = attached("update_freeze", "skipped_updates", tmp_path, unit="step", onset=2)
    for update in range(4):
        step(made, update)
        updated(made)
        made.on_step_end(None, SimpleNamespace(global_step=update + 1), None)
    lines = read_exposure(tmp_path / "exposure.jsonl")
    assert [(line["step"], line["touched"]) for line in lines] == [(1, 0), (2, 1)]


def test_places_follow_the_batch(tmp_path):
    made, _ = attached("tool_call_error", "tool_outage", tmp_path, unit="turn")
    step(made, 0)
    assert [made.place("c")[3:5] for _ in range(4)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    step(made, 2)
    assert made.place("c")[:1] == (2,) and made.place("c")[3:5] == (0, 1)
