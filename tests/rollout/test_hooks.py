from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from robustops.errors import ToolError
from robustops.faults.wrapper import FaultyWorld
from robustops.monitor.rollouts import tool_statistics
from robustops.records import ToolCall, ToolResult
from robustops.rollout.collector import Collector
from robustops.rollout.episode import MALFORMED, NO_REPLY, EpisodeRun, EpisodeStart, Limits
from robustops.rollout.hooks import HeldBack, Place, RolloutHooks
from robustops.rollout.render import Renderer, call_text
from robustops.rollout.tool_calls import TOOL_UNAVAILABLE
from robustops.worlds.environment import LocalWorld
from robustops.worlds.toolset import refusal
from tests.rollout.fake_sampler import FakeSampler, spoken
from tests.tiny_model import tiny_renderer
from tests.toy_domain import TOY, toy_task

ROOM = Limits(context_tokens=4000, answer_tokens=200, max_turns=6)
LIST = call_text(ToolCall("list_boxes", {}))
ADD = call_text(ToolCall("create_note", {"box_id": "B1", "title": "hello"}))
PLACE = Place(3, "case", "clean", 2, 1)
OUT_OF_ORDER = refusal(ToolError(TOOL_UNAVAILABLE, "out of order"))


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return tiny_renderer()


def make_run(renderer, hooks, *, place=PLACE, observe=False, **limits) -> EpisodeRun:
    world = FaultyWorld(LocalWorld(TOY), observe=observe)
    start = EpisodeStart(toy_task("file_note"), "clean", 1, 7, observe=observe, place=place)
    return EpisodeRun(0, start, world, renderer, dataclasses.replace(ROOM, **limits), hooks=hooks)


def play(run: EpisodeRun, *texts: str):
    """Requests of an episode; it may end before the texts are used up."""
    request, asked = run.begin(), []
    for text in texts:
        if request is None:
            break
        asked.append(request)
        request = run.advance(spoken(run.renderer, request, text))
    return asked


class Seen(RolloutHooks):
    """Notes where it was asked, and changes nothing."""

    def __init__(self) -> None:
        self.places: list[tuple[str, int, int, int]] = []

    def _note(self, name: str, place: Place) -> None:
        assert place[:5] == PLACE[:5]
        self.places.append((name, place.turn, place.asked, place.attempt))

    def on_request(self, place, request):
        self._note("request", place)
        assert request.place == place
        return request

    def on_completion(self, place, request, completion, stop_ids):
        self._note("completion", place)
        assert completion.token_ids[-1] in stop_ids and request.place == place
        return completion

    def on_tool_call(self, place, call):
        self._note("call", place)
        return call

    def on_tool_reply(self, place, call, result, earlier):
        self._note("reply", place)
        assert len(earlier) == place.turn
        return result

    def ends_after(self, place, turns, max_turns):
        self._note("ends", place)
        assert turns == place.turn and max_turns == ROOM.max_turns
        return False


def test_hooks_are_asked_in_the_order_of_an_episode_and_told_where_they_are(renderer):
    seen = Seen()
    play(make_run(renderer, seen), LIST, "Done.")
    first = [(name, 0, 0, 1) for name in ("request", "completion", "call", "reply")]
    assert seen.places == [*first, ("ends", 1, 0, 1), ("request", 1, 0, 1), ("completion", 1, 0, 1)]


def test_hooks_that_change_nothing_leave_the_episode_as_it_is(renderer):
    runs = [make_run(renderer, hooks) for hooks in (RolloutHooks(), Seen())]
    plain = make_run(renderer, RolloutHooks(), place=None)
    for run in (*runs, plain):
        play(run, LIST, ADD, "Done.")
    assert runs[0].episode == runs[1].episode == plain.episode


def test_episodes_without_a_place_are_left_alone(renderer):
    seen = Seen()
    play(make_run(renderer, seen, place=None), LIST, "Done.")
    assert seen.places == []


class Breaks(RolloutHooks):
    """Every tool is out of order the first `times` that a call is made."""

    def __init__(self, times: int, held: HeldBack | None = None) -> None:
        self.times, self.held, self.asked = times, held or HeldBack(OUT_OF_ORDER), 0

    def on_tool_call(self, place, call):
        self.asked += 1
        return self.held if place.asked < self.times else call


def test_a_call_that_is_held_back_is_not_executed(renderer):
    run = make_run(renderer, Breaks(1))
    play(run, ADD, "Done.")
    turn = run.episode.turns[0]
    assert turn.result == OUT_OF_ORDER and turn.call is not None and not turn.changed
    assert run.world.changes == 0, "nothing was written"
    assert list(run.episode.token_ids[turn.end :])[: len(renderer.result(OUT_OF_ORDER))] == renderer.result(
        OUT_OF_ORDER
    )


def test_a_call_that_cannot_be_read_is_recorded_as_such(renderer):
    run = make_run(renderer, Breaks(9, HeldBack(MALFORMED, unread=True)), tool_retries=3)
    play(run, LIST, "Done.")
    assert run.episode.turns[0].call is None and run.episode.turns[0].result == MALFORMED
    assert run.hooks.asked == 1, "asking again would not help"


@pytest.mark.parametrize(("retries", "fails"), [(0, True), (1, True), (2, False), (5, False)])
def test_a_tool_out_of_order_is_asked_again_within_the_budget(renderer, retries, fails):
    run = make_run(renderer, Breaks(2), tool_retries=retries)
    play(run, ADD, "Done.")
    turn = run.episode.turns[0]
    assert (turn.result == OUT_OF_ORDER) == fails and turn.changed != fails
    assert run.hooks.asked == min(retries, 2) + 1
    assert run.world.changes == (0 if fails else 1), "executed once at most"


