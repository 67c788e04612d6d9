"""Every root, group choice and experiment composes into valid settings; wrong requests are refused."""

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from robustops.cli import COMMANDS
from robustops.commands import runner  # registers the resolver of sweep folders
from robustops.errors import ConfigError
from robustops.faults.plan import FAMILIES, HELD_OUT, fault_choices
from robustops.resources import conf_dir
from robustops.schema import ROOTS, register
from robustops.settings import (
    RUN_FAULTS,
    CollectSettings,
    EvaluateSettings,
    EvaluationSettings,
    FaultSettings,
    GRPOSettings,
    ModelSettings,
    RewardNormSettings,
    RunFaultSettings,
    SFTSettings,
    TrainSettings,
)
from robustops.validation import validate
from robustops.worlds.domain import domain_names

DESIGN = {
    "domain": {"itsm", "calendar", "arithmetic"},
    "fault": {"none", "trained", "all", "manifest", *FAMILIES},
    "reward_norm": {"aggregate", "component"},
    "hardware": {
        "cpu",
        "cpu_deepspeed",
        "gpu_1",
        "gpu_2",
        "deepspeed_zero2",
        "deepspeed_zero3_offload",
        "multinode",
    },
    "model": {"tiny", "arithmetic", "smollm2_135m", "qwen2_5_1_5b", "arctic_midtool_4b"},
    "sampler": {"hf", "vllm", "vllm_server", "openai", "scripted"},
    "run_fault": {"none", *RUN_FAULTS},
    "monitor": {"off", "observe", "remediate"},
    "logger": {"csv", "tensorboard", "wandb", "none"},
    "experiment": {"quickstart", "smoke", "sft_4b", "grpo_4b", "grpo_120", "ablation_reward_norm"},
}
#: Groups whose choices set keys of several sections.
GLOBAL = ("experiment", "ablation")
GROUPS = sorted(path.name for path in conf_dir().iterdir() if path.is_dir() and path.name != "hydra")
CHOICES = [(group, path.stem) for group in GROUPS for path in sorted((conf_dir() / group).glob("*.yaml"))]


@pytest.fixture(autouse=True)
def hydra_ready() -> Iterator[None]:
    register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield


def composed(command: str, *overrides: str) -> DictConfig:
    config = compose(command, [*overrides, "paths.run_dir=somewhere"])
    OmegaConf.resolve(config)
    return config


def settings_of(command: str, *overrides: str) -> Any:
    settings = OmegaConf.to_object(composed(command, *overrides))
    assert isinstance(settings, ROOTS[command])
    return settings


def groups_of(command: str) -> set[str]:
    """Groups that a root's defaults list names."""
    defaults = yaml.safe_load((conf_dir() / f"{command}.yaml").read_text(encoding="utf-8"))["defaults"]
    return {
        key
        for entry in defaults
        if isinstance(entry, dict)
        for key in entry
        if not key.startswith("override")
    }


def test_every_command_has_a_root_a_schema_and_a_module() -> None:
    roots = {path.stem for path in conf_dir().glob("*.yaml")}
    modules = {path.stem for path in (Path(runner.__file__).parent).glob("*.py")}
    assert roots == set(ROOTS) == set(COMMANDS)
    assert roots <= modules


@pytest.mark.parametrize("command", sorted(ROOTS))
def test_defaults_compose_into_valid_settings(command: str) -> None:
    validate(settings_of(command))


@pytest.mark.parametrize("group", sorted(DESIGN))
def test_groups_offer_the_choices_of_the_design(group: str) -> None:
    assert {choice for name, choice in CHOICES if name == group} >= DESIGN[group]


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_composes_in_every_command_that_has_the_group(group: str, choice: str) -> None:
    commands = [command for command in sorted(ROOTS) if group in groups_of(command)]
    assert commands
    for command in commands:
        settings = settings_of(command, f"{group}={choice}")
        if group == "fault" and choice == "manifest":
            settings.fault.manifest = "frozen.json"
        trains = command in ("train", "collect")
        if group == "fault" and trains and choice in ("all", "manifest", *HELD_OUT):
            with pytest.raises(ConfigError, match="held out"):
                validate(settings)
        else:
            validate(settings)
        if group not in GLOBAL and hasattr(getattr(settings, group), "name"):
            assert getattr(settings, group).name == choice


@pytest.mark.parametrize(("group", "choice"), [pair for pair in CHOICES if pair[0] not in GLOBAL])
def test_choices_set_known_keys_only_and_their_types_fit(group: str, choice: str) -> None:
    section = typing.get_type_hints(TrainSettings)[group]
    written = yaml.safe_load((conf_dir() / group / f"{choice}.yaml").read_text(encoding="utf-8"))
    assert set(written) <= {field.name for field in dataclasses.fields(section)}


@pytest.mark.parametrize("choice", ["none", "trained", "all", *FAMILIES])
def test_fault_choices_are_those_of_the_faults_package(choice: str) -> None:
    assert tuple(settings_of("evaluate", f"fault={choice}").fault.subtypes) == fault_choices(choice)


