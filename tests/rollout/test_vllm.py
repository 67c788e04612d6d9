"""A real engine with a tiny random model. What all samplers share is in test_sampler_contract.py."""

from __future__ import annotations

import random
import re
import sys

import numpy as np
import pytest
import torch

from robustops.errors import ConfigError, SamplerError
from robustops.rollout.sampler import NOT_FINITE, Request
from robustops.rollout.vllm import VLLMSampler
from tests.tiny_model import drain, largest_gap, prompt, shake, tiny_model

vllm = pytest.mark.vllm


def requests_of(count: int, budget: int = 24) -> list[Request]:
    start = prompt(40, seed=99)
    return [Request(i, start + prompt(5 + 7 * i % 40, seed=i), budget, seed=1000 + i) for i in range(count)]


@vllm
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_the_trainers_before_and_after_updates(vllm_sampler, temperature):
    vllm_sampler.temperature = temperature
    trained, requests = tiny_model(seed=1), requests_of(9)
    for version in (1, 2, 3):
        answers = drain(vllm_sampler, requests)
        assert largest_gap(trained, requests, answers, temperature) < 1e-4
        shake(trained, seed=version)
        assert largest_gap(trained, requests, answers, temperature) > 1e-2, "the update must be visible"
        vllm_sampler.sync(trained.state_dict().items(), version)
        assert vllm_sampler.weight_version == version
    assert largest_gap(trained, requests, drain(vllm_sampler, requests), temperature) < 1e-4


@vllm
def test_the_engine_keeps_a_copy_of_the_weights(vllm_sampler):
    """The trainer's next step must not reach into the engine before it is synced."""
    trained, requests = tiny_model(seed=1), requests_of(3)
    vllm_sampler.sync(trained.state_dict().items(), 1)
    before = drain(vllm_sampler, requests)
    shake(trained, seed=8)
    after = drain(vllm_sampler, requests)
    assert [after[i].token_ids for i in after] == [before[i].token_ids for i in after]
    assert largest_gap(tiny_model(seed=1), requests, after, 1.0) < 1e-4


@vllm
def test_weights_may_come_without_the_tied_head_and_with_gradients(vllm_sampler):
    vllm_sampler.sync(tiny_model(seed=2).named_parameters(), 1)
    requests = requests_of(3)
    assert largest_gap(tiny_model(seed=2), requests, drain(vllm_sampler, requests), 1.0) < 1e-4


@vllm
def test_missing_weights_are_refused_and_change_nothing(vllm_sampler):
    weights = tiny_model(seed=2).state_dict()
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(SamplerError, match=r"lack 1 of \d+ names, first 'model\.layers\.1\.mlp\.up_proj"):
        vllm_sampler.sync(weights.items(), 1)
    assert vllm_sampler.weight_version == 0
    requests = requests_of(2)
    assert largest_gap(tiny_model(seed=1), requests, drain(vllm_sampler, requests), 1.0) < 1e-4


@vllm
def test_greedy_is_the_most_likely_token(vllm_sampler):
    vllm_sampler.temperature = 0.0
    (request,) = requests_of(1, budget=8)
    answer = drain(vllm_sampler, [request])[0]
    model = tiny_model(seed=1)
    ids = list(request.token_ids)
    for token in answer.token_ids:
        with torch.no_grad():
            assert token == int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)


@vllm
def test_a_shared_start_is_read_once(vllm_sampler):
    """Members of a group meet the prefix cache, and get what they would get without it."""
    context = prompt(160, seed=5)
    requests = [Request(i, context, 10, seed=i) for i in range(6)]
    answers = drain(vllm_sampler, requests)
    assert len({a.token_ids for a in answers.values()}) > 1
    assert largest_gap(tiny_model(seed=1), requests, answers, 1.0) < 1e-4


@vllm
def test_more_prompts_than_a_step_can_read_wait_for_the_next(vllm_sampler):
    """A prompt that was read in two pieces would end in an error: a CPU generator cannot go back."""
    requests = [Request(i, prompt(300, seed=i), 8, seed=i) for i in range(4)]
    answers = drain(vllm_sampler, requests)
    assert [answers[i].error for i in range(4)] == [None] * 4
    assert largest_gap(tiny_model(seed=1), requests, answers, 1.0) < 1e-4


@vllm
def test_the_models_own_end_of_text_does_not_end_a_message(vllm_sampler):
    """Only `stop_ids` do; id 1 is the end of text in the model's config."""
    assert 1 not in vllm_sampler.stop_ids
    model = tiny_model(seed=1)
    with torch.no_grad():  # a head that says nothing but id 1
        model.model.norm.weight.zero_()
    broken = dict(model.state_dict())
    vllm_sampler.sync(broken.items(), 1)
    vllm_sampler.temperature = 0.0
    answer = drain(vllm_sampler, [Request(0, prompt(8, seed=1), 7, seed=1)])[0]
    assert len(answer.token_ids) == 7 and not answer.finished


@vllm
@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(0, prompt(20, seed=1), 500, seed=1), "520 tokens .* holds 512; raise sampler.max_model_len"),
        (Request(0, prompt(600, seed=1), 5, seed=1), "605 tokens"),
        (Request(0, (5, 512), 5, seed=1), "0 to 511"),
        (Request(0, (5, -1), 5, seed=1), "0 to 511"),
        (Request(0, (), 5, seed=1), "0 to 511"),
    ],
)
def test_a_request_that_the_engine_cannot_take_is_an_error_of_its_own(vllm_sampler, request_, words):
    fine = Request(1, prompt(10, seed=1), 5, seed=1)
    answers = drain(vllm_sampler, [request_, fine])
    assert answers[0].token_ids == () and answers[0].error is not None
    assert re.search(words, answers[0].error)
    assert answers[1].error is None and answers[1].token_ids


@vllm
def test_broken_weights_give_an_error_and_no_tokens(vllm_sampler):
    weights = {name: tensor.clone() for name, tensor in tiny_model(seed=1).state_dict().items()}
    weights["model.norm.weight"].fill_(float("nan"))
    vllm_sampler.sync(weights.items(), 1)
    answers = drain(vllm_sampler, requests_of(2, budget=3))
    assert {a.error for a in answers.values()} == {NOT_FINITE}


@vllm
def test_an_engine_that_fails_says_what_to_do(vllm_sampler, monkeypatch):
    vllm_sampler.submit(requests_of(1)[0])

    def fail() -> None:
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(vllm_sampler._llm.llm_engine, "step", fail)
    with pytest.raises(SamplerError, match=r"run a step: RuntimeError: out of memory; .*max_in_flight"):
        vllm_sampler.poll()
    monkeypatch.undo()
    vllm_sampler.release(0)


@vllm
@pytest.mark.slow
def test_starting_an_engine_leaves_the_process_as_it_was(vllm_engine, tmp_path):
    del vllm_engine  # vLLM is there
    tiny_model(seed=1).save_pretrained(tmp_path)
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    threads = torch.get_num_threads()
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    with pytest.raises(SamplerError, match="max_model_len"):
        VLLMSampler(tmp_path, {2}, max_model_len=100_000)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected
    assert torch.get_num_threads() == threads
    with pytest.raises(ConfigError, match="no_such_argument"):
        VLLMSampler(tmp_path, {2}, engine={"no_such_argument": 1})


def test_an_engine_that_is_not_installed_says_how_to_install_it(monkeypatch, tmp_path):
    tiny_model(width=32).save_pretrained(tmp_path)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"scripts/install_vllm_cpu\.sh"):
        VLLMSampler(tmp_path, {2})


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json is missing"):
        VLLMSampler(tmp_path, {2})
