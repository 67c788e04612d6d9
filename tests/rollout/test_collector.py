from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

import pytest

from robustops.errors import ConfigError, RewardError, SamplerError, TrainingError, WorldError
from robustops.records import EpisodeError, ToolCall
from robustops.rewards.parts import reward_parts
from robustops.rollout.collector import Collector, retry_counts, valid_episodes
from robustops.rollout.episode import EpisodeStart, Limits
from robustops.rollout.render import Renderer, call_text
from robustops.rollout.sampler import Completion
from robustops.serving.mcp_world import McpWorld
from robustops.worlds.environment import LocalWorld
from robustops.worlds.expert import error_code
from robustops.worlds.time_limit import TOOL_TIMEOUT
from tests.rollout.fake_sampler import FakeSampler, TokenExpert
from tests.slow_domain import LOG, SLOW, WAKE, slow_task
from tests.tiny_model import tiny_renderer
from tests.toy_domain import TOY, toy_task, toy_tasks

LIST = call_text(ToolCall("list_boxes", {}))
LIMITS = Limits(4000, 200, 12)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return tiny_renderer()


def starts_of(count: int) -> list[EpisodeStart]:
    return [EpisodeStart(task, "clean", i, seed=i) for i, task in enumerate(toy_tasks(count)[:count])]


def collector_of(sampler, renderer, max_in_flight=64, limits=LIMITS, **options) -> Collector:
    return Collector(sampler, renderer, {"toy": TOY}, limits, max_in_flight=max_in_flight, **options)


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

    runs = collector_of(FakeSampler(renderer, say), renderer, retries=0).run(starts_of(3))
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


# failures and further attempts ---------------------------------------------------------------------
class FlakyWorld(LocalWorld):
    """A world whose methods fail as often as `failing` says, counted over all worlds of a test."""

    def __init__(self, domain, failing: dict[str, int], made: list[FlakyWorld], error=WorldError) -> None:
        super().__init__(domain)
        self.failing = failing
        self.error = error
        self.stepped = self.closed = False
        made.append(self)

    def _fail(self, name: str) -> None:
        if self.failing.get(name, 0) > 0:
            self.failing[name] -= 1
            raise self.error(f"{name} is down")

    def reset(self, task) -> None:
        self._fail("reset")
        self.stepped = False
        super().reset(task)

    def step(self, call):
        self._fail("step")
        self.stepped = True
        return super().step(call)

    def evaluate(self, checks):
        self._fail("last evaluate" if self.stepped else "first evaluate")
        return super().evaluate(checks)

    def close(self) -> None:
        self.closed = True
        super().close()


def flaky(failing: dict[str, int], error=WorldError):
    made: list[FlakyWorld] = []
    return partial(FlakyWorld, failing=failing, made=made, error=error), made


def test_nothing_of_a_failed_attempt_is_left_in_its_retry(renderer):
    def say(request, turn):
        if request.session == 1 and turn == 2:
            return Completion(request.session, error="engine hiccup")
        return LIST if turn < 2 else "Bye."

    sampler = FakeSampler(renderer, say)
    runs = collector_of(sampler, renderer).run(starts_of(3))
    clean = collector_of(FakeSampler(renderer, lambda r, turn: LIST if turn < 2 else "Bye."), renderer)
    expected = [run.episode for run in clean.run(starts_of(3))]
    assert [run.episode for run in runs] == expected, "tokens, masks, log-probs and turns of one attempt"
    assert [run.attempts for run in runs] == [1, 2, 1]
    assert runs[1].failures == (EpisodeError("sampler", "engine hiccup"),)
    assert retry_counts(runs) == {"retries_sampler": 1}
    assert runs[1].session == 3 and sampler.events.count(("release", 1)) == 1
    assert len(valid_episodes(runs, what="test")) == 3


def test_a_retry_samples_with_seeds_of_its_own_that_are_the_same_in_every_run(renderer):
    def seeds():
        def say(request, turn):
            return Completion(request.session, error="no") if request.session == 0 and turn else LIST

        sampler = FakeSampler(renderer, say)
        collector_of(sampler, renderer, limits=Limits(4000, 200, 2)).run(starts_of(1))
        return [(request.session, request.seed) for request in sampler.requests]

    asked = seeds()
    assert [session for session, _ in asked] == [0, 0, 1, 1]
    assert len({seed for _, seed in asked}) == 4 and asked == seeds()
    first = FakeSampler(renderer, lists_then_answers)
    collector_of(first, renderer).run(starts_of(1))
    assert [request.seed for request in first.requests] == [seed for _, seed in asked[:2]]


