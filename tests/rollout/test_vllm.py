"""A real engine with a tiny random model. What all samplers share is in test_sampler_contract.py."""

from __future__ import annotations

import random
import re
import sys

import numpy as np
import pytest
import torch

from robustops.errors import ConfigError, SamplerError, TrainingError
from robustops.learning.sync_probe import SyncProbe
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
    """T25, T30: with the temperature, and of the weights that were synced last."""
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
    """T35."""
    weights = tiny_model(seed=2).state_dict()
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(SamplerError, match=r"lack 1 of \d+ names, first 'model\.layers\.1\.mlp\.up_proj"):
        vllm_sampler.sync(weights.items(), 1)
    assert vllm_sampler.weight_version == 0
    requests = requests_of(2)
    assert largest_gap(tiny_model(seed=1), requests, drain(vllm_sampler, requests), 1.0) < 1e-4


def plant(monkeypatch, sampler: VLLMSampler, names: slice) -> None:
    """From now on the engine loads only some of the weights that `sync` hands to it."""
    real = sampler._llm.collective_rpc

    def partial(method, kwargs):
        assert method == "reload_weights"
        if some := kwargs["weights_iterator"][names]:
            real(method, kwargs={"weights_iterator": some})

    monkeypatch.setattr(sampler._llm, "collective_rpc", partial)


@vllm
@pytest.mark.parametrize("names", [slice(0, 0), slice(0, 8)], ids=["stale", "partial"])
def test_the_engine_says_nothing_of_a_stale_or_partial_sync_but_the_probe_does(
    vllm_sampler, monkeypatch, names
):
    """T30, T35: no error, a new version, and log-probs of weights that nobody trained."""
    probe = SyncProbe(prompt(32, seed=2), tolerance=1e-4)
    trained = tiny_model(seed=1)
    for version in (1, 2):
        shake(trained, seed=version)
        vllm_sampler.sync(trained.state_dict().items(), version)
        assert probe.check(vllm_sampler, trained, torch.device("cpu"), version) < 1e-4
    plant(monkeypatch, vllm_sampler, names)
    shake(trained, seed=3)
    vllm_sampler.sync(trained.state_dict().items(), 3)
    assert vllm_sampler.weight_version == 3
    with pytest.raises(TrainingError, match="stale, incomplete"):
        probe.check(vllm_sampler, trained, torch.device("cpu"), 3)


@vllm
def test_a_prefix_cache_that_outlives_its_weights_gives_wrong_log_probs(vllm_sampler, monkeypatch):
    """T32: the right weights with the old cache are wrong, and `sync` drops the cache."""
    context = prompt(300, seed=5)
    requests = [Request(i, context, 10, seed=i) for i in range(3)]
    drain(vllm_sampler, requests)
    trained = tiny_model(seed=1)
    shake(trained, seed=1)
    with monkeypatch.context() as planted:
        planted.setattr(vllm_sampler._llm, "reset_prefix_cache", lambda: True)
        vllm_sampler.sync(trained.state_dict().items(), 1)
    assert largest_gap(trained, requests, drain(vllm_sampler, requests), 1.0) > 1e-2
    vllm_sampler.sync(trained.state_dict().items(), 2)
    assert largest_gap(trained, requests, drain(vllm_sampler, requests), 1.0) < 1e-4


@vllm
def test_a_cache_that_cannot_be_dropped_fails_the_sync(vllm_sampler, monkeypatch):
    monkeypatch.setattr(vllm_sampler._llm, "reset_prefix_cache", lambda: False)
    with pytest.raises(SamplerError, match="cannot be reset"):
        vllm_sampler.sync(tiny_model(seed=1).state_dict().items(), 1)
    assert vllm_sampler.weight_version == 0


@vllm
def test_the_gap_does_not_grow_over_syncs_without_learning(vllm_sampler):
    """T28, T34: the same weights again and again, as with a learning rate of 0."""
    model, requests = tiny_model(seed=1), requests_of(4, budget=8)
    gaps, ids = [], set()
    for version in range(1, 21):
        vllm_sampler.sync(model.state_dict().items(), version)
        answers = drain(vllm_sampler, requests)
        gaps.append(largest_gap(model, requests, answers, 1.0))
        ids.add(tuple(answers[i].token_ids for i in range(4)))
    assert max(gaps) < 1e-4 and len(ids) == 1
    assert abs(np.polyfit(range(20), gaps, 1)[0]) < 1e-7, "slope per sync"


