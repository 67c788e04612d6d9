"""A real vLLM server on loopback. What all samplers share is in test_sampler_contract.py."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from robustops.errors import ConfigError, SamplerError, TrainingError
from robustops.learning.sync_probe import SyncProbe
from robustops.rollout import vllm_serve
from robustops.rollout.sampler import NOT_FINITE, Request
from robustops.rollout.vllm_serve import serve, server_command
from tests.tiny_model import drain, largest_gap, prompt, shake, tiny_model

vllm = pytest.mark.vllm
CPU = torch.device("cpu")


def requests_of(count: int, budget: int = 24) -> list[Request]:
    return [Request(i, prompt(40 + 9 * i, seed=i), budget, seed=1000 + i) for i in range(count)]


@vllm
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_the_trainers_before_and_after_updates(new_server_sampler, temperature):
    """T25, T30, T34: exact ids, log-probs with the temperature, weights reloaded from disk several times."""
    sampler = new_server_sampler(temperature=temperature)
    trained, requests = tiny_model(seed=1), requests_of(4, budget=12)
    for version in (1, 2):
        answers = drain(sampler, requests)
        assert largest_gap(trained, requests, answers, temperature) < 1e-4
        shake(trained, seed=version)
        assert largest_gap(trained, requests, answers, temperature) > 1e-2, "the update must be visible"
        sampler.sync(trained.named_parameters(), version)
    assert largest_gap(trained, requests, drain(sampler, requests), temperature) < 1e-4


@vllm
def test_server_and_engine_in_process_sample_the_same_tokens(new_server_sampler, vllm_sampler):
    requests = requests_of(4)
    served, own = drain(new_server_sampler(), requests), drain(vllm_sampler, requests)
    assert [served[i].token_ids for i in range(4)] == [own[i].token_ids for i in range(4)]


@vllm
def test_a_server_that_did_not_reload_is_caught_by_the_probe(new_server_sampler, monkeypatch):
    """T30: the version advances, the weights do not."""
    sampler, trained = new_server_sampler(), tiny_model(seed=1)
    probe = SyncProbe(prompt(32, seed=2), tolerance=1e-4)
    shake(trained, seed=1)
    sampler.sync(trained.named_parameters(), 1)
    assert probe.check(sampler, trained, CPU, 1) < 1e-4
    shake(trained, seed=2)
    with monkeypatch.context() as planted:
        planted.setattr(sampler._transfer, "send", lambda weights, label: None)
        sampler.sync(trained.named_parameters(), 2)
    assert sampler.weight_version == 2
    with pytest.raises(TrainingError, match="stale, incomplete"):
        probe.check(sampler, trained, CPU, 2)


@vllm
def test_a_cache_of_old_weights_would_be_wrong_and_is_dropped(new_server_sampler, monkeypatch):
    """T32."""
    sampler, trained = new_server_sampler(), tiny_model(seed=1)
    requests = [Request(i, prompt(300, seed=5), 10, seed=i) for i in range(3)]
    drain(sampler, requests)
    shake(trained, seed=1)
    post = sampler._replicas.post

    def keep(path, *args, **kwargs):
        # A pause that waits for other clients drops the cache as well.
        kept = ("/reset_prefix_cache", "/pause", "/resume")
        return [{"success": True}] if path in kept else post(path, *args, **kwargs)

    with monkeypatch.context() as planted:
        planted.setattr(sampler._replicas, "post", keep)
        sampler.sync(trained.named_parameters(), 1)
    stale = largest_gap(trained, requests, drain(sampler, requests), 1.0)
    sampler.sync(trained.named_parameters(), 2)
    assert largest_gap(trained, requests, drain(sampler, requests), 1.0) < 1e-4
    assert stale > 1e-2


@vllm
def test_requests_of_another_client_end_before_the_weights_change(new_server_sampler):
    """T33: no message is sampled from two sets of weights."""
    one, other = new_server_sampler(), new_server_sampler()
    one.stop_ids = []
    requests = [Request(i, prompt(40, seed=i), 400, seed=i) for i in range(3)]
    began = time.monotonic()
    drain(one, requests)
    usual = time.monotonic() - began
    for request in requests:
        one.submit(request)
    time.sleep(usual / 4)  # they are being sampled
    old, new = tiny_model(seed=1), tiny_model(seed=1)
    shake(new, seed=4)
    other.sync(new.named_parameters(), 1)
    answers = drain_open(one, 3)
    assert [len(answer.token_ids) for answer in answers.values()] == [400] * 3
    gaps = [[largest_gap(m, [r], answers, 1.0) for m in (old, new)] for r in requests]
    assert all(min(gap) < 1e-4 < 1e-2 < max(gap) for gap in gaps)
    assert any(gap[0] < 1e-4 for gap in gaps), "none was in flight"


def drain_open(sampler, count):
    """Answers to what was submitted before."""
    answers = {}
    until = time.monotonic() + 60
    while len(answers) < count and time.monotonic() < until:
        answers |= {answer.session: answer for answer in sampler.poll()}
    return answers


@vllm
def test_a_sampler_notices_that_another_run_uses_its_server(new_server_sampler):
    one, other = new_server_sampler(), new_server_sampler()
    one.sync(tiny_model(seed=1).named_parameters(), 1)
    assert drain(one, requests_of(1))[0].error is None
    other.sync(tiny_model(seed=2).named_parameters(), 1)
    with pytest.raises(SamplerError, match=r"instead of '1-.*give each run its own servers"):
        drain(one, requests_of(1))


@vllm
def test_broken_weights_give_an_error_and_no_tokens(new_server_sampler):
    weights = {name: tensor.clone() for name, tensor in tiny_model(seed=1).state_dict().items()}
    weights["model.norm.weight"].fill_(float("nan"))
    sampler = new_server_sampler()
    sampler.sync(weights.items(), 1)
    assert {a.error for a in drain(sampler, requests_of(2, budget=3)).values()} == {NOT_FINITE}


@vllm
def test_the_models_own_end_of_text_does_not_end_a_message(new_server_sampler):
    sampler, model = new_server_sampler(temperature=0.0), tiny_model(seed=1)
    with torch.no_grad():  # a head that says nothing but id 1, the config's end of text
        model.model.norm.weight.zero_()
    sampler.sync(model.named_parameters(), 1)
    answer = drain(sampler, [Request(0, prompt(8, seed=1), 7, seed=1)])[0]
    assert len(answer.token_ids) == 7 and not answer.finished


def test_a_server_that_cannot_start_shows_its_last_words(tmp_path, monkeypatch):
    tiny_model(width=32).save_pretrained(tmp_path)
    monkeypatch.setattr(vllm_serve, "_MODULE", "robustops.no_such_module")
    with (
        pytest.raises(SamplerError, match=r"ended with status 1; .*output:(.|\n)*no_such_module"),
        serve(tmp_path),
    ):
        pass


def test_a_server_that_is_never_ready_is_given_up(tmp_path, monkeypatch):
    tiny_model(width=32).save_pretrained(tmp_path)
    monkeypatch.setattr(vllm_serve, "server_command", lambda *_, **__: ["sleep", "60"])
    began = time.monotonic()
    with pytest.raises(SamplerError, match="is not ready"), serve(tmp_path, patience=0.3):
        pass
    assert time.monotonic() - began < 10


STARTER = """
import sys, time
from pathlib import Path
from robustops.rollout import vllm_serve
vllm_serve.server_command = lambda *_, **__: ["sleep", "600"]
vllm_serve._wait = lambda process, *_: print(process.pid, flush=True)
with vllm_serve.serve(Path(sys.argv[1])):
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a child that its parent died")
def test_a_server_does_not_outlive_a_trainer_that_was_killed(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    command = [sys.executable, "-c", STARTER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        server = psutil.Process(int(trainer.stdout.readline()))
        while server.name() != "sleep":
            time.sleep(0.01)
        trainer.kill()
    assert psutil.wait_procs([server], timeout=10)[0] == [server]


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json is missing"), serve(tmp_path):
        pass


def test_a_command_line_holds_what_a_trainer_needs():
    line = " ".join(server_command(Path("my model"), 8000, max_model_len=1536, arguments=["--api-key", "k"]))
    for flag in (
        "--model my model",
        "--logprobs-mode processed_logprobs",
        "--enable-prefix-caching",
        "--enable-scale-out",
        "--generation-config vllm",
        "--max-model-len 1536",
        "--api-key k",
    ):
        assert flag in line