def test_domains_of_the_group_are_the_domains_that_exist() -> None:
    assert {choice for group, choice in CHOICES if group == "domain"} == set(domain_names())


@pytest.mark.parametrize("domain", domain_names())
@pytest.mark.parametrize("fault", RUN_FAULTS)
def test_a_run_fault_goes_with_every_domain_and_recipe(fault: str, domain: str) -> None:
    settings = settings_of("train", "experiment=quickstart", f"domain={domain}", f"run_fault={fault}")
    validate(settings)
    assert (settings.run_fault.name, settings.domain.name) == (fault, domain)


def test_a_second_run_fault_is_chosen_from_the_same_group() -> None:
    both = ("run_fault=reward_spike", "run_fault@second_run_fault=update_freeze")
    settings = settings_of("train", *both, "second_run_fault.strength=0.5", "run_fault.onset=3")
    validate(settings)
    second = settings.second_run_fault
    assert (settings.run_fault.name, settings.run_fault.onset) == ("reward_spike", 3)
    assert (second.name, second.mechanism, second.strength) == ("update_freeze", "skipped_updates", 0.5)
    assert second.onset == 5


def test_without_a_run_fault_none_is_injected_and_all_guards_are_off() -> None:
    settings = settings_of("train")
    assert settings.run_fault.name == "none"
    assert settings.run_fault == settings.second_run_fault == RunFaultSettings()
    assert not (settings.reward.bounded or settings.reward.recheck or settings.domain.check_replies)
    assert (settings.grpo.entropy, settings.grpo.advantage_clip) == (0.0, None)
    assert (settings.grpo.advantage_guard, settings.grpo.sync_guard) == ("none", "stop")
    assert (settings.sampler.min_new_tokens, settings.sampler.repetition_penalty) == (0, 1.0)
    assert (settings.domain.tool_retries, settings.model.min_turns) == (0, 0)


def test_reference_recipe_has_the_published_numbers() -> None:
    settings = settings_of("train")
    assert (settings.reward.success, settings.reward.progress, settings.reward.quality) == (1.0, 0.3, 0.1)
    assert settings.grpo.kl == 0.001
    assert (settings.grpo.groups, settings.grpo.fault_groups, settings.grpo.group_size) == (16, 16, 4)
    assert (settings.sft.epochs, settings.sft.batch_trajectories, settings.sft.learning_rate) == (3, 8, 3e-6)
    assert settings.stages == ["sft", "grpo"]
    assert (settings.model.context_tokens, settings.model.answer_tokens) == (1536, 96)
    big = settings_of("train", "model=arctic_midtool_4b").model
    assert (big.context_tokens, big.answer_tokens) == (32768, 2048)


@pytest.mark.parametrize(
    ("experiment", "stages"), [("sft_4b", ["sft"]), ("grpo_4b", ["grpo"]), ("grpo_120", ["sft", "grpo"])]
)
def test_recipes_of_the_4b_model_have_the_published_numbers(experiment: str, stages: list[str]) -> None:
    settings = settings_of("train", f"experiment={experiment}")
    model, sft, grpo = settings.model, settings.sft, settings.grpo
    assert settings.stages == stages
    assert (model.name, model.context_tokens, model.answer_tokens) == ("arctic_midtool_4b", 32_768, 2_048)
    assert (sft.epochs, sft.batch_trajectories, sft.learning_rate) == (3, 8, 3e-6)
    assert (grpo.steps, grpo.groups, grpo.fault_groups, grpo.group_size) == (120, 16, 16, 4)
    assert (grpo.learning_rate, grpo.kl, settings.sampler.temperature) == (1e-6, 0.001, 1.0)
    assert (grpo.zero_signal_wait, grpo.dynamic_sampling, grpo.whiten) == (10, True, True)
    assert (settings.reward.success, settings.reward.progress, settings.reward.quality) == (1.0, 0.3, 0.1)
    assert (settings.reward_norm.name, settings.fault.name) == ("component", "trained")
    if "sft" in stages:
        assert sft.tasks == 692
        assert model.hub_id == "MidTool/Arctic-MidTool-RL-4B"
    else:
        assert model.hub_id == "haohuiliang/RobustOps-SFT-4B"
    assert (settings.hardware.name, settings.sampler.name) == ("gpu_1_offload", "vllm")


def test_the_hardware_of_a_recipe_can_be_chosen() -> None:
    settings = settings_of("train", "experiment=grpo_120", "hardware=deepspeed_zero2")
    assert (settings.hardware.devices, settings.hardware.strategy) == (8, "deepspeed_stage_2")


