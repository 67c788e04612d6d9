"""The report of a run that is not started: recipe's numbers, memory on the GPUs that it is meant for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from robustops.learning import dry_run
from robustops.learning.dry_run import REFERENCE_GPU, plan
from robustops.learning.hardware import STRATEGIES
from robustops.learning.sizing import GIB
from robustops.settings import (
    DomainSettings,
    EvaluationSettings,
    GRPOSettings,
    HardwareSettings,
    LoRASettings,
    ModelSettings,
    MonitorSettings,
    SamplerSettings,
    SFTSettings,
    TrainSettings,
)

#: A small model, so that tests are fast; sizes of large ones are held in test_sizing.py and test_skeleton.py.
SHAPE = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
    "tie_word_embeddings": True,
}
MODEL = ModelSettings(
    name="none",
    source="hub",
    hub_id="nobody/none",
    dtype="bfloat16",
    context_tokens=1000,
    answer_tokens=50,
    max_turns=10,
    architecture=SHAPE,
)
GPU = HardwareSettings("test", "gpu", 2, 1, "deepspeed_stage_2", "bf16-mixed")
SETTINGS = TrainSettings(
    domain=DomainSettings(train=50, test=20),
    hardware=GPU,
    model=MODEL,
    sampler=SamplerSettings(name="vllm", memory_fraction=0.5, max_in_flight=8),
    sft=SFTSettings(epochs=3, batch_trajectories=8, micro_batch_tokens=4096),
    grpo=GRPOSettings(
        steps=12, groups=2, fault_groups=1, group_size=4, refill_rounds=2, epochs=2, mini_batches=1
    ),
    evaluation=EvaluationSettings(cases=10, attempts=2),
)


def report(**changes: Any) -> dict[str, Any]:
    return plan(replace(SETTINGS, **changes))


def test_tokens_and_steps_are_products_of_the_settings() -> None:
    work = report()["work"]
    # 50 tasks in 2 tool configurations; 3 x 100 / 8 = 37.5
    assert work["sft"] == {
        "trajectories": 100,
        "trajectories_per_step": 8,
        "tokens_per_step": 8 * 1000,
        "optimiser_steps": 38,
    }
    assert work["grpo"] == {
        "trajectories_per_step": 12,
        "tokens_per_step": 12 * 1000,
        "sampled_tokens_per_step": 12 * 3 * 10 * 50,
        "optimiser_steps": 24,
    }
    # 3 policies, 3 conditions
    assert report()["evaluation_episodes"] == 10 * 2 * 3 * 3
    assert report(stages=["sft"])["evaluation_episodes"] == 10 * 2 * 2 * 3
    assert report(sft=replace(SETTINGS.sft, tasks=4))["work"]["sft"]["optimiser_steps"] == 3


def test_only_the_stages_of_the_run_are_reported() -> None:
    only = report(stages=["grpo"])
    assert set(only["memory_per_device"]) == set(only["work"]) == {"grpo"}
    nothing = report(stages=[])
    assert nothing["memory_per_device"] == {} and nothing["disk"]["checkpoints"] == 0


def test_the_largest_micro_batch_is_the_budget_or_one_whole_episode() -> None:
    assert report()["activations"]["tokens"] == 8192
    assert report(stages=["sft"])["activations"]["tokens"] == 4096
    long = replace(MODEL, context_tokens=20_000)
    assert report(model=long)["activations"]["tokens"] == 20_000


def test_parts_add_up_and_a_sleeping_engine_takes_turns_with_training() -> None:
    parts = report()["memory_per_device"]["grpo"]
    assert parts["sampler"] == REFERENCE_GPU // 2
    assert parts["total"] == sum(size for name, size in parts.items() if name != "total")
    asleep = report(sampler=replace(SETTINGS.sampler, sleep_level=2))["memory_per_device"]["grpo"]
    assert {**asleep, "total": 0} == {**parts, "total": 0}
    assert asleep["total"] == parts["total"] - parts["activations"] - parts["logits"]
    host = report(sampler=replace(SETTINGS.sampler, sleep_level=1))["memory_per_host"]
    weights = 2 * report()["model"]["parameters"]
    assert host["sleeping engine"] == 2 * weights


def test_the_reference_is_a_copy_unless_nothing_is_held_against_it() -> None:
    assert report()["memory_per_device"]["grpo"]["reference"] == 2 * report()["model"]["parameters"]
    without = report(grpo=replace(SETTINGS.grpo, kl=0.0))
    assert without["memory_per_device"]["grpo"]["reference"] == 0
    adapters = report(model=replace(MODEL, lora=LoRASettings(rank=2)))
    assert adapters["memory_per_device"]["grpo"]["reference"] == 0
    assert adapters["model"]["trained"] < adapters["model"]["parameters"] / 5
    assert "reference" not in report()["memory_per_device"]["sft"]


def test_the_copy_by_which_an_update_is_measured_counts_unless_there_is_none(monkeypatch) -> None:
    plain, spread_out = report(), report(hardware=replace(GPU, strategy="deepspeed_stage_3"))
    size = 2 * plain["model"]["trained"]
    for stage in ("sft", "grpo"):
        assert plain["memory_per_device"][stage]["earlier_weights"] == size
        assert spread_out["memory_per_device"][stage]["earlier_weights"] == 0
    monkeypatch.setattr(dry_run, "MAX_BYTES", size - 1)
    assert report()["memory_per_device"]["grpo"]["earlier_weights"] == 0


def test_the_sampler_in_the_trainers_process_holds_the_keys_and_values_of_all_episodes() -> None:
    parts = report(sampler=SamplerSettings(name="hf", max_in_flight=8))["memory_per_device"]["grpo"]
    # 8 episodes x 1000 tokens x 2 tensors x 2 layers x 2 heads x 16 numbers x 2 bytes
    assert parts["sampler"] == 8 * 1000 * 2 * 2 * 2 * 16 * 2
    elsewhere = report(sampler=SamplerSettings(name="vllm_server", urls=["http://a"]))
    assert elsewhere["memory_per_device"]["grpo"]["sampler"] == 0 and elsewhere["engine"] is None


def test_a_run_that_is_too_large_for_its_device_does_not_fit() -> None:
    assert report()["device_memory"] == {"bytes": REFERENCE_GPU, "known": False, "fits": True}
    small = plan(SETTINGS, GIB)
    most = max(parts["total"] for parts in small["memory_per_device"].values())
    assert small["device_memory"] == {"bytes": GIB, "known": True, "fits": most <= 0.95 * GIB}
    assert not plan(SETTINGS, 2 * most // 100)["device_memory"]["fits"]


def test_processes_on_one_machine_share_its_memory() -> None:
    cpu = HardwareSettings("cpu", "cpu", 2, 1, "ddp", "32-true")
    found = plan(replace(SETTINGS, hardware=cpu, sampler=SamplerSettings(name="hf")), 10 * GIB)
    assert found["device_memory"]["bytes"] == 5 * GIB


def test_every_strategy_is_compared_on_one_to_eight_devices() -> None:
    rows = report()["strategies"]
    assert {row["strategy"] for row in rows} == set(STRATEGIES)
    assert {row["devices"] for row in rows if row["strategy"] == "deepspeed_stage_3"} == {1, 2, 4, 8}
    for row in rows:
        if row["deepspeed"] is not None:
            assert row["device"] == pytest.approx(row["deepspeed"]["device"], rel=0.1)
            assert row["host"] == pytest.approx(row["deepspeed"]["host"], rel=0.1)


def test_updates_that_16_bit_weights_lose_are_told() -> None:
    plain = replace(GPU, strategy="ddp")
    (note,) = report(hardware=plain)["notes"]
    assert "model.dtype=float32" in note
    assert report()["notes"] == []
    assert report(hardware=plain, model=replace(MODEL, dtype="float32"))["notes"] == []


def test_disk_holds_the_ring_of_a_run_that_may_go_back() -> None:
    """The ring is full, and one more is pinned."""
    disk = report(monitor=MonitorSettings("remediate", ring=4))["disk"]
    assert disk["checkpoints"] == 5 * disk["checkpoint"]


def test_disk_holds_two_checkpoints_and_a_policy_a_stage() -> None:
    found = report()
    parameters = found["model"]["parameters"]
    assert found["disk"] == {
        "checkpoint": 14 * parameters,  # 16-bit weights, float32 weights and moments
        "checkpoints": 28 * parameters,
        "policies": 2 * 2 * parameters,
        "engine_weights": 2 * parameters,
        "total": 34 * parameters,
    }
