"""The environment that TRL is given, played by hand, and its rewards."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from robustops.bench.run_faults.exposure import ExposureLog
from robustops.bench.run_faults.injector import MECHANISMS
from robustops.bench.run_faults.spec import RunFaultSpec
from robustops.bench.transfer.trl_calculator import Calculator, CallFailed, Rewards, readable, stop_of
from robustops.bench.transfer.trl_injection import Injection
from robustops.resources import data_dir
from robustops.rewards.combine import RewardWeights
from robustops.rewards.parts import RewardRules
from robustops.tasks.catalog import build_catalog
from robustops.worlds.domain import get_domain
from robustops.worlds.domains.arithmetic.expressions import steps_of

CATALOG = build_catalog(get_domain("arithmetic"), counts={"train": 4, "val": 0, "test": 0})
TASKS = {task.id: task for task in CATALOG.tasks("train")}


def injection(fault, mechanism, tmp_path, **values):
    spec = RunFaultSpec(fault, mechanism, **values)
    log = ExposureLog(tmp_path / "exposure.jsonl", spec)
    return Injection(MECHANISMS[mechanism](spec, log, RewardWeights()), 2, 2, 8)


@pytest.fixture(scope="module")
def tokenizer():
    return readable(AutoTokenizer.from_pretrained(data_dir() / "models" / "arithmetic"))


def solve(world, task):
    """Calls as the expert makes them; returns the replies."""
    replies, results = [], []
    for step in steps_of(task.plan["expression"]):
        own = step.on(results)
        replies.append(world.compute(own.text))
        results.append(own.value)
    return [*replies, world.submit(results[-1])]


def scored(tokenizer, worlds, fault=None, text="Done."):
    prompts = [
        [{"role": "system", "content": w.task.policy}, {"role": "user", "content": w.task.prompt}]
        for w in worlds
    ]
    ids = [tokenizer.encode(f"{text}<|end|>", add_special_tokens=False) for _ in worlds]
    rewards = Rewards(tokenizer, 2, RewardRules(), fault)
    completions = [[{"role": "assistant", "content": text}]] * len(worlds)
    first = rewards.success(environments=worlds, completions=completions, completion_ids=ids, prompts=prompts)
    return first, rewards.progress(), rewards.quality()


def begun(fault=None):
    worlds = [Calculator(TASKS, fault) for _ in range(2)]
    task = next(iter(TASKS.values()))
    for world in worlds:
        world.reset(task=task.id, prompt=[])
    return task, worlds


def test_the_expert_earns_everything_and_idling_nothing(tokenizer):
    task, worlds = begun()
    solve(worlds[0], task)
    assert scored(tokenizer, worlds) == ([1.0, 0.0], [1.0, 0.0], [1.0, 0.0])


def test_an_episode_begins_afresh(tokenizer):
    task, worlds = begun()
    solve(worlds[0], task)
    worlds[0].reset(task=task.id)
    assert scored(tokenizer, worlds)[0] == [0.0, 0.0]


def test_a_refused_call_is_raised(tokenizer):
    task, worlds = begun()
    with pytest.raises(CallFailed, match="INVALID_ARGUMENT"):
        worlds[0].compute("1+2+3")
    solve(worlds[0], task)
    parts = scored(tokenizer, worlds)
    assert parts[0][0] == 1.0 and parts[2][0] == pytest.approx(
        1 - 1 / (len(steps_of(task.plan["expression"])) + 2)
    )


def test_a_tool_out_of_order_executes_nothing(tokenizer, tmp_path):
    fault = injection("tool_call_error", "tool_outage", tmp_path, unit="turn")
    task, worlds = begun(fault)
    with pytest.raises(CallFailed, match="out of order"):
        solve(worlds[0], task)
    assert scored(tokenizer, worlds, fault)[1][0] == 0.0


def test_a_reply_may_be_falsified_and_the_world_knows_better(tmp_path, tokenizer):
    fault = injection("observation_corruption", "digit_noise", tmp_path, unit="turn")
    task, worlds = begun(fault)
    told = solve(worlds[0], task)
    _, honest = begun()
    assert told != solve(honest[0], task)
    assert scored(tokenizer, worlds, fault)[0][0] == 1.0  # the expert here never reads


def test_rewards_are_changed_by_the_campaigns_own_mechanism(tmp_path, tokenizer):
    fault = injection("reward_spike", "episode_spike", tmp_path)
    _, worlds = begun(fault)
    assert scored(tokenizer, worlds, fault)[1] == [10.0, 10.0]


def test_whose_token_it_is(tokenizer):
    text = '<tool_call>x</tool_call><|end|><|tool|>{"value": 3}<|end|><|assistant|>Done.<|end|>'
    ids = tokenizer.encode(text, add_special_tokens=False)
    own = list(Rewards(tokenizer, 2, RewardRules())._own(ids))
    kept = tokenizer.decode([token for token, mine in zip(ids, own, strict=True) if mine])
    assert kept == "<tool_call>x</tool_call><|end|>Done.<|end|>"


@pytest.mark.parametrize(
    ("message", "stop"),
    [
        ({"role": "assistant", "content": "Done."}, "final_answer"),
        ({"role": "assistant", "content": '<tool_call>{"name": "subm'}, "malformed"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "max_turns"),
        ({"role": "tool", "content": "{}"}, "max_turns"),
    ],
)
def test_how_an_episode_ends(message, stop):
    assert stop_of(message) == stop


def test_the_tokenizer_reads_calls_and_renders_prompts_as_before(tokenizer):
    plain = AutoTokenizer.from_pretrained(data_dir() / "models" / "arithmetic")
    messages = [{"role": "system", "content": "p"}, {"role": "user", "content": "1+2"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == plain.apply_chat_template(
        messages, tokenize=False
    )
    start = tokenizer.encode("<|user|>1+2<|end|><|assistant|>", add_special_tokens=False)
    text = '<tool_call>{"name": "submit", "arguments": {"value": 7}}</tool_call><|end|>'
    parsed = tokenizer.parse_response(tokenizer.encode(text, add_special_tokens=False), prefix=start)
    assert parsed["tool_calls"][0]["function"] == {"name": "submit", "arguments": {"value": 7}}
