from __future__ import annotations

import numpy as np
import pytest
import torch

from robustops.errors import ConfigError, SamplerError
from robustops.rollout.hf import HFSampler
from robustops.rollout.sampler import NOT_FINITE, Completion, Request
from tests.tiny_model import drain, largest_gap, prompt, shake, tiny_model

STOPS = set(range(2, 26))
TEMPERATURES = (1.0, 0.6)


@pytest.fixture
def model():
    return tiny_model(seed=1)


def requests_of(count: int, *, budget: int = 24, shared: int = 0) -> list[Request]:
    """Contexts of different lengths, the first `shared` tokens in common."""
    start = prompt(shared, seed=99)
    return [Request(i, start + prompt(5 + 7 * i % 40, seed=i), budget, seed=1000 + i) for i in range(count)]


def slow_sample(model, request: Request, temperature: float) -> tuple[list[int], list[float]]:
    """One sequence, no cache, no batch: the first token whose cumulated mass passes the uniform."""
    uniforms = np.random.default_rng(request.seed).random(request.max_new_tokens)
    ids: list[int] = []
    log_probs: list[float] = []
    for uniform in uniforms:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*request.token_ids, *ids]])).logits[0, -1].double()
        scaled = (logits / (temperature or 1.0)).log_softmax(-1)
        mass = scaled.exp().cumsum(-1).tolist()
        token = next((t for t, m in enumerate(mass) if m > uniform * mass[-1]), len(mass) - 1)
        if temperature == 0:
            token = int(logits.argmax())
        ids.append(token)
        log_probs.append(scaled[token].item())
        if token in STOPS:
            break
    return ids, log_probs


@pytest.mark.parametrize("temperature", [*TEMPERATURES, 0.0])
def test_sampled_ids_are_those_of_a_plain_loop_over_whole_sequences(model, temperature):
    requests = requests_of(5)
    answers = drain(HFSampler(model, STOPS, temperature=temperature, max_in_flight=3), requests)
    for request in requests:
        ids, log_probs = slow_sample(model, request, temperature)
        assert list(answers[request.session].token_ids) == ids
        assert answers[request.session].log_probs == pytest.approx(log_probs, abs=1e-4)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("tied", [True, False])
def test_log_probs_are_the_trainers_before_and_after_an_update(temperature, tied):
    trained, copy = tiny_model(seed=1, tied=tied), tiny_model(seed=1, tied=tied)
    sampler = HFSampler(copy, STOPS, temperature=temperature, max_in_flight=6, shared=False)
    requests = requests_of(10, shared=20)
    before = drain(sampler, requests)
    assert largest_gap(trained, requests, before, temperature) < 1e-4
    shake(trained, seed=5)
    assert largest_gap(trained, requests, before, temperature) > 1e-2, "the update must be visible"
    for request in requests[:5]:
        sampler.release(request.session)  # the others keep their slots and must forget the old keys
    sampler.sync(trained.state_dict().items(), version=4)
    after = drain(sampler, requests)
    assert sampler.weight_version == 4
    assert largest_gap(trained, requests, after, temperature) < 1e-4


def test_a_shared_model_is_sampled_with_its_new_weights(model):
    sampler = HFSampler(model, STOPS)
    requests = requests_of(4)
    drain(sampler, requests)
    shake(model, seed=6)
    sampler.sync(model.state_dict().items(), version=1)
    assert largest_gap(model, requests, drain(sampler, requests), 1.0) < 1e-4


def test_equal_contexts_are_prefilled_once(model, monkeypatch):
    sampler = HFSampler(model, STOPS, max_in_flight=8)
    rows = []
    original = sampler._logits

    def recorded(ids, *others):
        if ids.shape[1] > 1:
            rows.append(len(ids))
        return original(ids, *others)

    monkeypatch.setattr(sampler, "_logits", recorded)
    context = prompt(30, seed=4)
    requests = [Request(i, context, 12, seed=i) for i in range(8)]
    answers = drain(sampler, requests)
    assert rows == [1]
    assert len({a.token_ids for a in answers.values()}) > 1
    assert largest_gap(model, requests, answers, 1.0) < 1e-4


def test_a_later_turn_feeds_new_tokens_only_and_changes_nothing(model, monkeypatch):
    sampler = HFSampler(model, set(), max_in_flight=2)
    first = Request(0, prompt(50, seed=1), 6, seed=1)
    answer = drain(sampler, [first])[0]
    longer = first.token_ids + answer.token_ids + prompt(9, seed=2)
    second = Request(0, longer, 6, seed=2)
    widths = []
    original = sampler._logits
    monkeypatch.setattr(sampler, "_logits", lambda ids, *o: widths.append(ids.shape[1]) or original(ids, *o))
    cached = drain(sampler, [second])[0]
    assert max(widths) == 10, "nine new tokens and the last sampled one"
    fresh = drain(HFSampler(model, set()), [second])[0]
    assert cached.token_ids == fresh.token_ids
    assert cached.log_probs == pytest.approx(fresh.log_probs, abs=1e-5)


def test_a_history_that_was_rewritten_is_read_afresh(model):
    sampler = HFSampler(model, set())
    drain(sampler, [Request(0, prompt(40, seed=1), 6, seed=1)])
    changed = [Request(0, prompt(45, seed=2), 6, seed=1)]
    assert largest_gap(model, changed, drain(sampler, changed), 1.0) < 1e-4


def test_slots_are_used_again_and_grow_past_their_first_size(model):
    sampler = HFSampler(model, set(), max_in_flight=2)
    requests = [
        Request(i, prompt(length, seed=i), 20, seed=i) for i, length in enumerate((250, 10, 300, 3, 520))
    ]
    answers: dict[int, Completion] = {}
    for request in requests:
        sampler.submit(request)
    while len(answers) < len(requests):
        for completion in sampler.poll():
            answers[completion.session] = completion
            sampler.release(completion.session)
    assert largest_gap(model, requests, answers, 1.0) < 1e-4