@pytest.mark.parametrize("name", ["reset", "first evaluate", "step", "last evaluate"])
def test_a_world_that_fails_once_costs_one_more_attempt_with_another_world(renderer, name):
    factory, made = flaky({name: 1})
    sampler = FakeSampler(renderer, lists_then_answers)
    collector = collector_of(sampler, renderer, world_factory=factory)
    ended = []
    (run,) = collector.run(starts_of(1), ended.append)
    assert run.episode.error is None and run.episode.stop == "final_answer"
    assert run.failures == (EpisodeError("world", f"{name} is down"),) and ended == [run]
    assert [world.closed for world in made] == [True, False], "a world that failed is not used again"
    assert sampler.events.count(("release", 0)) == 1
    collector.close()


@pytest.mark.parametrize("name", ["reset", "first evaluate", "step", "last evaluate"])
def test_an_episode_that_was_never_scored_is_invalid_and_not_worth_zero(renderer, name):
    factory, _ = flaky({name: 1})
    sampler = FakeSampler(renderer, lists_then_answers)
    starts = starts_of(4)
    runs = collector_of(sampler, renderer, max_in_flight=1, world_factory=factory, retries=0).run(starts)
    episodes = valid_episodes(runs, what="test")
    bad, *good = episodes
    assert bad.error == EpisodeError("world", f"{name} is down") and bad.stop == "error"
    assert bad.checks_final == () and bad.reward_parts is None and not bad.success
    with pytest.raises(RewardError, match=f"world boundary: {name} is down"):
        reward_parts(starts[0].task, bad)
    assert all(
        e.error is None and e.checks_final and len(e.checks_final) == len(e.checks_start) for e in good
    )
    assert [e.index for e in episodes] == [0, 1, 2, 3]


def test_an_outage_makes_episodes_invalid_and_the_next_run_is_healthy(renderer):
    outage = {"step": 10**9}
    factory, made = flaky(outage)
    sampler = FakeSampler(renderer, lambda r, turn: LIST if turn == 0 and r.session % 2 else "Bye.")
    collector = collector_of(sampler, renderer, world_factory=factory, retries=0)
    runs = collector.run(starts_of(6))
    assert [run.episode.error is None for run in runs] == [True, False] * 3
    assert {run.episode.error.message for run in runs[1::2]} == {"step is down"}
    outage.clear()
    assert all(run.episode.error is None for run in collector.run(starts_of(6)))
    assert [world.closed for world in made[:6]] == [False, True] * 3


def test_the_same_failure_is_not_retried_for_every_episode(renderer):
    sampler = FakeSampler(renderer, lambda r, turn: Completion(r.session, error="HTTP 503: no GPU left"))
    collector = collector_of(sampler, renderer, retries=3, retry_share=0.25)
    starts = [EpisodeStart(toy_task(), "clean", index, seed=index) for index in range(200)]
    runs = collector.run(starts)
    assert len(sampler.requests) == 200 + 50
    assert retry_counts(runs) == {"retries_sampler": 50}
    assert max(run.attempts for run in runs) <= 4
    with pytest.raises(TrainingError, match=r"none of 200 episodes completed in 250 .*503: no GPU"):
        valid_episodes(runs, what="GRPO step 1")


def test_one_episode_is_retried_no_more_often_than_allowed(renderer):
    def say(request, turn):
        return Completion(request.session, error=f"failure {request.session}")

    for retries in (0, 1, 3):
        sampler = FakeSampler(renderer, say)
        (run,) = collector_of(sampler, renderer, retries=retries).run(starts_of(1))
        assert run.attempts == len(sampler.requests) == retries + 1
        messages = [error.message for error in (*run.failures, run.episode.error)]
        assert messages == [f"failure {n}" for n in range(retries + 1)]
    with pytest.raises(ConfigError, match="retries=-1"):
        collector_of(sampler, renderer, retries=-1)


def test_a_bug_is_not_retried_but_stops_the_run(renderer):
    factory, made = flaky({"step": 1}, error=KeyError)
    sampler = FakeSampler(renderer, lists_then_answers)
    with pytest.raises(KeyError, match="step is down"):
        collector_of(sampler, renderer, world_factory=factory).run(starts_of(2))
    assert len(made) == 2


