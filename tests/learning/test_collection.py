from __future__ import annotations

import dataclasses
import json

import pytest

from robustops.learning.collection import run_collection, sft_record
from robustops.learning.demonstrations import to_demonstrations
from robustops.learning.policy import load_policy
from robustops.records import ToolCall
from robustops.rollout.collector import Collector
from robustops.rollout.episode import EpisodeStart, Limits
from robustops.rollout.render import call_text, chat_tools
from robustops.settings import CollectSettings, SamplerSettings
from robustops.tracking.run_store import RunStore
from tests.learning.small_run import itsm, train_settings
from tests.rollout.fake_sampler import FakeSampler, TokenExpert
from tests.tiny_model import tiny_renderer
from tests.toy_domain import TOY, toy_task


def collect_settings(base_model, **changes) -> CollectSettings:
    trained = train_settings(base_model)
    settings = CollectSettings(
        seed=5,
        format="json",
        progress=False,
        domain=trained.domain,
        fault=trained.fault,
        # Room for the expert to recover from a fault that strikes three times.
        model=dataclasses.replace(trained.model, max_turns=14, context_tokens=2000),
        sampler=SamplerSettings("scripted"),
        logger=trained.logger,
    )
    return dataclasses.replace(settings, **changes)


@pytest.fixture(scope="module")
def collected(base_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("collected")
    settings = collect_settings(base_model, attempts=3)
    report = run_collection(settings, folder, {})
    return folder, report, [json.loads(line) for line in (folder / settings.out).read_text().splitlines()]


def test_the_report_counts_what_was_written(collected):
    folder, report, lines = collected
    assert report["episodes"] == report["exported"] == len(lines) == 9, "three cases, three attempts"
    assert report["out"] == str(folder / "demonstrations.jsonl") and report["invalid"] == {}
    assert sum(report["conditions"].values()) == 9 and set(report["conditions"]) == {"clean", "fault"}
    for line in lines:
        assert (line["condition"] == "fault") == bool(line["faults"])
    with RunStore(folder / "run.db") as store:
        stored = store.episodes(stage="collect")
    assert len(stored) == 9 and {row["policy"] for row in stored} == {"scripted"}
    assert [row["attempt"] for row in stored] == [0] * 3 + [1] * 3 + [2] * 3


def test_messages_render_to_the_exported_tokens(collected, base_model):
    """The chat template, given the exported messages and tools, makes the very tokens of the episode."""
    domain, _ = itsm()
    specs = domain.toolset.specs()
    tokenizer = load_policy(train_settings(base_model).model, str(base_model)).tokenizer
    for line in collected[2]:
        messages = [{"role": m["role"], "content": m["content"]} for m in line["messages"]]
        tools = chat_tools(specs[name] for name in line["tools"])
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
        assert tokenizer.encode(text, add_special_tokens=False) == line["token_ids"]


def test_the_mask_covers_the_trained_messages_and_nothing_else(collected, base_model):
    tokenizer = load_policy(train_settings(base_model).model, str(base_model)).tokenizer
    for line in collected[2]:
        assert [m["role"] for m in line["messages"][:2]] == ["system", "user"]
        assert all(m["role"] == "assistant" for m in line["messages"] if m["train"])
        kept = [t for t, keep in zip(line["token_ids"], line["loss_mask"], strict=True) if keep]
        said = [m["content"] + tokenizer.eos_token for m in line["messages"] if m["train"]]
        assert tokenizer.decode(kept) == "".join(said) and len(said) >= 2


def test_collecting_again_replaces_what_was_there(collected, base_model, tmp_path):
    """The same settings write the same bytes, and the run's rows are not doubled."""
    folder, _, lines = collected
    settings = collect_settings(base_model, attempts=3)
    for _ in range(2):
        run_collection(settings, tmp_path, {})
    assert (tmp_path / settings.out).read_bytes() == (folder / settings.out).read_bytes()
    with RunStore(tmp_path / "run.db") as store:
        assert len(store.episodes(stage="collect")) == len(lines)


def test_split_number_and_share_of_faults(base_model, tmp_path):
    settings = collect_settings(base_model, split="test", tasks=2, fault_share=0.0, out="sub/clean.jsonl")
    report = run_collection(settings, tmp_path, {})
    lines = [json.loads(line) for line in (tmp_path / "sub" / "clean.jsonl").read_text().splitlines()]
    assert report["episodes"] == 2 and report["conditions"] == {"clean": 2}
    assert all(line["case_id"].startswith("itsm-test-") for line in lines)
    all_faulty = collect_settings(base_model, fault_share=1.0)
    assert run_collection(all_faulty, tmp_path / "faulty", {})["conditions"] == {"fault": 3}


def test_episodes_that_fail_are_stored_but_not_exported(base_model, tmp_path, monkeypatch):
    """A policy that gives up half of the time: only what succeeded becomes data."""
    domain, _ = itsm()

    def of(self, policy, temperature=None):
        return TokenExpert(policy.renderer, {"itsm": domain}, gives_up=0.2)

    monkeypatch.setattr("robustops.learning.samplers.SamplerPool.of", of)
    report = run_collection(collect_settings(base_model, attempts=4), tmp_path, {})
    with RunStore(tmp_path / "run.db") as store:
        rows = store.episodes(stage="collect")
    won = sum(row["success"] for row in rows)
    assert len(rows) == report["episodes"] == 12 and 0 < won < 12
    assert report["exported"] == won == len((tmp_path / "demonstrations.jsonl").read_text().splitlines())


def test_nothing_to_export_is_an_empty_file(base_model, tmp_path, monkeypatch):
    def of(self, policy, temperature=None):
        return FakeSampler(policy.renderer, lambda request, turn: "No.")

    monkeypatch.setattr("robustops.learning.samplers.SamplerPool.of", of)
    report = run_collection(collect_settings(base_model), tmp_path, {})
    assert report["exported"] == 0 and (tmp_path / "demonstrations.jsonl").read_text() == ""


def test_a_bad_call_is_exported_without_loss():
    renderer = tiny_renderer()
    task = toy_task("file_note", seed=4)
    expert = TokenExpert(renderer, {"toy": TOY})
    wrong = ["<tool_call>{", call_text(ToolCall("fly", {}))]

    class Clumsy(FakeSampler):
        produces_tokens = False

    def say(request, turn):
        return wrong[turn] if turn < len(wrong) else expert.speak(request, turn)

    collector = Collector(Clumsy(renderer, say), renderer, {"toy": TOY}, Limits(6000, 300, 14))
    (run,) = collector.run([EpisodeStart(task, "clean", 0, 1)])
    record = sft_record(task, run.episode)
    said = [message for message in record["messages"] if message["role"] == "assistant"]
    assert [message["train"] for message in said] == [False, False] + [True] * (len(said) - 2)
    assert [message["content"] for message in said[:2]] == wrong
    # A refusal of a malformed call is a tool message, as the agent saw it.
    assert "MALFORMED_CALL" in record["messages"][3]["content"]
    (demonstration,) = to_demonstrations([run.episode])
    assert tuple(record["loss_mask"]) == demonstration.loss_mask
    assert record["tools"] == list(task.allowed_tools) and record["faults"] == []


def test_the_order_of_cases_is_drawn_from_the_seed(base_model, tmp_path):
    orders = []
    for seed in (1, 2, 3):
        report = run_collection(collect_settings(base_model, seed=seed), tmp_path / str(seed), {})
        text = (tmp_path / str(seed) / "demonstrations.jsonl").read_text()
        orders.append(tuple(json.loads(line)["case_id"] for line in text.splitlines()))
        assert report["exported"] == 3
    assert len({frozenset(order) for order in orders}) == 1 and len(set(orders)) > 1
