"""The sampler's own duties towards its servers, played by fakes. A real one is in test_vllm_engines.py."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from robustops.errors import ConfigError, SamplerError
from robustops.rollout.sampler import NOT_FINITE, Completion, CountsPrefixes, Request
from robustops.rollout.vllm_server import ServedModel, VLLMServerSampler
from tests.rollout.fake_vllm import FakeVLLM, fake_vllm
from tests.tiny_model import drain, prompt, tiny_model

GENERATE = "/inference/v1/generate"
MODEL = tiny_model(width=32)
SHAPES = {name: tuple(weight.shape) for name, weight in MODEL.named_parameters()}
NAMES = set(SHAPES)
SERVED = ServedModel(SHAPES, tied=True, vocab_size=512)
Make = Callable[..., VLLMServerSampler]


@pytest.fixture
def replicas() -> Iterator[list[FakeVLLM]]:
    with fake_vllm(1, 1) as servers:
        yield servers


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[VLLMServerSampler] = []

    def sampler(servers: list[FakeVLLM], **options: object) -> VLLMServerSampler:
        settings = {"sync_folder": tmp_path / "sync", "pause": 0.01, "retries": 3, "timeout": 20.0, **options}
        made.append(VLLMServerSampler([server.url for server in servers], SERVED, {2}, **settings))
        return made[-1]

    yield sampler
    for one in made:
        one.close()


def asked(session: int, seed: int = 0, length: int = 20, budget: int = 4) -> Request:
    return Request(session, prompt(length, seed=seed), budget, seed=session)


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.005)


def poll_until(sampler: VLLMServerSampler, count: int = 1) -> list[Completion]:
    done: list[Completion] = []
    wait_for(lambda: len(done) >= count or done.extend(sampler.poll()) or len(done) >= count)
    return done


# where requests go -------------------------------------------------------------------------------
def test_an_episode_and_its_group_stay_with_one_replica_and_groups_spread(make, replicas):
    sampler = make(replicas)
    for turn in range(3):
        for group in range(6):
            for member in range(4):
                start = prompt(30, seed=group)
                later = prompt(5 * turn, seed=100 * group + member)
                sampler.submit(Request(10 * group + member, start + later, 2, seed=1))
        poll_until(sampler, 24)
    homes = [{tuple(body["token_ids"][:30]) for body in server.bodies(GENERATE)} for server in replicas]
    assert homes[0].isdisjoint(homes[1])
    assert [len(starts) for starts in homes] == [3, 3]
    assert [len(server.bodies(GENERATE)) for server in replicas] == [36, 36]


def test_a_replica_whose_episodes_ended_gets_the_next_ones(make, replicas):
    sampler = make(replicas)
    drain(sampler, [asked(session, seed=session) for session in range(6)])
    for session in (0, 2, 4):  # all of the first replica
        sampler.release(session)
    before = [len(server.bodies(GENERATE)) for server in replicas]
    drain(sampler, [asked(10 + i, seed=50 + i) for i in range(3)])
    after = [len(server.bodies(GENERATE)) for server in replicas]
    assert before == [3, 3] and after == [6, 3]


def test_requests_run_at_once_up_to_the_limit(make, replicas):
    server = replicas[0]
    sampler = make([server], max_in_flight=3)
    server.hold.set()
    for session in range(8):
        sampler.submit(asked(session, seed=session))
    wait_for(lambda: server.open == 3)
    began = time.monotonic()
    assert sampler.poll() == []
    assert time.monotonic() - began < 1.0, "poll must not wait for the server"
    server.hold.clear()
    assert len(poll_until(sampler, 8)) == 8
    assert server.peak == 3


def test_a_released_request_is_dropped_by_the_server(make, replicas):
    server = replicas[0]
    sampler = make([server])
    server.hold.set()
    sampler.submit(asked(0))
    wait_for(lambda: server.open == 1)
    sampler.release(0)
    wait_for(lambda: server.left == 1)
    assert sampler.poll() == []
    sampler.submit(asked(0))  # the session may begin anew
    server.hold.clear()
    assert poll_until(sampler)[0].error is None


# what fails --------------------------------------------------------------------------------------
@pytest.mark.parametrize("statuses", [[503], [429, 429], [500, 502, 408]])
def test_sampling_has_no_effect_and_is_retried(make, replicas, statuses):
    server = replicas[0]
    server.faults[GENERATE] = list(statuses)
    answer = drain(make([server]), [asked(0)])[0]
    assert answer.error is None and len(answer.token_ids) == 4
    assert len(server.bodies(GENERATE)) == len(statuses) + 1


def test_tries_are_bounded_and_the_servers_message_arrives(make, replicas):
    server = replicas[0]
    server.faults[GENERATE] = [503] * 10
    sampler = make([server], retries=2)
    answer = drain(sampler, [asked(0)])[0]
    assert answer.token_ids == () and "503: planted fault 503" in str(answer.error)
    assert len(server.bodies(GENERATE)) == 3
    server.faults.clear()
    assert drain(sampler, [asked(1)])[1].error is None


def test_what_the_server_refuses_is_not_sent_again(make, replicas):
    server = replicas[0]
    server.faults[GENERATE] = [400]
    answer = drain(make([server]), [asked(0)])[0]
    assert "400: planted fault 400" in str(answer.error)
    assert len(server.bodies(GENERATE)) == 1


def test_pauses_between_tries_grow(make, replicas):
    server = replicas[0]
    server.faults[GENERATE] = [503] * 3
    began = time.monotonic()
    drain(make([server], pause=0.1), [asked(0)])
    assert time.monotonic() - began >= 0.1 + 0.2 + 0.4


def test_a_server_that_never_answers_is_an_error_in_time(make, replicas):
    server = replicas[0]
    server.hold.set()
    sampler = make([server], timeout=0.1, retries=1)
    began = time.monotonic()
    answer = drain(sampler, [asked(0)])[0]
    assert "gave no answer in 0.1 s; raise sampler.timeout_s" in str(answer.error)
    assert time.monotonic() - began < 5


def test_a_server_that_is_gone_ends_the_run(make):
    with fake_vllm() as servers:
        sampler = make(servers)
        assert drain(sampler, [asked(0)])[0].error is None
    sampler.submit(asked(1))
    with pytest.raises(SamplerError, match=r"server is gone: .*/generate cannot be reached: ConnectError"):
        poll_until(sampler)


def test_a_whole_run_of_failures_ends_with_the_servers_message(make, replicas):
    server = replicas[0]
    server.faults[GENERATE] = [400] * 3
    sampler = make([server], give_up_after=4)
    drain(sampler, [asked(i) for i in range(3)])
    assert drain(sampler, [asked(9)])[9].error is None, "one answer, and the count starts again"
    server.faults[GENERATE] = [400] * 4
    with pytest.raises(SamplerError, match=r"4 requests in a row failed; last: .*planted fault 400"):
        drain(sampler, [asked(i) for i in range(4)])


def test_log_probs_that_json_cannot_hold_are_an_error_and_no_tokens(make, replicas):
    """NaN and -inf arrive as -9999."""
    replicas[0].log_prob = -9999.0
    answer = drain(make(replicas[:1]), [asked(0)])[0]
    assert answer.error == NOT_FINITE and answer.token_ids == ()


def test_an_aborted_request_is_an_error(make, replicas):
    replicas[0].finish_reason = "abort"
    assert "'abort'" in str(drain(make(replicas[:1]), [asked(0)])[0].error)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (asked(0, length=500, budget=13), r"513 tokens .* holds 512; start the servers with a larger"),
        (Request(0, (5, 512), 5, seed=1), "0 to 511"),
        (Request(0, (), 5, seed=1), "0 to 511"),
    ],
)
def test_a_request_that_does_not_fit_never_reaches_a_server(make, replicas, request_, words):
    answers = drain(make(replicas), [request_, asked(1)])
    assert re.search(words, str(answers[0].error)) and answers[1].error is None
    assert sum(len(server.bodies(GENERATE)) for server in replicas) == 1


# what is refused at the start --------------------------------------------------------------------
def test_log_probs_without_temperature_are_refused(make, replicas):
    """T25: a server's default log-probs leave the temperature out."""
    replicas[1].mode = "raw_logprobs"
    with pytest.raises(ConfigError, match=r"'raw_logprobs'.*--logprobs-mode processed_logprobs"):
        make(replicas)