def test_the_last_sessions_move_into_the_slots_that_became_free(model, monkeypatch):
    """A pass then costs what the open sessions cost; nothing that was cached is read again."""
    sampler = HFSampler(model, set(), max_in_flight=6)
    requests = requests_of(6, budget=40)
    passes = []
    original = sampler._logits
    monkeypatch.setattr(
        sampler, "_logits", lambda ids, *o: passes.append(tuple(ids.shape)) or original(ids, *o)
    )
    for request in requests:
        sampler.submit(request)
    while len(passes) < 12:
        assert sampler.poll() == []
    for request in requests[:4]:
        sampler.release(request.session)
    kept, answers = requests[4:], {}
    del passes[:]
    while len(answers) < 2:
        answers.update((completion.session, completion) for completion in sampler.poll())
    assert set(passes) == {(2, 1)}
    assert largest_gap(model, kept, answers, 1.0) < 1e-4


def test_a_session_between_turns_is_not_disturbed_by_the_others(model):
    """Idle slots compute in vain beside busy ones; what they write must not survive."""
    sampler = HFSampler(model, set(), max_in_flight=3)
    first = Request(0, prompt(30, seed=1), 5, seed=1)
    answer = drain(sampler, [first])[0]
    drain(sampler, [Request(1, prompt(8, seed=2), 30, seed=2), Request(2, prompt(60, seed=3), 30, seed=3)])
    second = [Request(0, first.token_ids + answer.token_ids + prompt(4, seed=4), 10, seed=4)]
    assert largest_gap(model, second, drain(sampler, second), 1.0) < 1e-4


def test_the_models_mode_is_left_as_it_was(model):
    model.train()
    drain(HFSampler(model, STOPS), requests_of(2))
    assert model.training and all(module.training for module in model.modules())


def test_weights_that_do_not_fit_are_refused_and_change_nothing(model):
    sampler = HFSampler(model, STOPS, shared=False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weights = tiny_model(seed=2).state_dict()
    del weights["model.norm.weight"]
    with pytest.raises(SamplerError, match=r"model\.norm\.weight"):
        sampler.sync(weights.items(), version=1)
    prefixed = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    with pytest.raises(SamplerError, match="unknown"):
        sampler.sync(prefixed.items(), version=1)
    assert sampler.weight_version == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_weights_without_the_tied_head_are_enough(model):
    sampler = HFSampler(model, STOPS, shared=False)
    sampler.sync(tiny_model(seed=2).named_parameters(), version=1)
    requests = requests_of(2)
    assert largest_gap(tiny_model(seed=2), requests, drain(sampler, requests), 1.0) < 1e-4


def test_broken_weights_give_an_error_and_no_tokens(model):
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    answers = drain(HFSampler(model, STOPS), requests_of(3))
    assert {a.error for a in answers.values()} == {NOT_FINITE}
    assert not any(a.token_ids for a in answers.values())


def test_an_attention_that_cannot_mask_slots_is_refused(model):
    model.config._attn_implementation = "eager"
    with pytest.raises(ConfigError, match="sdpa"):
        HFSampler(model, STOPS)


def test_equal_contexts_are_prefilled_once_where_the_pass_has_no_room_for_others(model, monkeypatch):
    """Members of two groups of one length arrive in turn, and a pass takes in one of the two contexts."""
    sampler = HFSampler(model, STOPS, max_in_flight=8, prefill_tokens=40)
    rows = []
    original = sampler._logits
    monkeypatch.setattr(
        sampler,
        "_logits",
        lambda ids, *o: rows.extend([len(ids)] * (ids.shape[1] > 1)) or original(ids, *o),
    )
    requests = [Request(i, prompt(30, seed=i % 2), 6, seed=i) for i in range(8)]
    answers = drain(sampler, requests)
    assert rows == [1, 1]
    assert largest_gap(model, requests, answers, 1.0) < 1e-4


def cached_bytes(sampler: HFSampler) -> int:
    layers = sampler._cache.layers
    stored = [store for layer in layers for store in (layer.keys, layer.values) if store is not None]
    return sum(store.nbytes for store in stored)


def test_the_cache_takes_no_memory_once_the_last_session_is_released(model):
    sampler = HFSampler(model, STOPS, max_in_flight=4)
    requests = requests_of(3)
    before = drain(sampler, requests)
    for request in requests:
        assert cached_bytes(sampler) > 0
        sampler.release(request.session)
    assert cached_bytes(sampler) == 0
    assert drain(sampler, requests) == before, "to the last bit"


def test_the_cache_grows_with_the_open_sessions_and_keeps_what_it_holds(model, monkeypatch):
    sampler = HFSampler(model, set(), max_in_flight=100)
    first = Request(0, prompt(30, seed=1), 5, seed=1)
    answer = drain(sampler, [first])[0]
    one = cached_bytes(sampler)
    drain(sampler, [Request(i, prompt(20 + i, seed=i), 5, seed=i) for i in range(1, 5)])
    assert one < cached_bytes(sampler) <= 8 * one
    widths = []
    original = sampler._logits
    monkeypatch.setattr(sampler, "_logits", lambda ids, *o: widths.append(ids.shape[1]) or original(ids, *o))
    second = [Request(0, first.token_ids + answer.token_ids + prompt(4, seed=4), 10, seed=4)]
    assert largest_gap(model, second, drain(sampler, second), 1.0) < 1e-4
    assert max(widths) == 5, "four new tokens and the last sampled one"
