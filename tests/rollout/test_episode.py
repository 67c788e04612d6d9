from __future__ import annotations

import dataclasses
import json

import pytest

from robustops.errors import TransportError, WorldError
from robustops.faults.branch import branch
from robustops.faults.plan import FaultPlan
from robustops.faults.wrapper import FaultyWorld
from robustops.records import Episode, EpisodeError, ToolCall
from robustops.rollout.episode import EpisodeRun, EpisodeStart, Limits, Prefix
from robustops.rollout.render import Renderer, call_text, chat_tools
from robustops.rollout.sampler import Completion, Request
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import run_expert
from tests.rollout.fake_sampler import spoken
from tests.tiny_model import tiny_renderer
from tests.toy_domain import TOY, toy_task

ROOM = Limits(context_tokens=4000, answer_tokens=200, max_turns=12)
LIST = call_text(ToolCall("list_boxes", {}))


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return tiny_renderer()


def make_run(renderer, limits=ROOM, task=None, **start) -> EpisodeRun:
    world = FaultyWorld(LocalWorld(TOY), start.get("plan"), observe=start.get("observe", False))
    task = task or toy_task("close_note")
    begin = EpisodeStart(task, start.pop("condition", "clean"), 0, start.pop("seed", 7), **start)
    return EpisodeRun(5, begin, world, renderer, limits, weight_version=3)


def play(run: EpisodeRun, *texts: str | Completion) -> tuple[Episode, list[Request]]:
    """Answer each request with the next text; the episode must end exactly when they are used up."""
    request, asked = run.begin(), []
    for text in texts:
        assert request is not None, f"the episode ended ({run.episode}) before '{text}'"
        asked.append(request)
        completion = spoken(run.renderer, request, text) if isinstance(text, str) else text
        request = run.advance(completion)
    assert request is None and run.episode is not None
    return run.episode, asked


def expert_texts(task) -> list[str]:
    done = run_expert(LocalWorld(TOY), TOY, task)
    return [*(call_text(call) for call, _ in done.calls), done.answer]


def test_tokens_masks_and_log_probs_by_hand(renderer):
    task = toy_task("close_note")
    world = LocalWorld(TOY)
    world.reset(task)
    reply = world.step(ToolCall("list_boxes", {}))
    prompt = renderer.prompt(task, list(world.specs().values()))
    call, result, final = renderer.answer(LIST), renderer.result(reply), renderer.answer("Bye.")
    episode, asked = play(make_run(renderer, task=task), LIST, "Bye.")
    assert list(episode.token_ids) == prompt + call + result + final
    mask = [False] * len(prompt) + [True] * len(call) + [False] * len(result) + [True] * len(final)
    assert list(episode.loss_mask) == mask
    numbers = [-(n + 1) / 64 for length in (len(call), len(final)) for n in range(length)]
    assert [p for p, m in zip(episode.old_log_probs, mask, strict=True) if m] == numbers
    assert not any(p for p, m in zip(episode.old_log_probs, mask, strict=True) if not m)
    assert [(t.start, t.end) for t in episode.turns] == [
        (len(prompt), len(prompt) + len(call)),
        (len(mask) - len(final), len(mask)),
    ]
    assert episode.stop == "final_answer" and episode.turns[1].call is None
    assert episode.turns[0].result == reply and episode.turns[1].result is None
    # Each request carries the whole context so far and never more.
    assert [list(r.token_ids) for r in asked] == [prompt, prompt + call + result]
    assert {r.session for r in asked} == {5} and episode.weight_version == 3


@pytest.mark.parametrize("template", ["file_note", "close_note"])
def test_an_episode_of_the_experts_messages_succeeds(renderer, template):
    task = toy_task(template, seed=4)
    episode, _ = play(make_run(renderer, task=task), *expert_texts(task))
    assert episode.success and all(episode.checks_final) and not all(episode.checks_start)
    lengths = {len(episode.token_ids), len(episode.loss_mask), len(episode.old_log_probs)}
    assert len(lengths) == 1
    assert sum(episode.loss_mask) == sum(t.end - t.start for t in episode.turns)
    for turn in episode.turns:
        text = renderer.tokenizer.decode(episode.token_ids[turn.start : turn.end])
        assert text == turn.text + renderer.end
        changed = turn.call is not None and turn.call.name in ("create_note", "update_note")
        assert turn.changed == changed