@vllm
def test_the_gap_between_batch_shapes_is_noise(vllm_sampler):
    """T29: a request alone and among others has the same tokens, and log-probs that differ by rounding."""
    requests = requests_of(9)
    together = drain(vllm_sampler, requests)
    alone = {i: drain(vllm_sampler, [requests[i]])[i] for i in range(9)}
    assert all(alone[i].token_ids == together[i].token_ids for i in alone)
    noise = max(np.abs(np.subtract(alone[i].log_probs, together[i].log_probs)).max() for i in alone)
    assert noise < 1e-4


@pytest.fixture
def sleeper(vllm_sampler, monkeypatch):
    """The engine at sleep level 2, and what happens to its memory, in order."""
    events: list[object] = []

    def spied(owner, name, note):
        real = getattr(owner, name)

        def call(*args, **kwargs):
            events.append(note(*args, **kwargs))
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    spied(torch.cuda, "empty_cache", lambda: "empty_cache")
    spied(vllm_sampler._llm, "sleep", lambda level: f"sleep {level}")
    spied(vllm_sampler._llm, "wake_up", lambda tags: f"wake {tags[0]}")
    spied(vllm_sampler._llm, "collective_rpc", lambda method, **_: method)
    monkeypatch.setattr(vllm_sampler, "_sleep_level", 2)
    yield vllm_sampler, events
    vllm_sampler.sync(tiny_model(seed=1).state_dict().items(), 0)
    vllm_sampler.wake_up()


AWAKE = ["empty_cache", "wake weights", "reload_weights", "empty_cache", "wake kv_cache"]


@vllm
def test_weights_never_go_into_a_sleeping_engine(sleeper):
    """T31, T43: their memory comes back first; torch's cached blocks go before vLLM allocates."""
    sampler, events = sleeper
    trained, requests = tiny_model(seed=1), requests_of(3)
    for step in range(2):
        sampler.sleep()
        sampler.sleep()
        shake(trained, seed=step)
        sampler.sync(trained.state_dict().items(), step + 1)
        assert events == ["sleep 2", *AWAKE[:3]], "the cache sleeps on"
        assert largest_gap(trained, requests, drain(sampler, requests), 1.0) < 1e-4
        assert events == ["sleep 2", *AWAKE]
        events.clear()


@vllm
def test_an_engine_that_dropped_its_weights_does_not_sample(sleeper):
    sampler, events = sleeper
    sampler.sleep()
    for use in (sampler.wake_up, lambda: sampler.submit(requests_of(1)[0])):
        with pytest.raises(SamplerError, match=r"dropped .* sync first"):
            use()
    assert events == ["sleep 2"]


@vllm
def test_weights_that_moved_to_the_host_come_back_by_themselves(sleeper, monkeypatch):
    sampler, events = sleeper
    monkeypatch.setattr(sampler, "_sleep_level", 1)
    sampler.sleep()
    requests = requests_of(2)
    assert largest_gap(tiny_model(seed=1), requests, drain(sampler, requests), 1.0) < 1e-4
    assert events == ["sleep 1", *AWAKE[:2], *AWAKE[3:]]


@vllm
def test_a_working_engine_does_not_sleep(sleeper):
    sampler, events = sleeper
    sampler.submit(requests_of(1)[0])
    with pytest.raises(SamplerError, match="in flight"):
        sampler.sleep()
    assert events == []
    sampler.release(0)


@vllm
def test_level_0_never_sleeps(sleeper, monkeypatch):
    sampler, events = sleeper
    monkeypatch.setattr(sampler, "_sleep_level", 0)
    sampler.sleep()
    sampler.wake_up()
    assert events == []


def test_a_level_that_vllm_has_not_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"sleep_level is 3; choose 0 \(off\), 1 or 2"):
        VLLMSampler(tmp_path, {2}, sleep_level=3)


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
