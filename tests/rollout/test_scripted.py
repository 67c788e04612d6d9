from __future__ import annotations

import pytest

from robustops.errors import SamplerError
from robustops.records import ToolCall, ToolResult
from robustops.rollout.collector import Collector
from robustops.rollout.episode import EpisodeStart, Limits
from robustops.rollout.render import parse_message
from robustops.rollout.sampler import Request
from robustops.rollout.scripted import ScriptedSampler
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import run_expert
from tests.tiny_model import drain, tiny_renderer
from tests.toy_domain import TOY, toy_task, toy_tasks


def ask(task, history=(), session=0) -> Request:
    return Request(session, (1,), 32, seed=0, task=task, history=tuple(history))


def test_it_makes_the_experts_calls_one_after_the_other():
    world = LocalWorld(TOY)
    sampler = ScriptedSampler({"toy": TOY})
    for task in toy_tasks(3):
        run = run_expert(world, TOY, task)
        for length, (call, _) in enumerate(run.calls):
            answer = drain(sampler, [ask(task, run.calls[:length])])[0]
            assert answer.call == call and answer.finished and answer.token_ids == ()
        last = drain(sampler, [ask(task, run.calls)])[0]
        assert last.call is None and last.text == run.answer
    world.close()


def test_whole_episodes_succeed_and_carry_no_trained_tokens():
    renderer = tiny_renderer()
    collector = Collector(
        ScriptedSampler({"toy": TOY}), renderer, {"toy": TOY}, Limits(20_000, 500, 12), max_in_flight=3
    )
    tasks = toy_tasks(4)
    runs = collector.run([EpisodeStart(task, "clean", i, seed=i) for i, task in enumerate(tasks)])
    collector.close()
    for task, run in zip(tasks, runs, strict=True):
        episode = run.episode
        assert episode is not None and episode.case_id == task.case_id
        assert episode.success and episode.stop == "final_answer" and episode.error is None
        assert set(episode.old_log_probs) == {0.0}
        for turn in episode.turns:
            ids = episode.token_ids[turn.start : turn.end]
            assert ids[-1] in renderer.stop_ids
            assert renderer.parse(ids) == parse_message(turn.text)


def test_an_expert_without_an_answer_makes_the_episode_invalid():
    task = toy_task("close_note")
    first = ToolCall("list_boxes", {"name": task.plan["box"]})
    refused = ToolResult('{"error":{"code":"FORBIDDEN","message":"no"}}', is_error=True)
    answer = drain(ScriptedSampler({"toy": TOY}), [ask(task, [(first, refused)])])[0]
    assert answer.call is None and answer.text is None
    assert answer.error is not None and task.id in answer.error and "FORBIDDEN" in answer.error


def test_a_domain_that_was_not_given_is_named():
    sampler = ScriptedSampler({"other": TOY})
    sampler.submit(ask(toy_task()))
    with pytest.raises(SamplerError, match=r"no domain 'toy' .* it has: other"):
        sampler.poll()


def test_a_request_without_a_task_is_refused():
    sampler = ScriptedSampler({"toy": TOY})
    sampler.submit(ask(None))
    with pytest.raises(SamplerError, match="needs the task"):
        sampler.poll()


def test_it_has_no_weights():
    with pytest.raises(SamplerError, match="sampler=hf"):
        ScriptedSampler({"toy": TOY}).sync([], 1)