@pytest.mark.parametrize(
    "broken", ['<tool_call>{"name": "list_boxes"', "<tool_call>[1]</tool_call>", "<tool_call></tool_call>"]
)
def test_a_malformed_call_gets_a_structured_refusal_and_the_episode_goes_on(renderer, broken):
    episode, asked = play(make_run(renderer), broken, LIST, "Bye.")
    refused = episode.turns[0]
    assert refused.call is None and refused.result is not None and refused.result.is_error
    assert json.loads(refused.result.text)["error"]["code"] == "MALFORMED_CALL"
    assert list(asked[1].token_ids[refused.end :]) == renderer.result(refused.result)
    assert not episode.turns[1].result.is_error and episode.stop == "final_answer"


def test_an_unknown_tool_and_a_bad_argument_are_refused_by_the_world(renderer):
    calls = [ToolCall("fly", {}), ToolCall("list_boxes", {"size": 3})]
    episode, _ = play(make_run(renderer), *(call_text(call) for call in calls), "Bye.")
    assert [turn.call for turn in episode.turns] == [*calls, None]
    assert all(turn.result.is_error and "error" in turn.result.data for turn in episode.turns[:2])


def test_only_the_first_call_of_a_message_is_executed(renderer):
    episode, _ = play(make_run(renderer), LIST + call_text(ToolCall("list_notes", {})), "Bye.")
    assert [turn.call for turn in episode.turns] == [ToolCall("list_boxes", {}), None]


def test_a_message_cut_at_its_budget_ends_the_episode_and_its_call_is_not_executed(renderer):
    task = toy_task("file_note")
    box = TOY.open(task.database).find("box")[0]["id"]
    write = call_text(ToolCall("create_note", {"box_id": box, "title": task.plan["title"]}))
    whole = len(renderer.answer(write))
    limits = Limits(4000, whole - 1, 12)  # everything but the end-of-turn token
    episode, asked = play(make_run(renderer, limits, task), write)
    assert episode.stop == "answer_budget" and asked[0].max_new_tokens == whole - 1
    (turn,) = episode.turns
    assert turn.result is None and not turn.changed
    assert episode.checks_final == episode.checks_start and not episode.success
    assert sum(episode.loss_mask) == whole - 1
    episode, _ = play(make_run(renderer, Limits(4000, whole, 12), task), write, "Bye.")
    assert episode.turns[0].changed, "with one token more the call is made"


def test_the_turn_budget(renderer):
    episode, asked = play(make_run(renderer, Limits(4000, 200, 3)), LIST, LIST, LIST)
    assert episode.stop == "max_turns" and len(asked) == len(episode.turns) == 3


def test_a_prompt_that_does_not_fit_is_never_sampled(renderer):
    run = make_run(renderer, Limits(60, 20, 12))
    assert run.begin() is None
    assert run.episode.stop == "context" and run.episode.turns == ()
    assert not any(run.episode.loss_mask) and run.episode.checks_final == run.episode.checks_start


def test_an_episode_that_no_longer_fits_ends_untrimmed(renderer):
    task = toy_task("close_note")
    whole, _ = play(make_run(renderer, task=task), LIST, LIST, "Bye.")
    second = whole.turns[1]
    before = whole.turns[2].start  # context at the third message
    fits, _ = play(make_run(renderer, Limits(before + 50, 50, 12), task), LIST, LIST, "Bye.")
    assert fits.token_ids == whole.token_ids
    short, asked = play(make_run(renderer, Limits(before + 49, 50, 12), task), LIST, LIST)
    assert short.stop == "context" and len(asked) == 2
    assert short.token_ids == whole.token_ids[:before], "history is never cut at its front"
    # A reply beyond the context itself is recorded on the turn, but is no token of the episode.
    tight, _ = play(make_run(renderer, Limits(before - 1, 50, 12), task), LIST, LIST)
    assert tight.token_ids == whole.token_ids[: second.end] and len(tight.token_ids) <= before - 1
    assert tight.turns[1].result == second.result and tight.stop == "context"


