"""The small policy of the arithmetic domain that ships in data/models, and the script that makes it."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

from robustops.learning.policy import Policy, load_policy
from robustops.records import ToolCall, ToolResult
from robustops.resources import conf_dir, data_dir
from robustops.rollout.hf import HFSampler
from robustops.rollout.render import call_text
from robustops.settings import ModelSettings
from robustops.tasks.catalog import build_catalog
from robustops.worlds.domain import domain_names, get_domain
from tests.tiny_model import pretraining

ROOT = Path(__file__).resolve().parents[2]
DOMAIN = get_domain("arithmetic")
FOLDER = data_dir() / "models" / "arithmetic"


@cache
def script() -> ModuleType:
    """scripts/make_arithmetic_policy.py, which imports its neighbour pretrain_tiny."""
    pretraining()
    path = ROOT / "scripts" / "make_arithmetic_policy.py"
    spec = importlib.util.spec_from_file_location("make_arithmetic_policy", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelSettings(name="arithmetic"), None)


def test_it_is_small_and_says_how_it_was_made(policy):
    files = [path for path in FOLDER.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 500_000
    made = json.loads((FOLDER / "training.json").read_text())
    assert made["parameters"] == sum(p.numel() for p in policy.model.parameters()) < 150_000
    assert made["vocabulary"] == len(policy.tokenizer) < 600
    assert made["val_success"] >= made["options"]["target"]
    assert 0.3 <= made["test"]["success"] <= 0.5


def test_the_pieces_of_a_call_are_one_token_each(policy):
    def tokens(call):
        return policy.tokenizer.convert_ids_to_tokens(policy.renderer.answer(call_text(call)))

    frame = '<tool_call>{"name": "compute", "arguments": {"expression": "'
    assert tokens(ToolCall("compute", {"expression": "12+7"})) == [
        *(frame, "1", "2", "+", "7", '"}}</tool_call>', "<|end|>")
    ]
    assert len(tokens(ToolCall("submit", {"value": -33}))) == 6
    assert len(tokens(ToolCall("list_computations"))) == 2
    assert len(policy.renderer.result(ToolResult('{"value":21}'))) == 7


def test_prompts_are_short(policy):
    specs = DOMAIN.toolset.specs()
    for task in build_catalog(DOMAIN, counts={"test": 30}).tasks("test"):
        ids = policy.renderer.prompt(task, [specs[name] for name in task.allowed_tools])
        assert len(ids) <= 26
        assert str(policy.tokenizer.decode(ids)).count(task.prompt) == 1


def test_texts_come_back_from_their_tokens(policy):
    call = ToolCall("compute", {"expression": "-12 - 345"})
    assert policy.renderer.parse(policy.renderer.answer(call_text(call))).call == call
    for text in (*script().error_texts(DOMAIN), "Größe 7 ≥ 3", "Done."):
        assert policy.tokenizer.decode(policy.tokenizer.encode(text)) == text


def test_the_tokenizer_is_that_of_the_script(policy):
    made = script().build_tokenizer(DOMAIN, 250)
    assert made.get_vocab() == policy.tokenizer.get_vocab()
    assert made.chat_template == policy.tokenizer.chat_template


def test_limits_and_counts_are_those_of_the_config():
    model = yaml.safe_load((conf_dir() / "model" / "arithmetic.yaml").read_text())
    limits = script().LIMITS
    for name in ("context_tokens", "answer_tokens", "max_turns"):
        assert model[name] == getattr(limits, name)
    domain = yaml.safe_load((conf_dir() / "domain" / "arithmetic.yaml").read_text())
    assert {split: domain[split] for split in ("train", "val", "test")} == script().COUNTS


def test_it_errs_in_numbers_and_order_rather_than_in_form(policy):
    """Half of the bounds of `training.json`: other machines round and hence sample otherwise."""
    torch.set_num_threads(1)
    tasks = build_catalog(DOMAIN, counts=script().COUNTS).tasks("test")[:60]
    sampler = HFSampler(policy.model, policy.renderer.stop_ids)
    episodes = script().episodes_of(sampler, policy.renderer, DOMAIN, tasks, 4, 1)
    found = script().described(episodes)
    assert found["episodes"] == 240
    assert 0.2 <= found["success"] <= 0.6
    wrong = found["failures"].get("wrong or missing computation", 0) + found["failures"].get(
        "wrong answer", 0
    )
    assert wrong >= 0.75 * (1 - found["success"])
    assert found["sampled_tokens"] < 30


def test_a_new_domain_does_not_change_the_tiny_model():
    assert pretraining().DOMAINS == ("calendar", "itsm")
    assert set(pretraining().DOMAINS) < set(domain_names())
