from __future__ import annotations

import importlib.util

import pytest

from tests.rollout.chat_server import KEY, chat_server
from tests.tiny_model import tiny_model

STOPS = set(range(2, 26))


@pytest.fixture(scope="session")
def chat():
    with chat_server() as server:
        yield server


@pytest.fixture
def api_key(monkeypatch):
    monkeypatch.setenv("TEST_CHAT_KEY", KEY)
    return "TEST_CHAT_KEY"


@pytest.fixture(scope="session")
def vllm_engine(tmp_path_factory):
    """One engine for all tests: it takes seconds to start. Use `vllm_sampler`."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed (scripts/install_vllm_cpu.sh)")
    from robustops.rollout.vllm import VLLMSampler

    folder = tmp_path_factory.mktemp("model")
    tiny_model(seed=1).save_pretrained(folder)
    # So few tokens a step that a third prompt of the longest does not fit beside two others.
    options = {"max_num_batched_tokens": 640}
    sampler = VLLMSampler(folder, STOPS, max_in_flight=4, max_model_len=512, engine=options)
    yield sampler
    sampler.close()


@pytest.fixture
def vllm_sampler(vllm_engine):
    """The engine with the weights of `tiny_model(seed=1)` at temperature 1, whatever a test did to it."""
    vllm_engine.temperature = 1.0
    vllm_engine.sync(tiny_model(seed=1).state_dict().items(), version=0)
    return vllm_engine
