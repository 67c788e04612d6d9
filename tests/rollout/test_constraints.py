from __future__ import annotations

import pytest
import torch

from robustops.rollout.constraints import constrained
from robustops.rollout.hf import HFSampler
from robustops.rollout.hf_session import Session
from robustops.rollout.limits import sampling_values
from robustops.rollout.sampler import Request
from tests.tiny_model import drain, prompt, tiny_model

STOPS = set(range(2, 120))


def session_of(written=(), **values) -> Session:
    session = Session(0)
    session.begin(Request(0, (70, 71), 24, 0, **values))
    session.new_ids.extend(written)
    return session


def test_without_limits_the_logits_are_the_same_tensor():
    logits = torch.randn(2, 8)
    assert constrained(logits, [session_of((3, 4)), session_of()], {1}) is logits


def test_limits_by_hand():
    logits = torch.tensor([[1.0, 2.0, -3.0, 4.0]] * 3)
    rows = [
        session_of((2, 3), repetition_penalty=2.0),
        session_of((2,), min_new_tokens=2),
        session_of((2, 0), min_new_tokens=2),
    ]
    got = constrained(logits, rows, {0, 3})
    assert got.tolist() == [[1.0, 2.0, -6.0, 2.0], [-torch.inf, 2.0, -3.0, -torch.inf], [1.0, 2.0, -3.0, 4.0]]
    assert logits.tolist() == [[1.0, 2.0, -3.0, 4.0]] * 3, "the caller's stay as they were"


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_no_message_is_shorter_than_the_shortest(temperature):
    model = tiny_model(seed=1)
    requests = [Request(i, prompt(5 + i, seed=i), 12, seed=i, min_new_tokens=6) for i in range(8)]
    answers = drain(HFSampler(model, STOPS, temperature=temperature), requests)
    for answer in answers.values():
        assert not set(answer.token_ids[:6]) & STOPS and all(
            map(torch.isfinite, torch.tensor(answer.log_probs))
        )
    assert any(answer.finished for answer in answers.values())


def test_a_request_that_never_stops_goes_on_to_its_budget():
    requests = [Request(i, prompt(5 + i, seed=i), 12, seed=i, never_stops=True) for i in range(4)]
    answers = drain(HFSampler(tiny_model(seed=1), STOPS), requests)
    assert all(len(a.token_ids) == 12 and not a.finished for a in answers.values())
    assert any(set(a.token_ids) & STOPS for a in answers.values())


def test_what_an_engine_is_told_of_the_limits():
    plain = sampling_values(Request(0, (1,), 5, 0), 1.0, {7})
    assert "min_tokens" not in plain and plain["stop_token_ids"] == [7]
    told = sampling_values(Request(0, (1,), 5, 0, min_new_tokens=3, never_stops=True), 1.0, {7})
    assert told == plain | {"min_tokens": 3, "stop_token_ids": []}