def test_a_write_whose_outcome_is_unknown_is_made_once(renderer):
    made: list[ToolCall] = []

    class CommitsThenFails(LocalWorld):
        def step(self, call):
            result = super().step(call)
            made.append(call)
            if call.name == "create_note":
                raise WorldError("connection reset")
            return result

    write = call_text(ToolCall("create_note", {"box_id": "B1", "title": "x"}))
    sampler = FakeSampler(renderer, lambda request, turn: write if turn == 0 else "Bye.")
    collector = collector_of(sampler, renderer, world_factory=CommitsThenFails, retries=0)
    (run,) = collector.run([EpisodeStart(toy_task("file_note"), "clean", 0, seed=1)])
    assert [call.name for call in made] == ["create_note"]
    assert run.episode.error == EpisodeError("world", "connection reset")


def test_a_tool_that_sleeps_forever_delays_its_episode_and_ends_as_a_receipt(renderer):
    WAKE.clear()
    wait = call_text(ToolCall("wait_and_create", {"title": "y"}))
    look = call_text(ToolCall("list_notes", {}))

    def say(request, turn):
        return [wait if request.session == 1 else LIST, look, "Bye."][turn]

    collector = Collector(
        FakeSampler(renderer, say),
        renderer,
        {"toy": SLOW},
        Limits(8000, 200, 12),
        world_factory=partial(LocalWorld, tool_timeout_s=0.2),
    )
    starts = [EpisodeStart(slow_task(), "clean", index, seed=index) for index in range(3)]
    began = time.monotonic()
    runs = collector.run(starts)
    assert time.monotonic() - began < 5
    WAKE.set()
    assert [run.episode.index for run in runs] == [0, 1, 2] and [r.attempts for r in runs] == [1, 1, 1]
    assert all(run.episode.error is None for run in runs)
    late = runs[1].episode
    assert [error_code(turn.result) for turn in late.turns[:2]] == [TOOL_TIMEOUT, None]
    assert [turn.changed for turn in late.turns[:2]] == [False, False]
    # Results come in the order of the calls: the second is the list, without a note of the first.
    assert late.turns[1].result == runs[0].episode.turns[1].result
    assert runs[0].episode.turns[0].call.name == "list_boxes"
    collector.close()


@pytest.mark.slow
def test_a_lost_connection_to_a_served_world_is_an_invalid_attempt_not_a_bad_episode(
    renderer, tmp_path, monkeypatch
):
    log = tmp_path / "calls.txt"
    monkeypatch.setenv(LOG, str(log))
    die = call_text(ToolCall("log_and_die", {"title": "x"}))
    serve = "from tests.slow_domain import SLOW\nfrom robustops.serving.mcp_server import serve\n"
    command = [sys.executable, "-c", serve + "serve(SLOW, admin=True)"]
    env = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    sampler = FakeSampler(renderer, lambda r, turn: die if r.session == 0 else "Bye.")
    collector = Collector(
        sampler,
        renderer,
        {"toy": SLOW},
        Limits(8000, 200, 12),
        world_factory=lambda domain: McpWorld(domain=domain, command=command, env=env),
    )
    (run,) = collector.run([EpisodeStart(slow_task(), "clean", 0, seed=0)])
    collector.close()
    assert log.read_text() == "x\n", "the call was made once, by the attempt that failed"
    (failure,) = run.failures
    assert failure.boundary == "world" and "Connection closed" in failure.message
    assert run.episode.error is None and len(run.episode.turns) == 1


def test_episodes_of_1_and_30_turns_finish_together_without_waiting_for_each_other(renderer):
    long = {0, 3}
    sampler = FakeSampler(renderer, lambda r, turn: "Bye." if r.session not in long or turn == 29 else LIST)
    collector = collector_of(sampler, renderer, max_in_flight=3, limits=Limits(30_000, 200, 30))
    ended = []
    runs = collector.run(starts_of(8), lambda run: ended.append(run.start.index))
    assert [len(run.episode.turns) for run in runs] == [30, 1, 1, 30, 1, 1, 1, 1]
    assert ended == [1, 2, 4, 5, 6, 7, 0, 3], "short ones come and go while long ones are on the way"
    # One poll a turn: the second long episode begins at the second poll and ends thirty polls later.
    assert sampler._polls == 31
