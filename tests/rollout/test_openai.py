"""The endpoint is a real HTTP server of this process: see chat_server.py."""

from __future__ import annotations

import json
import logging
import sys
import time

import pytest

from robustops.errors import ConfigError, SamplerError
from robustops.records import ToolCall
from robustops.rollout.openai import OpenAISampler, api_messages
from robustops.rollout.render import call_text, chat_tools, parse_message
from robustops.rollout.sampler import Request
from tests.rollout.chat_server import KEY, ChatServer
from tests.tiny_model import drain
from tests.toy_domain import TOY

TOOLS = tuple(chat_tools(TOY.toolset.specs().values()))
CALL = ToolCall("list_boxes", {"name": "größer"})
START = ({"role": "system", "content": "policy"}, {"role": "user", "content": "request"})


def ask(session: int = 0, text: str = "request", budget: int = 50, seed: int = 7) -> Request:
    messages = ({"role": "system", "content": "policy"}, {"role": "user", "content": text})
    return Request(session, (1, 2), budget, seed=seed, messages=messages, tools=TOOLS)


def sent(chat: ChatServer, text: str) -> list[dict]:
    """The bodies of all tries whose last message has this text."""
    return [body for body in chat.bodies if body["messages"][-1]["content"] == text]


@pytest.fixture
def connect(chat, api_key):
    made = []

    def make(model: str, **options) -> OpenAISampler:
        sampler = OpenAISampler(model, chat.base_url, **{"api_key_env": api_key, **options})
        made.append(sampler)
        return sampler

    yield make
    for sampler in made:
        sampler.close()


def test_what_is_sent(connect, chat):
    sampler = connect("words", temperature=0.3, extra_body={"top_k": 5})
    answer = drain(sampler, [ask(text="unique request", budget=40, seed=2**62 + 5)])[0]
    (body,) = sent(chat, "unique request")
    assert body["model"] == "words" and body["temperature"] == 0.3 and body["top_k"] == 5
    assert body["max_tokens"] == 40 and body["seed"] == 5
    assert body["tools"] == json.loads(json.dumps(TOOLS))
    assert answer.text and answer.call is None and answer.finished and answer.error is None
    assert answer.usage == {"prompt_tokens": 11, "completion_tokens": 8}


def test_what_an_endpoint_does_not_know_is_left_out(connect, chat):
    sampler = connect("words", temperature=None, limit_field="max_completion_tokens")
    drain(sampler, [Request(0, (1,), 9, seed=1, messages=({"role": "user", "content": "bare"},))])
    (body,) = sent(chat, "bare")
    assert set(body) == {"model", "messages", "seed", "max_completion_tokens"}


def test_the_first_tool_call_counts(connect):
    answer = drain(connect("caller"), [ask()])[0]
    assert answer.call == ToolCall("list_boxes", {"name": "garden"}) and answer.finished


def test_a_call_without_arguments_has_none(connect):
    assert drain(connect("emptycall"), [ask()])[0].call == ToolCall("list_boxes", {})


@pytest.mark.parametrize(("model", "raw"), [("badcall", '{"name": garden'), ("listcall", '["garden"]')])
def test_an_unreadable_call_is_kept_as_text_that_reads_as_malformed(connect, model, raw):
    answer = drain(connect(model), [ask()])[0]
    assert answer.call is None and answer.error is None and raw in answer.text
    assert parse_message(answer.text).malformed


def test_an_answer_cut_at_its_budget_is_not_finished(connect):
    answer = drain(connect("words"), [ask(budget=3)])[0]
    assert not answer.finished and answer.usage["completion_tokens"] == 3


@pytest.mark.parametrize(("model", "words"), [("filter", "content filter"), ("empty", "without a choice")])
def test_an_answer_that_is_none_is_an_error(connect, model, words):
    assert words in drain(connect(model), [ask()])[0].error


# ------------------------------------------------------------------------------ failures
def test_a_passing_failure_is_tried_again(connect, chat):
    answer = drain(connect("flaky", retries=3), [ask(text="flaky one")])[0]
    assert answer.error is None and answer.text
    assert len(sent(chat, "flaky one")) == 3


def test_a_lasting_failure_is_an_error_of_its_request(connect, chat):
    answer = drain(connect("broken", retries=2), [ask(text="broken one")])[0]
    assert "the model fell over" in answer.error and "'broken'" in answer.error
    assert answer.text is None and answer.call is None
    assert len(sent(chat, "broken one")) == 3