@pytest.mark.parametrize("context", [300, 420, 600, 900])
def test_no_episode_is_longer_than_its_context(renderer, context):
    run = make_run(renderer, Limits(context, 60, 12))
    request = run.begin()
    while request is not None:
        assert len(request.token_ids) + request.max_new_tokens <= context
        request = run.advance(spoken(renderer, request, LIST))
    trained = [place for place, is_trained in enumerate(run.episode.loss_mask) if is_trained]
    assert not run.episode.turns or len(run.episode.token_ids) <= context
    assert all(place < context for place in trained)


def test_a_sampler_error_is_recorded(renderer):
    run = make_run(renderer)
    episode, _ = play(run, LIST, Completion(5, error="engine gone"))
    assert episode.error == EpisodeError("sampler", "engine gone")
    assert episode.stop == "error" and not episode.success and episode.checks_final == ()
    assert len(episode.turns) == 1, "what came before it is kept"


def test_a_world_error_is_recorded(renderer, monkeypatch):
    run = make_run(renderer)

    def broken(call):
        raise WorldError("disk full")

    request = run.begin()
    monkeypatch.setattr(run.world, "step", broken)
    assert run.advance(spoken(renderer, request, LIST)) is None
    assert run.episode.error == EpisodeError("world", "disk full") and not run.episode.success


def test_a_world_that_cannot_be_set_up_gives_an_invalid_episode_without_tokens_to_train(
    renderer, monkeypatch
):
    task = toy_task("file_note", seed=4)
    prefix = prefix_after(renderer, task, expert_texts(task)[:2], "lost_receipt")

    def broken(*_):
        raise TransportError("server gone")

    for name, start in (("reset", {}), ("restore", {"prefix": prefix}), ("evaluate", {"prefix": prefix})):
        run = make_run(renderer, task=task, **start)
        monkeypatch.setattr(run.world, name, broken)
        assert run.begin() is None
        assert run.episode.error == EpisodeError("world", "server gone") and run.episode.stop == "error"
        assert run.episode.checks_start == run.episode.checks_final == ()
        assert not any(run.episode.loss_mask)


def test_a_final_state_that_cannot_be_checked_is_invalid_whatever_ended_the_episode(renderer, monkeypatch):
    def broken(checks):
        raise WorldError("no such table: note")

    for limits, texts in (
        (ROOM, [LIST, "Bye."]),
        (Limits(4000, 200, 1), [LIST]),
        (Limits(4000, 3, 9), [LIST]),
    ):
        run = make_run(renderer, limits)
        request = run.begin()
        monkeypatch.setattr(run.world, "evaluate", broken)
        for text in texts:
            request = run.advance(spoken(renderer, request, text))
        assert request is None and run.episode.error == EpisodeError("world", "no such table: note")
        assert run.episode.checks_final == () and run.episode.checks_start and not run.episode.success


def test_a_planned_fault_strikes_and_counts_turns_not_calls(renderer):
    task = toy_task("close_note")
    texts = expert_texts(task)
    plan = FaultPlan("temporary_refusal", opportunity=1)
    run = make_run(renderer, task=task, plan=plan, condition="fault")
    episode, _ = play(run, "<tool_call>{", *texts[:2], texts[1], *texts[2:])
    (event,) = episode.faults
    assert (event.subtype, event.turn) == ("temporary_refusal", 2)
    struck = episode.turns[2]
    assert struck.fault == event and struck.result.data["error"]["code"] == "TEMPORARILY_UNAVAILABLE"
    assert episode.success and episode.condition == "fault"


def test_a_lost_receipt_counts_as_a_change(renderer):
    task = toy_task("file_note", seed=4)
    texts = expert_texts(task)
    run = make_run(renderer, task=task, plan=FaultPlan("lost_receipt"), condition="fault")
    episode, _ = play(run, *texts[:2], "I stop here.")
    assert episode.turns[1].fault is not None and episode.turns[1].changed
    assert episode.checks_final[0] and not episode.checks_start[0]