def test_a_server_without_the_endpoints_says_how_to_start_it(make, replicas):
    replicas[0].faults["/server_info"] = [404]
    with pytest.raises(SamplerError, match=r"VLLM_SERVER_DEV_MODE=1 and --enable-scale-out"):
        make(replicas)


def test_a_server_that_is_not_there_is_named(make):
    with fake_vllm() as servers:
        pass
    with pytest.raises(SamplerError, match=rf"{servers[0].url}/v1/models cannot be reached"):
        make(servers)


@pytest.mark.parametrize("urls", [[], ["127.0.0.1:8000"]])
def test_addresses_must_be_urls(tmp_path, urls):
    with pytest.raises(ConfigError, match=r"sampler\.urls=\[http://127"):
        VLLMServerSampler(urls, SERVED, {2}, sync_folder=tmp_path)


def test_an_unknown_transfer_is_refused(make, replicas):
    with pytest.raises(ConfigError, match="disk, nccl"):
        make(replicas, weight_transfer="carrier pigeon")


def test_the_key_is_sent_and_never_shown(make, replicas, caplog):
    server = replicas[0]
    server.faults[GENERATE] = [401]
    with caplog.at_level(logging.DEBUG):
        answer = drain(make([server], api_key="sk-hidden"), [asked(0)])[0]
    assert server.headers[-1]["authorization"] == "Bearer sk-hidden"
    assert "sk-hidden" not in str(answer.error) + caplog.text


