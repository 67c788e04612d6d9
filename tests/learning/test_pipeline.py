"""Whole runs on a model of two small layers: what they write, and what is refused. See test_resume."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from robustops.errors import ConfigError
from robustops.faults.manifest import Manifest
from robustops.learning import pipeline
from robustops.learning.pipeline import run_evaluation, run_training
from robustops.learning.rollout_callback import RolloutCallback
from robustops.monitor.schema import check_metrics
from robustops.monitor.telemetry import read_telemetry
from robustops.settings import EvaluateSettings, HardwareSettings
from robustops.tracking.run_store import RunStore
from tests.learning.run_folders import assert_same_run, telemetry
from tests.learning.small_run import CONFIG, domain_settings, train_settings

STEPS = [("sft", 1), ("sft", 2), ("grpo", 1), ("grpo", 2), ("grpo", 3)]


# a run that nothing disturbed -----------------------------------------------------------------------
def test_the_run_folder_holds_what_the_design_says(finished):
    folder, _ = finished
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    policy = {f"checkpoints/{stage}/policy/config.json" for stage in ("sft", "grpo")}
    assert {"telemetry.jsonl", "run.db", "summary.json", *policy} <= found
    assert {"manifests/fault.json", "manifests/heldout.json"} <= found
    assert not [name for name in found if name.endswith((".ckpt", ".tmp", ".part"))]
    assert not [path for path in folder.rglob("*.partial*")]


def test_telemetry_has_a_line_a_step_and_run_db_says_the_same(finished):
    folder, _ = finished
    records = read_telemetry(folder / "telemetry.jsonl")
    assert [(record.stage, record.step) for record in records] == STEPS
    with RunStore(folder / "run.db") as store:
        rows = store.steps()
        assert [(row["stage"], row["step"]) for row in rows] == STEPS
        for row, record in zip(rows, records, strict=True):
            assert str(row["metrics"]) == str(dict(record.metrics))
        for record in records[2:]:
            stored = store.episodes(stage="grpo", step=record.step)
            assert len(stored) == record.metrics["rollout/episodes"] > 0
        demonstrations = store.episodes(stage="demonstrations")
        assert len(demonstrations) == 3 and {row["policy"] for row in demonstrations} == {"expert"}


def test_the_stages_trained_on_something(finished):
    records = read_telemetry(finished[0] / "telemetry.jsonl")
    sft, grpo = records[:2], records[2:]
    assert all(check_metrics(record.metrics, complete=False) == [] for record in sft)
    assert all(record.metrics["grad_norm"] > 0.1 and record.metrics["train/tokens"] > 50 for record in sft)
    assert sum(record.metrics["rollout/groups_accepted"] for record in grpo) >= 3
    assert any(record.metrics["grad_norm"] > 0.1 for record in grpo)
    for record in grpo:
        assert check_metrics(record.metrics) == []
        assert record.metrics["obs_roundtrip_mismatch_frac"] == record.metrics["policy_lag_max"] == 0
        if record.metrics["train/episodes"]:
            assert record.metrics["samp_logp_absdiff_max"] < 1e-4
            assert record.metrics["ratio_max"] == pytest.approx(1, abs=1e-4)
    assert any("fault/success" in record.metrics for record in grpo), "there were fault groups"


def test_the_summary_has_the_keys_of_the_design(finished):
    folder, returned = finished
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == json.loads(json.dumps(returned))
    assert {"run", "evaluations", "timings", "health"} <= set(summary)
    assert list(summary["evaluations"]) == ["base", "sft", "grpo"]
    for cells in summary["evaluations"].values():
        assert list(cells) == ["clean", "fault", "heldout"]
        for cell in cells.values():
            wanted = {"success_rate", "ci95", "n", "pass_at_k", "hit_rate"}
            assert wanted | {"tool_calls_mean", "completion_tokens_mean"} == set(cell)
            assert 0 <= cell["ci95"][0] <= cell["success_rate"] <= cell["ci95"][1] <= 1
        assert cells["clean"]["n"] == cells["fault"]["n"] == 3 and cells["clean"]["hit_rate"] == 0
    run = summary["run"]
    assert (run["seed"], run["domain"], run["fault"], run["config"]) == (5, "itsm", "trained", CONFIG)
    assert {"sft/total", "grpo/total", "evaluation/base"} <= set(summary["timings"])


def test_the_evaluation_is_paired(finished):
    folder, _ = finished
    with RunStore(folder / "run.db") as store:
        rows = store.evaluation_rows()
        whole = [store.episode(row["id"]) for row in store.episodes(stage="evaluation")]
    keys = {
        policy: [(r.condition, r.case_id, r.attempt) for r in rows if r.policy == policy]
        for policy in ("base", "sft", "grpo")
    }
    assert keys["base"] == keys["sft"] == keys["grpo"] and len(set(keys["base"])) == len(keys["base"])
    manifests = {name: Manifest.load(folder / "manifests" / f"{name}.json") for name in ("fault", "heldout")}
    struck = Counter()
    for episode in whole:
        for event in episode["tool_faults"]:
            plan = manifests[episode["condition"]].plan(episode["case_id"])
            assert event["subtype"] == plan.subtype
            struck[episode["policy"]] += 1
    assert struck.total() > 0
    cases = {case for condition, case, _ in keys["base"] if condition == "heldout"}
    assert cases == {case for case, _ in manifests["heldout"].assignments}
    assert {plan.family for _, plan in manifests["heldout"].assignments} <= {"ignored_filter"}


def test_a_complete_run_does_nothing_again(finished, base_model, tmp_path, monkeypatch):
    folder, summary = finished
    shutil.copytree(folder, tmp_path / "copy")

    def never(*arguments):
        raise AssertionError("a complete part was run again")

    for stage in ("sft", "grpo"):
        monkeypatch.setitem(pipeline.STAGES, stage, never)
    monkeypatch.setattr(pipeline, "evaluate_policy", never)
    again = run_training(train_settings(base_model), tmp_path / "copy", CONFIG)
    assert again["evaluations"] == summary["evaluations"] and again["timings"] == summary["timings"]
    assert_same_run(tmp_path / "copy", folder)


def test_two_runs_with_one_seed_are_one_run_even_if_one_goes_stage_by_stage(finished, base_model, tmp_path):
    """The same telemetry to the byte, from a folder that was given its second stage later."""
    settings = train_settings(base_model, stages=["sft"], evaluation={"conditions": ["clean"], "cases": 1})
    first = run_training(settings, tmp_path, CONFIG)
    assert list(first["evaluations"]) == ["base", "sft"], "a policy of a stage that was not asked for"
    assert telemetry(finished[0]).startswith(telemetry(tmp_path))
    policies = {"conditions": ["clean"], "cases": 1, "policies": ["grpo"]}
    second = run_training(train_settings(base_model, evaluation=policies), tmp_path, CONFIG)
    assert telemetry(tmp_path) == telemetry(finished[0])
    assert list(second["evaluations"]) == ["grpo"]


def test_another_seed_is_another_run(finished, base_model, tmp_path):
    settings = train_settings(base_model, seed=6, stages=["sft"], evaluation={"policies": []})
    run_training(settings, tmp_path, CONFIG)
    assert not telemetry(finished[0]).startswith(telemetry(tmp_path))


# requests that cannot be met ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"stages": ["sft", "dpo"]}, r"unknown stage 'dpo'; choose one of: grpo, sft"),
        ({"sampler": {"name": "scripted"}}, r"GRPO needs.*sampler=hf or sampler=vllm, not scripted"),
        ({"hardware": HardwareSettings("gpu_9", "gpu", devices=99)}, r"gpu_9 asks for 99 CUDA.*hardware=cpu"),
        ({"hardware": {"num_nodes": 2}}, r"asks for 2 connected processes, none were started.*torchrun"),
        ({"hardware": {"strategy": "deepspeed_stage_2"}}, r"1 connected processes.*robustops train"),
        ({"hardware": {"strategy": "zero"}}, r"unknown hardware.strategy 'zero'.*deepspeed_stage_3_offload"),
        ({"hardware": {"precision": "16-mixed"}}, r"unknown hardware.precision '16-mixed'.*bf16-mixed"),
        (
            {"hardware": {"devices": 2, "strategy": "deepspeed_stage_3"}},
            r"ZeRO-3.*sampler=hf needs all.*sampler=vllm",
        ),
    ],
    ids=["stage", "sampler", "devices", "nodes", "one process", "strategy", "precision", "sharded"],
)
def test_what_cannot_be_done_is_refused_before_anything_is_done(base_model, tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        run_training(train_settings(base_model, **overrides), tmp_path / "run", CONFIG)
    assert not (tmp_path / "run").exists()


def test_sft_alone_takes_any_sampler_for_its_evaluation(base_model, tmp_path):
    settings = train_settings(
        base_model, stages=["sft"], sampler={"name": "scripted"}, evaluation={"conditions": ["clean"]}
    )
    summary = run_training(settings, tmp_path, CONFIG)
    assert summary["evaluations"]["sft"]["clean"]["success_rate"] == 1.0, "the expert itself"


# evaluation of a finished run -----------------------------------------------------------------------
def evaluate_settings(base_model, finished: Path | None, policies, **overrides) -> EvaluateSettings:
    trained = train_settings(base_model)
    return EvaluateSettings(
        seed=5,
        format="json",
        progress=False,
        domain=domain_settings(),
        fault=trained.fault,
        hardware=trained.hardware,
        model=trained.model,
        sampler=trained.sampler,
        logger=trained.logger,
        evaluation=trained.evaluation,
        run=str(finished) if finished else None,
        policies=policies,
        **overrides,
    )


def test_policies_of_a_finished_run_are_evaluated_as_the_run_did(finished, base_model, tmp_path):
    folder, summary = finished
    again = run_evaluation(evaluate_settings(base_model, folder, ["base", "grpo"]), tmp_path, CONFIG)
    assert list(again["evaluations"]) == ["base", "grpo"]
    for policy in ("base", "grpo"):
        assert again["evaluations"][policy] == summary["evaluations"][policy]
    assert not (tmp_path / "telemetry.jsonl").read_text()


def test_an_evaluation_needs_a_run_that_has_the_policy(finished, base_model, tmp_path):
    with pytest.raises(ConfigError, match="'sft' comes from a run; name its folder with run=FOLDER"):
        run_evaluation(evaluate_settings(base_model, None, ["sft"]), tmp_path / "a", CONFIG)
    with pytest.raises(ConfigError, match=r"has no policy 'grpo' \("):
        run_evaluation(evaluate_settings(base_model, tmp_path, ["grpo"]), tmp_path / "b", CONFIG)


# the parts of a stage -------------------------------------------------------------------------------
def test_the_sampler_is_in_step_with_training(base_model, tmp_path, monkeypatch):
    """In the real stage, too: each step's episodes come from the weights of all steps before it."""
    versions = []
    original = RolloutCallback.on_train_batch_start

    def begins(self, trainer, module, batch, batch_idx):
        original(self, trainer, module, batch, batch_idx)
        versions.append({e.weight_version for g in self.sampled.sampled for e in g.episodes})

    monkeypatch.setattr(RolloutCallback, "on_train_batch_start", begins)
    settings = train_settings(base_model, stages=["grpo"], grpo={"steps": 2}, evaluation={"policies": []})
    run_training(settings, tmp_path, CONFIG)
    assert versions == [{0}, {1}]
    assert [r.stage for r in read_telemetry(tmp_path / "telemetry.jsonl")] == ["grpo", "grpo"]