def test_requests_are_seeded_by_the_start_and_the_turn_alone(renderer):
    _, one = play(make_run(renderer, seed=7), LIST, LIST, "Bye.")
    other_call = call_text(ToolCall("list_notes", {}))
    _, two = play(make_run(renderer, seed=7), other_call, LIST, "Bye.")
    _, three = play(make_run(renderer, seed=8), LIST, LIST, "Bye.")
    assert [r.seed for r in one] == [r.seed for r in two]
    assert len({r.seed for r in [*one, *three]}) == 6


def prefix_after(renderer, task, texts, subtype="temporary_refusal") -> Prefix:
    """What a fault group would share after the last of these messages was struck."""
    run = make_run(renderer, task=task, observe=True)
    episode, _ = play(run, *texts, "Bye.")
    opportunity = run.opportunities[len(texts) - 1]
    shared = branch(run.world.world, opportunity, opportunity.plan(subtype))
    turns = list(episode.turns[: len(texts)])
    turns[-1] = dataclasses.replace(turns[-1], result=shared.result, fault=shared.event)
    ids = (*episode.token_ids[: turns[-1].end], *renderer.result(shared.result))
    return Prefix(ids, tuple(turns), shared.snapshot)


def test_a_continuation_inherits_dialogue_and_world_but_trains_only_what_it_says(renderer):
    task = toy_task("file_note", seed=4)
    texts = expert_texts(task)
    prefix = prefix_after(renderer, task, texts[:2], "lost_receipt")
    run = make_run(renderer, task=task, prefix=prefix, condition="fault")
    done = call_text(ToolCall("list_notes", {}))
    episode, asked = play(run, done, "Bye.")
    length = len(prefix.token_ids)
    assert episode.token_ids[:length] == prefix.token_ids == asked[0].token_ids
    assert not any(episode.loss_mask[:length]) and not any(episode.old_log_probs[:length])
    assert episode.inherited_turns == 2 and episode.turns[:2] == prefix.turns
    assert episode.own_turns[0].start == length
    # The struck write is in the world, although its receipt was lost: the checks begin there.
    assert episode.checks_start[0] and task.plan["title"] in episode.turns[2].result.text


def test_inherited_turns_count_towards_the_turn_budget(renderer):
    task = toy_task("close_note")
    prefix = prefix_after(renderer, task, [LIST, LIST])
    run = make_run(renderer, Limits(4000, 200, 3), task, prefix=prefix)
    episode, asked = play(run, LIST)
    assert episode.stop == "max_turns" and len(asked) == 1 and len(episode.turns) == 3


def test_chat_requests_carry_messages_tools_and_history(renderer):
    task = toy_task("close_note")
    run = make_run(renderer, task=task)
    run.chat = True
    episode, asked = play(run, LIST, "<tool_call>{", "Bye.")
    assert asked[0].tools == tuple(chat_tools(run.world.specs().values())) and asked[0].history == ()
    assert [m["role"] for m in asked[2].messages] == ["system", "user", *["assistant", "tool"] * 2]
    assert asked[2].messages[3]["content"] == episode.turns[0].result.text
    assert asked[2].messages[2]["call"] == ToolCall("list_boxes", {})
    assert asked[2].history == ((episode.turns[0].call, episode.turns[0].result),)
    token_run = make_run(renderer, task=task)
    _, asked = play(token_run, "Bye.")
    assert asked[0].messages == () and asked[0].tools == ()


def test_text_completions_are_tokenised_once(renderer):
    run = make_run(renderer)
    call = ToolCall("list_boxes", {"limit": 2})
    episode, _ = play(run, Completion(5, call=call), Completion(5, text="Bye."))
    first, last = episode.turns
    assert first.call == call and first.text == call_text(call)
    assert list(episode.token_ids[first.start : first.end]) == renderer.answer(call_text(call))
    assert list(episode.token_ids[last.start : last.end]) == renderer.answer("Bye.")
    assert set(episode.old_log_probs) == {0.0} and episode.stop == "final_answer"
