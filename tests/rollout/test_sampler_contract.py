"""What every sampler owes the collector, held against each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from robustops.errors import SamplerError
from robustops.rollout.hf import HFSampler
from robustops.rollout.openai import OpenAISampler
from robustops.rollout.render import chat_tools
from robustops.rollout.sampler import Completion, Request, Sampler
from robustops.rollout.scripted import ScriptedSampler
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import run_expert
from tests.rollout.conftest import STOPS
from tests.tiny_model import drain, prompt, tiny_model
from tests.toy_domain import TOY, toy_tasks

TOKENS = ["hf", *(pytest.param(name, marks=pytest.mark.vllm) for name in ("vllm", "vllm_server"))]
ALL = [*TOKENS, "openai", "scripted"]
SLOTS = 4


@dataclass
class Bench:
    """A sampler under test and what it is asked."""

    sampler: Sampler
    fresh: Callable[[], Sampler]


@pytest.fixture
def bench(request) -> Iterator[Bench]:
    kind = request.param
    made: list[Sampler] = []

    def fresh() -> Sampler:
        if kind == "vllm":
            return request.getfixturevalue("vllm_sampler")
        if kind == "vllm_server":
            made.append(request.getfixturevalue("new_server_sampler")())
            return made[-1]
        if kind == "hf":
            sampler: Sampler = HFSampler(tiny_model(seed=1), STOPS, max_in_flight=SLOTS)
        elif kind == "scripted":
            sampler = ScriptedSampler({"toy": TOY})
        else:
            url, key = request.getfixturevalue("chat").base_url, request.getfixturevalue("api_key")
            sampler = OpenAISampler("words", url, api_key_env=key, max_in_flight=SLOTS)
        made.append(sampler)
        return sampler

    yield Bench(fresh(), fresh)
    for sampler in made:
        sampler.close()


each = pytest.mark.parametrize("bench", ALL, indirect=True)
token_sampler = pytest.mark.parametrize("bench", TOKENS, indirect=True)
text_sampler = pytest.mark.parametrize("bench", ["openai", "scripted"], indirect=True)


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Ten sessions at different points of their episodes; some share their start."""
    world = LocalWorld(TOY)
    start = prompt(20, seed=77)
    made = []
    for i, task in enumerate(toy_tasks(5)):
        run = run_expert(world, TOY, task)
        history = run.calls[: i % (len(run.calls) + 1)]
        messages = [
            {"role": "system", "content": task.policy},
            {"role": "user", "content": f"{task.prompt}{i}"},
        ]
        for call, result in history:
            messages += [
                {"role": "assistant", "content": "", "call": call},
                {"role": "tool", "content": result.text},
            ]
        made.append(
            Request(
                session=100 + i,
                token_ids=(start if i % 2 else ()) + prompt(6 + 5 * i, seed=i),
                max_new_tokens=(3, 12, 40)[i % 3],
                seed=1_000_000_007 * i,
                messages=tuple(messages),
                tools=tuple(chat_tools(TOY.toolset.specs().values())),
                task=task,
                history=tuple(history),
            )
        )
    world.close()
    return made


def content(completion: Completion) -> tuple[object, ...]:
    return completion.token_ids, completion.text, completion.call, completion.finished, completion.error


@each
def test_each_request_is_answered_once_and_then_there_is_nothing(bench, requests):
    answers = drain(bench.sampler, requests)
    assert sorted(answers) == [request.session for request in requests]
    assert all(answer.error is None for answer in answers.values())
    assert bench.sampler.poll() == []


@each
def test_a_sampler_that_was_asked_nothing_has_nothing(bench):
    assert bench.sampler.poll() == []
    bench.sampler.release(5)
    assert bench.sampler.weight_version == 0


@each
def test_answers_depend_on_the_request_alone(bench, requests):
    """Not on the order, nor on what else is in flight, nor on what was asked before."""
    together = drain(bench.sampler, requests)
    for request in requests:
        bench.sampler.release(request.session)
    backwards = drain(bench.sampler, requests[::-1])
    other = bench.fresh()
    for request in requests:
        (alone,) = drain(other, [request]).values()
        other.release(request.session)
        for answer in (together[request.session], backwards[request.session]):
            assert content(answer) == content(alone)
            assert answer.log_probs == pytest.approx(alone.log_probs, abs=1e-4)


@each
def test_sessions_join_while_others_are_under_way(bench, requests):
    expected = {s: content(a) for s, a in drain(bench.sampler, requests).items()}
    for request in requests:
        bench.sampler.release(request.session)
    answers: dict[int, Completion] = {}
    waiting = list(requests)
    while len(answers) < len(requests):
        if waiting:
            bench.sampler.submit(waiting.pop())
        for completion in bench.sampler.poll():
            answers[completion.session] = completion
            bench.sampler.release(completion.session)
    assert {s: content(a) for s, a in answers.items()} == expected


