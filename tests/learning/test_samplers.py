from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException

from robustops.errors import ConfigError, SamplerError
from robustops.learning import samplers
from robustops.learning.processes import World
from robustops.learning.samplers import SamplerPool, on_first_process
from robustops.resources import conf_dir
from robustops.rollout.sampler import Request
from robustops.schema import register
from robustops.settings import ModelSettings, SamplerSettings
from robustops.validation import validate
from tests.rollout.fake_vllm import FakeVLLM, fake_vllm
from tests.tiny_model import drain, prompt, tiny_model


def policy_of(model: Any) -> Any:
    return SimpleNamespace(model=model, renderer=SimpleNamespace(stop_ids={2}))


def pool_of(servers: list[FakeVLLM], folder: Path, context: int = 512, **options: Any) -> SamplerPool:
    settings = SamplerSettings(name="vllm_server", urls=[server.url for server in servers], **options)
    return SamplerPool(settings, ModelSettings(context_tokens=context), {}, folder)


@pytest.mark.parametrize("key", ["top_p", "top_k", "min_p"])
def test_truncated_sampling_cannot_be_asked_for(key: str) -> None:
    """T26: its log-probs would be renormalised, and every ratio would carry the mass that was kept."""
    register()
    with (
        initialize_config_dir(str(conf_dir()), version_base="1.3"),
        pytest.raises(ConfigCompositionException, match=f"sampler.{key}"),
    ):
        compose("train", [f"sampler.{key}=0.9"])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("weight_transfer", "pigeon", "one of: disk, nccl"), ("sleep_level", -1, "at least 0")],
)
def test_wrong_settings_are_refused(name: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        validate(SamplerSettings(**{name: value}))


def test_a_pool_hands_each_policys_weights_to_the_same_servers(tmp_path: Path) -> None:
    first, second = tiny_model(width=32, seed=1), tiny_model(width=32, seed=2)
    with fake_vllm(1, 1) as servers:
        pool = pool_of(servers, tmp_path)
        sampler = pool.of(policy_of(first), temperature=0.5)
        label = servers[0].version
        again = pool.of(policy_of(second))
        assert again is sampler and servers[0].version != label, "versions are both 0, weights are not"
        assert [len(server.loaded) for server in servers] == [2, 2]
        drain(again, [Request(0, prompt(10, seed=1), 4, seed=5)])
        (body,) = servers[0].bodies("/inference/v1/generate")
        assert body["sampling_params"]["temperature"] == 1.0
        assert body["sampling_params"]["stop_token_ids"] == [2]
        pool.close()
    assert not list((tmp_path / "engine_weights").glob("weights-*"))


def test_servers_with_a_shorter_context_are_refused_before_anything_is_sampled(tmp_path: Path) -> None:
    with fake_vllm() as servers:
        pool = pool_of(servers, tmp_path, context=513)
        with pytest.raises(ConfigError, match=r"hold 512 tokens.*start them with --max-model-len 513"):
            pool.of(policy_of(tiny_model(width=32)))
        assert servers[0].loaded == []
        pool.close()


def test_the_key_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_VLLM_KEY", "sk-one")
    with fake_vllm() as servers:
        pool = pool_of(servers, tmp_path, api_key_env="TEST_VLLM_KEY")
        pool.of(policy_of(tiny_model(width=32)))
        assert {headers["authorization"] for headers in servers[0].headers} == {"Bearer sk-one"}
        pool.close()


def test_addresses_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sampler\.urls=\[http"):
        pool_of([], tmp_path).of(policy_of(tiny_model(width=32)))


@pytest.mark.parametrize("failure", [None, SamplerError("the server is gone")])
def test_one_process_sends_the_weights_and_all_share_what_comes_of_it(
    monkeypatch: pytest.MonkeyPatch, failure: SamplerError | None
) -> None:
    """Two processes, one after the other: the second one gets what the first one put out."""
    events: list[str] = []
    sent: list[list[Any]] = []

    def act() -> str:
        events.append("act")
        if failure is not None:
            raise failure
        return "7-abc"

    def gathered(items: list[Any]) -> list[list[Any]]:
        sent.append(items)
        return [sent[0], []]

    monkeypatch.setattr(samplers, "gather_objects", gathered)
    monkeypatch.setattr(samplers, "barrier", lambda: events.append("barrier"))
    for rank in (0, 1):
        monkeypatch.setattr(samplers, "world", lambda rank=rank: World(rank, 2))
        if failure is None:
            assert on_first_process(act) == "7-abc"
        else:
            with pytest.raises(SamplerError, match="the server is gone"):
                on_first_process(act)
    assert events == ["barrier", "act", "barrier"]


def test_a_process_alone_asks_nobody() -> None:
    assert on_first_process(lambda: "x") == "x"
