from __future__ import annotations

import pytest

from robustops.errors import SamplerError, TrainingError
from robustops.records import ToolCall
from robustops.rollout.collector import Collector, valid_episodes
from robustops.rollout.episode import EpisodeStart, Limits
from robustops.rollout.render import Renderer, call_text
from robustops.rollout.sampler import Completion
from tests.rollout.fake_sampler import FakeSampler, TokenExpert
from tests.tiny_model import tiny_renderer
from tests.toy_domain import TOY, toy_task, toy_tasks

LIST = call_text(ToolCall("list_boxes", {}))
LIMITS = Limits(4000, 200, 12)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return tiny_renderer()


def starts_of(count: int) -> list[EpisodeStart]:
    return [EpisodeStart(task, "clean", i, seed=i) for i, task in enumerate(toy_tasks(count)[:count])]


def collector_of(sampler, renderer, max_in_flight=64, limits=LIMITS) -> Collector:
    return Collector(sampler, renderer, {"toy": TOY}, limits, max_in_flight=max_in_flight)


def lists_then_answers(request, turn):
    return LIST if turn == 0 else f"Bye from {request.session}."


def test_results_come_in_the_order_of_the_starts(renderer):
    # The later an episode begins, the sooner it is answered.
    sampler = FakeSampler(renderer, lists_then_answers, delay=lambda request, turn: 20 - request.session)
    ended = []
    runs = collector_of(sampler, renderer).run(starts_of(6), lambda run: ended.append(run.start.index))
    assert [run.start.index for run in runs] == list(range(6))
    assert [run.episode.index for run in runs] == list(range(6))
    assert [run.episode.turns[-1].text for run in runs] == [f"Bye from {i}." for i in range(6)]
    assert ended == [5, 4, 3, 2, 1, 0]


def test_whoever_has_its_tool_reply_goes_on_at_once(renderer):
    # Session 0 needs ten polls for its first message, sessions 1 and 2 need one for each of theirs.
    sampler = FakeSampler(renderer, lists_then_answers, delay=lambda r, turn: 10 if r.session == 0 else 1)
    collector_of(sampler, renderer).run(starts_of(3))
    answered = sampler.events.index(("answer", 0))
    for session in (1, 2):
        assert ("release", session) in sampler.events[:answered]
        assert sampler.events.count(("submit", session)) == 2
        again = [i for i, event in enumerate(sampler.events) if event == ("submit", session)][1]
        first = sampler.events.index(("answer", session))
        assert again < answered and again > first
        # Nothing is polled between a tool's reply and the next request of the same episode.
        assert not [e for e in sampler.events[first + 1 : again] if e[0] == "answer" and e[1] == session]


def test_a_request_is_submitted_before_the_next_answer_of_the_same_poll_is_taken(renderer):
    sampler = FakeSampler(renderer, lists_then_answers)
    collector_of(sampler, renderer).run(starts_of(2))
    submits = [event for event in sampler.events if event[0] == "submit"]
    assert submits == [("submit", 0), ("submit", 1), ("submit", 0), ("submit", 1)]


def test_no_more_episodes_are_open_than_allowed_and_a_free_place_is_filled_at_once(renderer):
    sampler = FakeSampler(renderer, lists_then_answers, delay=lambda request, turn: 1 + request.session % 3)
    runs = collector_of(sampler, renderer, max_in_flight=3).run(starts_of(9))
    assert len(runs) == 9
    open_now, most = set(), 0
    for kind, session in sampler.events:
        if kind == "submit":
            open_now.add(session)
            most = max(most, len(open_now))
        elif kind == "release":
            open_now.remove(session)
    assert most == 3 and not open_now
    released = [session for kind, session in sampler.events if kind == "release"]
    assert sorted(released) == list(range(9)), "each session is released once"
    # Before all of the first three have ended, the fourth has begun.
    begun = sampler.events.index(("submit", 3))
    assert begun < max(sampler.events.index(("release", session)) for session in range(3))