# new weights -------------------------------------------------------------------------------------
NCCL_START = ("/get_world_size", "/init_weight_transfer_engine")
SYNC = [
    "/pause",
    "/update_weight_version",
    "/collective_rpc",
    "/reset_prefix_cache",
    "/update_weight_version",
    "/resume",
    "/weight_info",
]


def test_every_replica_loads_all_weights_and_drops_its_cache(make, replicas, tmp_path):
    """T32: loading comes before the reset, and both while nothing runs."""
    sampler = make(replicas)
    for version in (1, 2):
        sampler.sync(MODEL.named_parameters(), version)
        assert sampler.weight_version == version
    for server in replicas:
        assert server.paths() == SYNC * 2
        assert server.loaded == [NAMES | {"lm_head.weight"}] * 2, (
            "tied heads go along, engines keep them apart"
        )
        assert server.version.startswith("2-")
    kept = [path.name for path in (tmp_path / "sync").iterdir()]
    assert kept == [f"weights-{replicas[0].version}"], "old weights are removed, half-written ones never seen"
    assert drain(sampler, [asked(0)])[0].error is None
    sampler.close()
    assert list((tmp_path / "sync").iterdir()) == []


def test_the_configuration_travels_with_the_weights(make, replicas, tmp_path):
    MODEL.config.save_pretrained(tmp_path / "sync")
    make(replicas).sync(MODEL.named_parameters(), 1)
    (folder,) = (tmp_path / "sync").glob("weights-*")
    loaded = type(MODEL).from_pretrained(folder).state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in MODEL.state_dict().items())


def test_a_partial_sync_is_refused_before_a_server_hears_of_it(make, replicas):
    """T35: vLLM takes 8 of 25 tensors without a word."""
    sampler = make(replicas)
    some = dict(list(MODEL.named_parameters())[:8])
    with pytest.raises(SamplerError, match=rf"lack {len(NAMES) - 8} of {len(NAMES)} names, first 'model\."):
        sampler.sync(some.items(), 1)
    assert sampler.weight_version == 0
    assert replicas[0].paths() == replicas[1].paths() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model.layers.9.mlp.up_proj.weight": torch.zeros(1)}, "1 names that its model has not"),
        ({"model.norm.weight": torch.zeros(0)}, r"has shape \(0,\) instead of \(32,\); gather partitioned"),
    ],
)
def test_weights_of_another_model_or_of_a_shard_are_refused(make, replicas, change, words):
    with pytest.raises(SamplerError, match=words):
        make(replicas).sync({**dict(MODEL.named_parameters()), **change}.items(), 1)
    assert replicas[0].paths() == []


def test_sync_waits_until_no_request_is_in_flight(make, replicas):
    """T33."""
    replicas[0].hold.set()
    sampler = make(replicas[:1])
    sampler.submit(asked(0))
    with pytest.raises(SamplerError, match="in flight"):
        sampler.sync(MODEL.named_parameters(), 1)
    assert "/pause" not in replicas[0].paths()


@pytest.mark.parametrize("step", ["/pause", "/collective_rpc", "/update_weight_version"])
def test_one_replica_that_does_not_take_the_weights_fails_the_sync(make, replicas, step, tmp_path):
    sampler = make(replicas)
    replicas[1].faults = {step: [500], "/resume": [500]}
    words = rf"{replicas[1].url}{step} answered 500: planted fault 500"
    with pytest.raises(SamplerError, match=words) as failed:
        sampler.sync(MODEL.named_parameters(), 1)
    assert sampler.weight_version == 0 and "resume" not in str(failed.value), "the first failure is told"
    if step != "/pause":
        assert [server.paths()[-1] for server in replicas] == ["/resume", "/resume"]
    if step == "/collective_rpc":
        assert "start the vLLM servers anew" in str(failed.value)
        assert list((tmp_path / "sync").iterdir()) == [], "weights that not all have are removed"
        with pytest.raises(SamplerError, match="answered with weights 'unfinished 1-"):
            drain(sampler, [asked(0)])


def test_a_cache_that_cannot_be_dropped_fails_the_sync(make, replicas):
    replicas[1].resets = False
    with pytest.raises(SamplerError, match="could not reset its prefix cache"):
        make(replicas).sync(MODEL.named_parameters(), 1)


