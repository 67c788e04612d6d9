from __future__ import annotations

from collections import Counter

import pytest

from robustops.errors import TrainingError
from robustops.faults.manifest import build_manifest
from robustops.faults.plan import SUBTYPES
from robustops.learning.demonstrations import collect_episodes, demonstration_starts, to_demonstrations
from robustops.records import ToolCall
from robustops.rewards.parts import reward_parts
from robustops.rollout.collector import Collector
from robustops.rollout.episode import EpisodeStart, Limits
from robustops.rollout.render import call_text
from robustops.rollout.sampler import Completion
from robustops.rollout.scripted import ScriptedSampler
from tests.rollout.fake_sampler import FakeSampler, TokenExpert
from tests.tiny_model import tiny_renderer
from tests.toy_domain import TOY, toy_task, toy_tasks

RENDERER = tiny_renderer()
DOMAINS = {"toy": TOY}
TASKS = toy_tasks(12)


@pytest.fixture(scope="module")
def manifest():
    return build_manifest(TASKS, DOMAINS, SUBTYPES, seed=2)


def collector_of(sampler=None, max_turns=14) -> Collector:
    return Collector(sampler or ScriptedSampler(DOMAINS), RENDERER, DOMAINS, Limits(6000, 300, max_turns))


def test_a_share_of_the_cases_meets_its_fault(manifest):
    none = demonstration_starts(TASKS, manifest, 0.0, seed=1)
    assert {(s.condition, s.plan) for s in none} == {("clean", None)}
    every = demonstration_starts(TASKS, manifest, 1.0, seed=1)
    assert [s.plan for s in every] == [manifest.plan(task.case_id) for task in TASKS]
    assert all((s.condition == "fault") == (s.plan is not None) for s in every)
    half = Counter(s.condition for s in demonstration_starts(TASKS, manifest, 0.5, seed=1))
    assert 4 <= half["fault"] <= 20 and half.total() == 24
    assert {s.plan for s in demonstration_starts(TASKS, None, 1.0, seed=1)} == {None}


def test_a_start_depends_on_its_case_and_the_seed_only(manifest):
    forward = demonstration_starts(TASKS, manifest, 0.5, seed=1)
    backward = demonstration_starts(TASKS[::-1], manifest, 0.5, seed=1)
    assert forward == backward[::-1]
    assert demonstration_starts(TASKS, manifest, 0.5, seed=2) != forward
    assert len({start.seed for start in forward}) == len(TASKS)
    assert {s.index for s in demonstration_starts(TASKS, None, 0, 1, index=3)} == {3}
    # A larger share keeps the faults of a smaller one.
    less = {s.task.case_id for s in demonstration_starts(TASKS, manifest, 0.3, 1) if s.plan}
    more = {s.task.case_id for s in demonstration_starts(TASKS, manifest, 0.6, 1) if s.plan}
    assert less < more


def test_the_expert_demonstrates_every_case_clean_and_under_faults(manifest):
    starts = demonstration_starts(TASKS, manifest, 0.5, seed=1)
    ended = []
    episodes = collect_episodes(collector_of(), starts, ended.append)
    assert len(ended) == len(episodes) == len(starts)
    for start, episode in zip(starts, episodes, strict=True):
        assert (episode.case_id, episode.condition) == (start.task.case_id, start.condition)
        assert episode.success and episode.reward_parts == reward_parts(start.task, episode)
        assert bool(episode.faults) == (start.plan is not None)
    made = to_demonstrations(episodes)
    assert len(made) == len(starts)
    for demonstration, episode in zip(made, episodes, strict=True):
        assert demonstration.token_ids == episode.token_ids
        spans = set(demonstration.decisions)
        assert spans == {(t.start, t.end) for t in episode.turns}, "the expert makes no bad call"
        trained = {place for place, kept in enumerate(demonstration.loss_mask) if kept}
        assert trained == {place for start, end in spans for place in range(start, end)}


def test_bad_calls_are_context_but_not_trained():
    task = toy_task("file_note", seed=4)
    expert = TokenExpert(RENDERER, DOMAINS)
    wrong = [
        "<tool_call>{",  # unreadable
        call_text(ToolCall("fly", {})),  # unknown tool
        *[call_text(ToolCall("list_boxes", {"limit": 1}))] * 3,  # the third brings nothing new
    ]

    class Clumsy(FakeSampler):
        produces_tokens = False

    def say(request, turn):
        return wrong[turn] if turn < len(wrong) else expert.speak(request, turn)

    (episode,) = collect_episodes(collector_of(Clumsy(RENDERER, say)), [EpisodeStart(task, "clean", 0, 1)])
    assert episode.success and episode.reward_parts.quality < 1
    (made,) = to_demonstrations([episode])
    bad = [0, 1, 4]
    spans = [(t.start, t.end) for n, t in enumerate(episode.turns) if n not in bad]
    assert made.decisions == tuple(spans) and len(spans) == len(episode.turns) - 3
    for number in bad:
        turn = episode.turns[number]
        assert not any(made.loss_mask[turn.start : turn.end])
        assert made.token_ids[turn.start : turn.end] == episode.token_ids[turn.start : turn.end]


def test_failures_errors_and_episodes_without_an_answer_are_left_out():
    tasks = toy_tasks(2)
    starts = [EpisodeStart(task, "clean", 0, seed=n) for n, task in enumerate(tasks)]
    good = collect_episodes(collector_of(), starts)
    failed = collect_episodes(collector_of(TokenExpert(RENDERER, DOMAINS, gives_up=1.0)), starts)
    longest = max(len(episode.turns) for episode in good)
    cut = collect_episodes(collector_of(max_turns=longest - 1), starts)
    unfinished = [e for e in cut if e.success and e.stop == "max_turns"]
    assert unfinished, "all checks hold before the final answer"
    broken = collect_episodes(
        collector_of(FakeSampler(RENDERER, lambda r, turn: Completion(r.session, error="gone"))), starts
    )
    assert broken[0].error is not None and broken[0].reward_parts is None
    everything = [*failed, *unfinished, *broken, *good]
    assert to_demonstrations(everything) == to_demonstrations(good)
    with pytest.raises(TrainingError, match="robustops tasks verify=true"):
        to_demonstrations([*failed, *unfinished, *broken])