@pytest.mark.parametrize("in_flight", [1, 3, 64])
def test_episodes_do_not_depend_on_how_many_are_in_flight(renderer, in_flight):
    sampler = TokenExpert(renderer, {"toy": TOY}, gives_up=0.2)
    starts = [start for n, t in enumerate(toy_tasks(4)) for start in [EpisodeStart(t, "clean", 0, n)] * 2]
    collector = collector_of(sampler, renderer, in_flight)
    episodes = [run.episode for run in collector.run(starts)]
    expected = [collector_of(sampler, renderer).run([start])[0].episode for start in starts]
    assert episodes == expected
    # Equal starts side by side, in worlds that share nothing and are used again.
    assert [run.episode for run in collector.run(starts)] == expected
    assert {episode.success for episode in episodes} == {True, False}
    collector.close()


def test_worlds_are_used_again_but_never_by_two_at_once(renderer):
    sampler = FakeSampler(renderer, lists_then_answers)
    collector = collector_of(sampler, renderer, max_in_flight=2)
    runs = collector.run(starts_of(6))
    worlds = {id(run.world.world) for run in runs}
    assert len(worlds) == 2
    assert len({run.session for run in [*runs, *collector.run(starts_of(6))]}) == 12


def test_an_episode_that_cannot_begin_is_finished_without_the_sampler(renderer):
    sampler = FakeSampler(renderer, lists_then_answers)
    runs = collector_of(sampler, renderer, limits=Limits(30, 10, 5)).run(starts_of(5))
    assert [run.episode.stop for run in runs] == ["context"] * 5
    assert not sampler.requests
    assert collector_of(sampler, renderer).run([]) == []


def test_one_failed_request_spoils_one_episode(renderer):
    def say(request, turn):
        return Completion(request.session, error="no route") if request.session == 1 else "Bye."

    runs = collector_of(FakeSampler(renderer, say), renderer).run(starts_of(3))
    episodes = valid_episodes(runs, what="test")
    assert [e.error is not None for e in episodes] == [False, True, False]
    assert episodes[1].error.boundary == "sampler" and episodes[1].error.message == "no route"
    assert [e.stop for e in episodes] == ["final_answer", "error", "final_answer"]


def test_none_completed_is_an_error_with_the_first_message(renderer):
    def say(request, turn):
        return Completion(request.session, error=f"failure {request.session}")

    runs = collector_of(FakeSampler(renderer, say), renderer).run(starts_of(3))
    with pytest.raises(TrainingError, match=r"GRPO step 4: none of 3 episodes completed.*failure 0"):
        valid_episodes(runs, what="GRPO step 4")
    assert valid_episodes([], what="nothing") == []


def test_an_answer_to_a_foreign_session_is_an_error(renderer):
    sampler = FakeSampler(renderer, lambda request, turn: Completion(99, (1,), (0.0,)))
    with pytest.raises(SamplerError, match=r"not open.*99"):
        collector_of(sampler, renderer).run(starts_of(1))


def test_a_dead_engine_is_an_error_of_the_whole_collection(renderer):
    class Dead(FakeSampler):
        def poll(self):
            raise SamplerError("engine gone")

    with pytest.raises(SamplerError, match="engine gone"):
        collector_of(Dead(renderer, lists_then_answers), renderer).run(starts_of(2))


def test_episodes_carry_the_samplers_weight_version(renderer):
    sampler = FakeSampler(renderer, lists_then_answers)
    collector = collector_of(sampler, renderer)
    assert {run.episode.weight_version for run in collector.run(starts_of(2))} == {0}
    sampler.sync([], 7)
    assert {run.episode.weight_version for run in collector.run(starts_of(2))} == {7}


def test_an_observed_episode_lists_where_faults_could_strike(renderer):
    task = toy_task("close_note")
    sampler = TokenExpert(renderer, {"toy": TOY})
    starts = [EpisodeStart(task, "fault", 0, 1, observe=True), EpisodeStart(task, "clean", 0, 1)]
    watched, plain = collector_of(sampler, renderer).run(starts)
    assert [o.turn for o in watched.opportunities] == list(range(5)) and plain.opportunities == []
    assert watched.episode.token_ids == plain.episode.token_ids, "observing changes nothing"
