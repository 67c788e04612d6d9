from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

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
def served_folder(tmp_path_factory) -> Path:
    """The model of the engines."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed (scripts/install_vllm_cpu.sh)")
    folder = tmp_path_factory.mktemp("model")
    tiny_model(seed=1).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def vllm_engine(served_folder):
    """One engine for all tests: it takes seconds to start. Use `vllm_sampler`."""
    from robustops.rollout.vllm import VLLMSampler

    # So few tokens a step that a third prompt of the longest does not fit beside two others.
    options = {"max_num_batched_tokens": 640}
    sampler = VLLMSampler(served_folder, STOPS, max_in_flight=4, max_model_len=512, engine=options)
    yield sampler
    sampler.close()


@pytest.fixture
def vllm_sampler(vllm_engine):
    """The engine with the weights of `tiny_model(seed=1)` at temperature 1, whatever a test did to it."""
    vllm_engine.temperature = 1.0
    vllm_engine.sync(tiny_model(seed=1).state_dict().items(), version=0)
    return vllm_engine


@pytest.fixture(scope="session")
def vllm_server(served_folder) -> Iterator[str]:
    """Address of one server for all tests. Use `new_server_sampler`."""
    from robustops.rollout.vllm_serve import serve

    with serve(served_folder, max_model_len=512, max_in_flight=4) as url:
        yield url


@pytest.fixture
def new_server_sampler(vllm_server, tmp_path) -> Iterator[Callable]:
    """Makes samplers on the server, which has the weights of `tiny_model(seed=1)`; see `ServedModel`."""
    from robustops.rollout.vllm_server import ServedModel, VLLMServerSampler

    model = tiny_model(seed=1)
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    served = ServedModel(shapes, tied=True, vocab_size=512)
    made: list[VLLMServerSampler] = []

    def make(**options) -> VLLMServerSampler:
        options = {"sync_folder": tmp_path / "sync", **options}
        made.append(VLLMServerSampler([vllm_server], served, STOPS, **options))
        return made[-1]

    make().sync(model.state_dict().items(), version=0)
    yield make
    for sampler in made:
        sampler.close()
