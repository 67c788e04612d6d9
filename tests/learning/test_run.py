from __future__ import annotations

import json

import pytest

from robustops.errors import ConfigError
from robustops.faults.manifest import Manifest
from robustops.faults.plan import fault_choices
from robustops.learning.adapters import merged_weights
from robustops.learning.policy import Policy
from robustops.learning.run import BASE, EARLY_OPPORTUNITIES, Run
from robustops.learning.samplers import SamplerPool
from robustops.monitor.alerts import Alert
from robustops.monitor.telemetry import StepRecord
from robustops.rollout.episode import Limits
from robustops.rollout.hf import HFSampler
from robustops.rollout.scripted import ScriptedSampler
from robustops.settings import ModelSettings, SamplerSettings
from tests.learning.small_run import LIMITS, train_settings
from tests.learning.support import same_weights, weights_of
from tests.tiny_model import shake


@pytest.fixture
def run(base_model, tmp_path):
    with Run(train_settings(base_model), tmp_path / "run", {}) as opened:
        yield opened


def interrupt(run, stage):
    """Leave a checkpoint as a stage that was stopped does."""
    checkpoints = run.checkpoints(stage)
    checkpoints.begin(2)
    checkpoints.state(2).write_bytes(b"interrupted")
    checkpoints.finish(2, 2)


def test_base_is_the_model_of_the_settings(run):
    one, two = run.load(BASE), run.load(BASE)
    assert same_weights(weights_of(one.model), weights_of(two.model)) and one.model is not two.model


def test_a_stage_is_complete_once_its_policy_is_in_place(run):
    policy = run.load(BASE)
    shake(policy.model, seed=1)
    assert not run.complete("sft")
    interrupt(run, "sft")
    run.save("sft", policy)
    assert run.complete("sft") and not run.complete("grpo")
    assert run.resume_point("sft") is None, "a finished stage needs no checkpoint"
    assert [path.name for path in run.policy_folder("sft").parent.iterdir()] == ["policy"]
    loaded = run.load("sft")
    assert same_weights(weights_of(loaded.model), weights_of(policy.model))
    assert not same_weights(weights_of(loaded.model), weights_of(run.load(BASE).model))


def test_a_policy_that_was_not_saved_whole_is_no_result(run, monkeypatch):
    policy = run.load(BASE)

    def half(self, folder):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    interrupt(run, "sft")
    with monkeypatch.context() as patch:
        patch.setattr(Policy, "save", half)
        with pytest.raises(KeyboardInterrupt):
            run.save("sft", policy)
    assert not run.complete("sft") and run.resume_point("sft").batches == 2
    run.save("sft", policy)
    assert run.complete("sft")
    names = [path.name for path in run.policy_folder("sft").parent.iterdir()]
    assert names == ["policy"], "the torn one is gone"


def test_policies_of_another_run_can_be_named(run, base_model):
    run.policies["sft"] = base_model
    assert same_weights(weights_of(run.load("sft").model), weights_of(run.load(BASE).model))
    with pytest.raises(ConfigError, match="no model in"):
        run.load("grpo")


def test_the_collector_has_the_budgets_of_the_model_and_the_sampler(run):
    policy = run.load(BASE)
    collector = run.collector(policy, run.samplers.of(policy))
    assert collector.limits == LIMITS == Limits(1000, 60, 7) and collector.max_in_flight == 32
    assert collector.renderer is policy.renderer and set(collector.domains) == {"itsm"}


def test_cases_are_those_of_the_split_and_the_tool_configurations(run, base_model, tmp_path):
    assert len(run.cases("train")) == 3 and {c.tool_config for c in run.cases("train")} == {"oracle"}
    settings = train_settings(base_model, domain={"tool_configs": ["oracle", "plus5"]})
    with Run(settings, tmp_path / "both", {}) as both:
        assert [case.tool_config for case in both.cases("test")] == ["oracle", "plus5"] * 3
        assert [c.id for c in both.cases("train")[::2]] == [c.id for c in run.cases("train")]