def test_the_version_is_read_back(make, replicas):
    """T30: a server that goes on with what it had."""
    replicas[1].keeps_version = True
    with pytest.raises(SamplerError, match=rf"{replicas[1].url} holds weights 'default' after '1-"):
        make(replicas).sync(MODEL.named_parameters(), 1)


def test_a_server_that_went_back_to_its_first_weights_is_noticed_by_its_next_answer(make, replicas):
    """T30: a restart, or another run on the same server."""
    server = replicas[0]
    sampler = make([server])
    sampler.sync(MODEL.named_parameters(), 1)
    assert drain(sampler, [asked(0)])[0].error is None
    server.version = "default"
    with pytest.raises(SamplerError, match=r"answered with weights 'default' instead of '1-.*restarted"):
        drain(sampler, [asked(1)])


def test_a_folder_that_cannot_be_written_is_an_error_before_any_reload(make, replicas, tmp_path):
    (tmp_path / "file").write_text("")
    sampler = make(replicas, sync_folder=tmp_path / "file" / "sync")
    with pytest.raises(SamplerError, match=r"choose another sampler\.sync_folder"):
        sampler.sync(MODEL.named_parameters(), 1)
    assert "/collective_rpc" not in replicas[0].paths()


def test_weights_go_over_nccl_to_all_workers_of_all_replicas(make, monkeypatch):
    """vLLM's own trainer side speaks to the servers; what a GPU would do is recorded instead."""
    engine = pytest.importorskip("vllm.distributed.weight_transfer.nccl_engine")
    groups, sent = [], []

    class Group:
        def __init__(self, info):
            self.info, self.destroyed = info, False
            groups.append(self)

        def destroy(self):
            self.destroyed = True

    def broadcast(iterator, group, **_):
        assert group is groups[0]
        sent.append(dict(iterator))

    monkeypatch.setattr(engine, "open_trainer_endpoint", Group)
    monkeypatch.setattr(engine, "packed_nccl_broadcast_producer", broadcast)
    with fake_vllm(2, 4) as servers:
        sampler = make(servers, weight_transfer="nccl")
        for version in (1, 2):
            sampler.sync(MODEL.named_parameters(), version)
        inits = [server.bodies("/init_weight_transfer_engine") for server in servers]
        assert [len(bodies) for bodies in inits] == [1, 1], "the group is made once"
        infos = [bodies[0]["init_info"] for bodies in inits]
        assert [info["rank_offset"] for info in infos] == [1, 3]
        assert {info["world_size"] for info in infos} == {groups[0].info.world_size} == {7}
        assert {info["master_port"] for info in infos} == {groups[0].info.master_port}
        for server in servers:
            steps = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
            around = [*SYNC[:2], *steps, *SYNC[3:]]
            assert [p for p in server.paths() if p not in NCCL_START] == around * 2
            (info, _) = [body["update_info"] for body in server.bodies("/update_weights")]
            assert set(info["names"]) == NAMES | {"lm_head.weight"}
            shapes = dict(zip(info["names"], info["shapes"], strict=True))
            assert shapes["model.norm.weight"] == [32] and set(info["dtype_names"]) == {"float32"}
        sampler.close()
        assert servers[0].paths()[-1] == "/shutdown_weight_transfer_engine" and groups[0].destroyed
    assert [set(weights) for weights in sent] == [NAMES | {"lm_head.weight"}] * 2
    assert torch.equal(sent[1]["model.norm.weight"], MODEL.model.norm.weight)


def test_nccl_failures_are_sampler_errors(make, monkeypatch, replicas):
    engine = pytest.importorskip("vllm.distributed.weight_transfer.nccl_engine")

    def fail(_):
        raise RuntimeError("no NCCL here")

    monkeypatch.setattr(engine, "open_trainer_endpoint", fail)
    with pytest.raises(SamplerError, match=r"NCCL.*RuntimeError: no NCCL here"):
        make(replicas, weight_transfer="nccl").sync(MODEL.named_parameters(), 1)
    assert replicas[0].paths()[-1] == "/resume"


# what is counted ---------------------------------------------------------------------------------
def test_prefix_hits_are_those_that_the_servers_report(make, replicas):
    sampler = make(replicas)
    assert isinstance(sampler, CountsPrefixes)
    replicas[0].cached, replicas[1].cached = 10, 5
    drain(sampler, [asked(0, seed=0), asked(1, seed=1)])
    assert sampler.prefix_cache_stats() == {"queried_tokens": 40.0, "hit_tokens": 15.0, "hit_rate": 15 / 40}
    assert sampler.prefix_cache_stats() == {}
    replicas[0].cached = replicas[1].cached = None  # not asked to report
    drain(sampler, [asked(2)])
    assert sampler.prefix_cache_stats() == {}