@token_sampler
def test_the_seed_and_nothing_else_makes_the_difference(bench):
    context = prompt(25, seed=1)
    same = [Request(i, context, 30, seed=5) for i in range(3)]
    different = [Request(10 + i, context, 30, seed=i) for i in range(6, 9)]
    answers = drain(bench.sampler, [*same, *different])
    assert len({answers[r.session].token_ids for r in same}) == 1
    assert len({answers[r.session].token_ids for r in (same[0], *different)}) == 4


@token_sampler
def test_budget_end_token_and_finished_flag_agree(bench):
    budgets = (1, 2, 5, 60)
    requests = [Request(i, prompt(12, seed=i), budgets[i % 4], seed=i) for i in range(24)]
    answers = drain(bench.sampler, requests)
    for request in requests:
        answer = answers[request.session]
        assert 1 <= len(answer.token_ids) <= request.max_new_tokens
        assert len(answer.log_probs) == len(answer.token_ids)
        assert all(log_prob <= 0 for log_prob in answer.log_probs)
        assert answer.finished == (answer.token_ids[-1] in STOPS)
        assert not any(token in STOPS for token in answer.token_ids[:-1])
        assert answer.finished or len(answer.token_ids) == request.max_new_tokens
    assert {a.finished for a in answers.values()} == {True, False}, "both ways to end must occur"


@token_sampler
def test_a_later_turn_is_what_a_new_session_would_get(bench):
    first = Request(0, prompt(30, seed=3), 10, seed=3)
    answer = drain(bench.sampler, [first])[0]
    longer = first.token_ids + answer.token_ids + prompt(11, seed=4)
    second = drain(bench.sampler, [Request(0, longer, 10, seed=9)])[0]
    new = drain(bench.sampler, [Request(1, longer, 10, seed=9)])[1]
    assert second.token_ids == new.token_ids
    assert second.log_probs == pytest.approx(new.log_probs, abs=1e-4)


@each
def test_a_released_session_is_not_answered(bench, requests):
    for request in requests:
        bench.sampler.submit(request)
    gone = requests[-1].session
    bench.sampler.release(gone)
    kept = {request.session for request in requests} - {gone}
    seen = set()
    for _ in range(2000):
        seen |= {completion.session for completion in bench.sampler.poll()}
        if seen >= kept:
            break
    assert seen == kept
    assert bench.sampler.poll() == []


@token_sampler
def test_weights_wait_until_nothing_is_in_flight(bench):
    weights = tiny_model(seed=1).state_dict()
    for session in range(3 * SLOTS):  # more than one poll can answer
        bench.sampler.submit(Request(session, prompt(10, seed=session), 60, seed=session))
    with pytest.raises(SamplerError, match="in flight"):
        bench.sampler.sync(weights.items(), 1)
    bench.sampler.poll()
    with pytest.raises(SamplerError, match="in flight"):
        bench.sampler.sync(weights.items(), 1)
    for session in range(3 * SLOTS):
        bench.sampler.release(session)
    bench.sampler.sync(weights.items(), 1)
    assert bench.sampler.weight_version == 1


@token_sampler
def test_branches_of_one_snapshot_share_their_start(bench):
    """Their common context is read once, the others find it in the cache."""
    bench.sampler.prefix_cache_stats()
    snapshot = prompt(400, seed=21)
    answers = drain(bench.sampler, [Request(i, snapshot, 4, seed=i) for i in range(4)])
    stats = bench.sampler.prefix_cache_stats()
    assert stats["queried_tokens"] == 1600
    assert 0.7 < stats["hit_rate"] == stats["hit_tokens"] / 1600 <= 0.75, "three of four"
    assert len({answer.token_ids for answer in answers.values()}) > 1
    for i in range(4):
        bench.sampler.release(i)
    drain(bench.sampler, [Request(9, prompt(400, seed=22), 4, seed=9)])
    assert bench.sampler.prefix_cache_stats()["hit_rate"] == 0, "counts since the last call, and no more"
    assert bench.sampler.prefix_cache_stats() == {}


@token_sampler
def test_a_later_turn_reads_only_what_is_new(bench):
    context = prompt(400, seed=31)
    answer = drain(bench.sampler, [Request(0, context, 4, seed=3)])[0]
    bench.sampler.prefix_cache_stats()
    drain(bench.sampler, [Request(0, context + answer.token_ids + prompt(8, seed=32), 4, seed=4)])
    assert bench.sampler.prefix_cache_stats()["hit_rate"] > 0.9


@text_sampler
def test_text_samplers_have_no_tokens_and_no_weights(bench, requests):
    assert not bench.sampler.produces_tokens
    answers = drain(bench.sampler, requests)
    assert all(a.token_ids == () and a.log_probs == () for a in answers.values())
    assert all((a.text is None) != (a.call is None) or a.text == "" for a in answers.values())
    with pytest.raises(SamplerError):
        bench.sampler.sync([], 1)