@pytest.mark.parametrize("condition", ["fault", "heldout"])
def test_a_manifest_is_made_once_and_then_read(run, condition):
    cases = run.cases("train")
    made = run.manifest(condition, cases, seed=1)
    families = {plan.family for _, plan in made.assignments}
    assert (families == {"ignored_filter"}) == (condition == "heldout") and families
    assert all(plan.opportunity < EARLY_OPPORTUNITIES for _, plan in made.assignments)
    path = run.folder / "manifests" / f"{condition}.json"
    text = path.read_text()
    assert run.manifest(condition, cases, seed=2) == made, "the one in the folder is frozen"
    assert path.read_text() == text and Manifest.load(path) == made
    assert set(made.subtypes) == set(fault_choices("ignored_filter" if condition == "heldout" else "trained"))


def test_a_given_manifest_is_that_of_the_fault_condition_only(run, base_model, tmp_path):
    cases = run.cases("train")
    other = run.manifest("fault", cases, seed=8)
    other.save(tmp_path / "given.json")
    settings = train_settings(base_model, fault={"manifest": str(tmp_path / "given.json")})
    with Run(settings, tmp_path / "second", {}) as second:
        assert second.manifest("fault", cases, seed=3) == other
        held_out = second.manifest("heldout", cases, seed=3)
        assert held_out.subtypes == fault_choices("ignored_filter")
        assert [p.name for p in (second.folder / "manifests").iterdir()] == ["heldout.json"]


def test_a_folder_can_be_opened_again_and_goes_on(base_model, tmp_path):
    for step in (1, 2):
        with Run(train_settings(base_model), tmp_path, {}) as run:
            run.telemetry.write(StepRecord(step=step, stage="sft"))
            run.store.add_step("sft", step, {}, 0.1)
    lines = [json.loads(line) for line in (tmp_path / "telemetry.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    with Run(train_settings(base_model), tmp_path, {}) as run:
        assert [row["step"] for row in run.store.steps("sft")] == [1, 2]


def test_what_was_opened_is_closed_when_the_work_fails(base_model, tmp_path):
    with (
        pytest.raises(RuntimeError, match="failed"),
        Run(train_settings(base_model, logger={"name": "csv"}), tmp_path, {}) as run,
    ):
        assert run.loggers
        raise RuntimeError("failed")
    with pytest.raises(OSError):
        run.telemetry.write(StepRecord(step=1, stage="sft"))


# the pool of samplers -------------------------------------------------------------------------------
def pool(run, name, **options) -> SamplerPool:
    return SamplerPool(SamplerSettings(name, **options), ModelSettings(), run.domains, run.folder)


def test_the_pool_makes_the_sampler_that_the_settings_name(run):
    policy = run.load(BASE)
    sampler = pool(run, "hf", temperature=0.7, max_in_flight=5).of(policy)
    assert isinstance(sampler, HFSampler) and sampler.model is policy.model
    assert (sampler.temperature, sampler.max_in_flight) == (0.7, 5)
    assert pool(run, "hf").of(policy, temperature=0.0).temperature == 0.0, "greedy is not the default"
    assert isinstance(pool(run, "scripted").of(policy), ScriptedSampler)
    with pytest.raises(ConfigError, match="choose one of: hf, openai, scripted, vllm"):
        pool(run, "other").of(policy)


def test_an_endpoint_needs_its_address_and_its_key(run, monkeypatch):
    policy = run.load(BASE)
    with pytest.raises(ConfigError, match=r"needs sampler\.base_url and sampler\.model"):
        pool(run, "openai", model="m").of(policy)
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"\$NO_SUCH_KEY, which is not set"):
        pool(run, "openai", base_url="http://x", model="m", api_key_env="NO_SUCH_KEY").of(policy)


def test_named_weights_are_all_weights_tied_ones_once(run):
    model = run.load(BASE).model
    named = dict(merged_weights(model))
    assert named.keys() == weights_of(model).keys() and "lm_head.weight" not in named
    assert not any(tensor.requires_grad for tensor in named.values())


def test_a_process_that_does_not_lead_writes_and_prints_nothing(base_model, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    settings = train_settings(base_model, logger={"name": "csv"}, format="text")
    with Run(settings, tmp_path, {}) as run:
        run.telemetry.write(StepRecord(1, "sft", {"loss": 1.0}))
        run.store.add_step("sft", 1, {"loss": 1.0}, 0.1)
        run.alert(Alert("sft", 1, "spike", 1.0, "loss is high"))
        run.save("sft", run.load(BASE))
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")