def test_a_slow_answer_times_out(connect):
    begin = time.monotonic()
    answer = drain(connect("slow", timeout=0.3, retries=0), [ask()])[0]
    assert "Timeout" in answer.error and time.monotonic() - begin < 20


def test_nobody_at_the_address_is_an_error(api_key):
    sampler = OpenAISampler("words", "http://127.0.0.1:9/v1", api_key_env=api_key, retries=0)
    assert "APIConnectionError" in drain(sampler, [ask()])[0].error
    sampler.close()


def test_the_key_is_never_told(connect, caplog, monkeypatch):
    with caplog.at_level(logging.DEBUG):
        answer = drain(connect("echo-key", retries=0), [ask()])[0]
    assert "bad request with Bearer ***" in answer.error
    assert KEY not in answer.error and KEY not in caplog.text
    monkeypatch.setenv("WRONG_KEY", "sk-wrong-but-secret-too")
    wrong = drain(connect("words", api_key_env="WRONG_KEY", retries=0), [ask()])[0]
    assert "AuthenticationError" in wrong.error and "sk-wrong" not in wrong.error


def test_a_missing_key_is_named_unless_the_endpoint_is_ones_own(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY is empty"):
        OpenAISampler("words", api_key_env="NO_SUCH_KEY")
    OpenAISampler("words", "http://127.0.0.1:9/v1", api_key_env="NO_SUCH_KEY").close()


@pytest.mark.parametrize("options", [{"limit_field": "limit"}, {"max_in_flight": 0}])
def test_bad_options_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        OpenAISampler("words", "http://127.0.0.1:9/v1", **options)


def test_a_package_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ConfigError, match=r"robustops\[openai\]"):
        OpenAISampler("words", "http://127.0.0.1:9/v1")


def test_weights_cannot_be_set(connect):
    with pytest.raises(SamplerError, match="sampler=hf"):
        connect("words").sync([], 1)


# ------------------------------------------------------------------------------ concurrency
def test_requests_travel_at_the_same_time(connect):
    """The server answers none of the four before it has all of them."""
    answers = drain(connect("together", max_in_flight=4), [ask(i, text=f"t{i}") for i in range(4)])
    assert all(a.error is None for a in answers.values())


def test_the_answer_of_a_released_session_is_dropped(connect):
    sampler = connect("slow", timeout=0.5, retries=0)
    sampler.submit(ask(3))
    sampler.release(3)
    assert sampler.poll() == []
    time.sleep(1.0)
    assert sampler.poll() == []


def test_a_bug_in_a_thread_surfaces(connect):
    sampler = connect("words")
    sampler.submit(Request(0, (1,), 5, seed=1, messages=({"role": "user"},)))
    with pytest.raises(KeyError):
        drain(sampler, [])
        for _ in range(10):
            sampler.poll()


# ------------------------------------------------------------------------------ messages
def test_messages_join_calls_and_results_by_id():
    turns = (
        {"role": "assistant", "content": call_text(CALL), "call": CALL},
        {"role": "tool", "content": "r1"},
        {"role": "assistant", "content": call_text(CALL), "call": CALL},
        {"role": "tool", "content": "r2"},
    )
    sent = api_messages(START + turns)
    assert sent[:2] == list(START)
    assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    ids = []
    for call_message, result in ((sent[2], sent[3]), (sent[4], sent[5])):
        (call,) = call_message["tool_calls"]
        assert call["function"]["name"] == "list_boxes"
        assert json.loads(call["function"]["arguments"]) == CALL.arguments
        assert result["tool_call_id"] == call["id"]
        assert "call" not in call_message
        ids.append(call["id"])
    assert len(set(ids)) == 2
    assert [sent[3]["content"], sent[5]["content"]] == ["r1", "r2"]


def test_the_complaint_about_a_malformed_call_comes_from_the_user():
    """A tool message without a call before it is refused by endpoints."""
    turns = (
        {"role": "assistant", "content": "<tool_call>oops", "call": None},
        {"role": "tool", "content": "MALFORMED"},
    )
    assert api_messages(START + turns)[2:] == [
        {"role": "assistant", "content": "<tool_call>oops"},
        {"role": "user", "content": "MALFORMED"},
    ]