def test_the_ablation_is_the_quickstart_swept_over_order_and_seed() -> None:
    overrides = ["experiment=ablation_reward_norm", "hydra.job.num=0", "hydra.runtime.output_dir=somewhere"]
    config = compose("train", overrides, return_hydra_config=True)
    assert config.hydra.mode == RunMode.MULTIRUN
    assert dict(config.hydra.sweeper.params) == {"reward_norm": "aggregate,component", "seed": "0,1,2"}
    assert settings_of("train", "experiment=ablation_reward_norm") == settings_of(
        "train", "experiment=quickstart"
    )


@pytest.mark.parametrize(
    ("ablation", "path", "value"),
    [
        ("aggregate", "reward_norm.name", "aggregate"),
        ("no_local_credit", "grpo.credit.enabled", False),
        ("no_return", "grpo.zero_signal_wait", None),
        ("success_only", "reward.progress", 0.0),
    ],
)
def test_an_ablation_leaves_one_piece_of_the_recipe_out(ablation: str, path: str, value: Any) -> None:
    full = composed("train", "experiment=quickstart", "ablation=full")
    assert full == composed("train", "experiment=quickstart")
    other = composed("train", "experiment=quickstart", f"ablation={ablation}")
    assert OmegaConf.select(other, path) == value != OmegaConf.select(full, path)
    section = path.rsplit(".", 1)[0].split(".")[0]
    assert {key for key in full if full[key] != other[key]} == {section}


def test_the_ablation_sweep_starts_short_grpo_runs_from_one_policy() -> None:
    settings = settings_of("train", "experiment=ablation_recipe", "model.checkpoint=somewhere")
    assert settings.stages == ["grpo"] and settings.evaluation.policies == ["grpo"]
    assert (settings.grpo.steps, settings.grpo.refill_rounds, settings.grpo.zero_signal_wait) == (12, 1, 3)
    written = yaml.safe_load((conf_dir() / "experiment" / "ablation_recipe.yaml").read_text(encoding="utf-8"))
    variants = written["hydra"]["sweeper"]["params"]["ablation"].split(",")
    assert sorted(variants) == sorted(choice for group, choice in CHOICES if group == "ablation")


def test_overrides_win_over_an_experiment_and_the_experiment_over_the_root() -> None:
    smoke = settings_of("train", "experiment=smoke")
    assert (smoke.sft.name, smoke.grpo.name) == ("smoke", "smoke")
    assert smoke.evaluation.cases != settings_of("train").evaluation.cases
    other = settings_of("train", "experiment=smoke", "grpo=default", "evaluation.cases=7", "domain=calendar")
    assert (other.grpo.name, other.evaluation.cases, other.domain.name) == ("default", 7, "calendar")


def test_evaluate_passes_its_short_keys_on() -> None:
    settings = settings_of("evaluate", "policies=[sft,grpo]", "split=val", "run=outputs/x")
    assert settings.evaluation.policies == ["sft", "grpo"]
    assert settings.evaluation.split == "val"


def test_replay_asks_for_whole_rows_on_the_given_database() -> None:
    settings = settings_of("replay", "database=world.json")
    assert (settings.domain.detail, settings.domain.database) == ("full", "world.json")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (TrainSettings(format="xml"), "format is 'xml'; choose one of: text, json"),
        (TrainSettings(stages=["grpo", "sft"]), "out of order"),
        (TrainSettings(stages=["sft", "sft"]), "names a value twice"),
        (TrainSettings(stages=["rl"]), "choose some of: sft, grpo"),
        (TrainSettings(fault=FaultSettings("x", ["filter_dropped"])), "held out of all training"),
        (CollectSettings(fault=FaultSettings("x", ["filter_dropped"])), "held out of all training"),
        (FaultSettings(subtypes=["nonsense"]), "lost_receipt"),
        (FaultSettings(caps=[1]), r"pairs such as \[\[1,0.6\]"),
        (FaultSettings(caps=[[0, 1.0]]), "cap >= 1"),
        (FaultSettings(name="manifest"), "manifest=FILE"),
        (GRPOSettings(groups=0, fault_groups=0), "at least one group"),
        (GRPOSettings(group_size=1), "group_size is 1; it must be at least 2"),
        (GRPOSettings(kl=float("nan")), "kl is nan"),
        (SFTSettings(fault_share=1.5), "between 0 and 1"),
        (EvaluationSettings(cases=0), "at least 1"),
        (ModelSettings(context_tokens=96, answer_tokens=96), "leaves no room"),
        (ModelSettings(source="hub"), "hub_id"),
        (RewardNormSettings("sum"), "component, aggregate"),
    ],
)
def test_values_that_types_cannot_refuse_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(settings)


def test_held_out_faults_may_be_evaluated() -> None:
    validate(TrainSettings(stages=[], fault=FaultSettings("all", ["filter_dropped"])))
    validate(EvaluateSettings(fault=FaultSettings("all", ["filter_dropped"])))


def test_nested_settings_are_named_by_their_whole_key() -> None:
    with pytest.raises(ConfigError, match=r"^grpo\.steps is 0; it must be at least 1$"):
        validate(TrainSettings(grpo=GRPOSettings(steps=0)))