def test_a_worlds_own_outage_is_asked_again_too(renderer):
    run = make_run(renderer, RolloutHooks(), place=None, tool_retries=1)
    answers, step = [OUT_OF_ORDER, ToolResult('{"boxes":[]}')], run.world.step
    run.world.step = lambda call: (step(call), answers.pop(0))[1]
    play(run, LIST, "Done.")
    assert run.episode.turns[0].result == ToolResult('{"boxes":[]}') and answers == []


def test_calls_of_a_probe_are_made_once(renderer):
    """Their number tells which turn an opportunity belongs to."""
    run = make_run(renderer, RolloutHooks(), place=None, observe=True, tool_retries=3)
    run.world.step = lambda call: OUT_OF_ORDER
    play(run, LIST, "Done.")
    assert run.episode.turns[0].result == OUT_OF_ORDER and len(run.episode.turns) == 2


class Damages(RolloutHooks):
    def on_tool_reply(self, place, call, result, earlier):
        return dataclasses.replace(result, text=result.text[:5])


@pytest.mark.parametrize("checked", [False, True])
def test_a_damaged_reply_reaches_the_agent_unless_replies_are_checked(renderer, checked):
    run = make_run(renderer, Damages(), check_replies=checked)
    play(run, ADD, "Done.")
    turn = run.episode.turns[0]
    assert (len(turn.result.text) == 5) != checked
    shown = list(run.episode.token_ids[turn.end :])[: len(renderer.result(turn.result))]
    assert shown == renderer.result(turn.result)
    assert turn.changed and run.world.changes == 1, "the world's own state is untouched"


class Ends(RolloutHooks):
    def ends_after(self, place, turns, max_turns):
        return turns >= 2


@pytest.mark.parametrize(("min_turns", "turns"), [(0, 2), (2, 2), (4, 4), (99, 6)])
def test_an_environment_ends_an_episode_only_in_turns_in_which_it_is_believed(renderer, min_turns, turns):
    run = make_run(renderer, Ends(), min_turns=min_turns)
    play(run, *[LIST] * 9)
    assert len(run.episode.turns) == max(turns, 2) and run.episode.stop == "max_turns"


class Overlooks(RolloutHooks):
    """The first `times` answers of an episode are not noticed."""

    def __init__(self, times: int) -> None:
        self.times, self.asked = times, 0

    def overlooks_answer(self, place):
        self.asked += 1
        return self.asked <= self.times


@pytest.mark.parametrize(("times", "most", "turns"), [(0, None, 1), (2, None, 3), (2, 1, 1), (2, 2, 2)])
def test_an_answer_ends_an_episode_when_it_is_noticed_or_is_the_last_one_allowed(
    renderer, times, most, turns
):
    run = make_run(renderer, Overlooks(times), max_answers=most)
    play(run, *["Done."] * 9)
    episode = run.episode
    assert (len(episode.turns), episode.stop) == (turns, "final_answer")
    assert all(turn.call is None and turn.result is None for turn in episode.turns)
    between = renderer.result(NO_REPLY)
    for turn, following in pairwise(episode.turns):
        assert list(episode.token_ids[turn.end : following.start]) == between
        assert not any(episode.loss_mask[turn.end : following.start])


def test_an_agent_whose_answers_are_never_noticed_goes_on_to_its_turn_limit(renderer):
    run = make_run(renderer, Overlooks(99))
    play(run, LIST, "Done.", ADD, *["Done."] * 9)
    assert (run.episode.stop, len(run.episode.turns)) == ("max_turns", ROOM.max_turns)
    assert run.episode.turns[2].changed, "what it does afterwards is done"
    statistics = tool_statistics([run.episode])
    assert (statistics["tool_calls_mean"], statistics["invalid_call_frac"]) == (2.0, 0.0)
    alone = make_run(renderer, Overlooks(99), place=None)
    play(alone, LIST, "Done.")
    assert alone.episode.stop == "final_answer", "episodes without a place are left alone"


class Cuts(RolloutHooks):
    def on_request(self, place, request):
        return dataclasses.replace(request, max_new_tokens=3)


def test_a_budget_is_never_below_the_shortest_message(renderer):
    (free,) = play(make_run(renderer, Cuts()), LIST)
    (held,) = play(make_run(renderer, Cuts(), min_new_tokens=8), LIST)
    assert (free.max_new_tokens, free.min_new_tokens) == (3, 0)
    assert (held.max_new_tokens, held.min_new_tokens) == (9, 8)


class Empties(RolloutHooks):
    """The first attempt at an episode gets messages without content."""

    def on_completion(self, place, request, completion, stop_ids):
        if place.attempt > 1:
            return completion
        return dataclasses.replace(completion, token_ids=(min(stop_ids),), log_probs=(0.0,))


@pytest.mark.parametrize("shortest", [0, 1])
def test_a_message_that_is_too_short_is_a_failure_of_the_sampler(renderer, shortest):
    sampler = FakeSampler(renderer, lambda request, turn: "Done.")
    limits = dataclasses.replace(ROOM, min_new_tokens=shortest)
    collector = Collector(sampler, renderer, {"toy": TOY}, limits, hooks=Empties())
    start = EpisodeStart(toy_task("file_note"), "clean", 0, 7, place=PLACE)
    (run,) = collector.run([start])
    assert run.attempts == 1 + shortest
    assert (run.episode.turns[0].text == "Done.") == bool(shortest)
    if shortest:
        assert "after 0 tokens, sampler.min_new_tokens is 1" in run.failures[0].message
