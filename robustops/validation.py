"""The rules of settings that types cannot express: choices, lower bounds, values that go together."""

from __future__ import annotations

import dataclasses
from typing import Any

from robustops.bench.run_faults.catalog import check_together, chosen
from robustops.errors import ConfigError
from robustops.faults.plan import FAMILIES, HELD_OUT, check_subtypes
from robustops.faults.scheduler import check_caps
from robustops.settings import (
    CollectSettings,
    FaultSettings,
    GRPOSettings,
    ModelSettings,
    RunFaultSettings,
    SFTSettings,
    TrainSettings,
)
from robustops.tasks.curriculum import parse_curriculum


def validate(settings: Any, path: str = "") -> None:
    """Enforce choices and lower bounds on every field; ConfigError names the key and what it may be."""
    for entry in dataclasses.fields(settings):
        value, key = getattr(settings, entry.name), f"{path}{entry.name}"
        if dataclasses.is_dataclass(value):
            validate(value, f"{key}.")
            continue
        items = value if isinstance(value, list) else [value]
        choices, low = entry.metadata.get("choices"), entry.metadata.get("low")
        for item in items:
            if choices is not None and item not in choices:
                raise ConfigError(f"{key} is '{item}'; choose {_wording(value)}: {', '.join(choices)}")
            if low is not None and item is not None and not item >= low:
                raise ConfigError(f"{key} is {item}; it must be at least {low}")
        if choices is not None and len(set(items)) != len(items):
            raise ConfigError(f"{key} names a value twice: {', '.join(items)}")
    for rule in (_model_rules, _fault_rules, _run_fault_rules, _training_rules):
        rule(settings, path)


def _wording(value: Any) -> str:
    return "some of" if isinstance(value, list) else "one of"


def _model_rules(settings: Any, path: str) -> None:
    if not isinstance(settings, ModelSettings):
        return
    if settings.answer_tokens >= settings.context_tokens:
        raise ConfigError(
            f"{path}answer_tokens={settings.answer_tokens} leaves no room in {path}context_tokens="
            f"{settings.context_tokens}; make the context larger"
        )
    if settings.source == "hub" and not (settings.hub_id or settings.checkpoint):
        raise ConfigError(
            f"{path}source=hub needs {path}hub_id, or {path}checkpoint with a folder of weights"
        )


def _fault_rules(settings: Any, path: str) -> None:
    if isinstance(settings, FaultSettings):
        check_subtypes(tuple(settings.subtypes))
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in settings.caps):
            raise ConfigError(f"{path}caps is {settings.caps}; give pairs such as [[1,0.6],[2,0.4]]")
        check_caps(settings.caps)
        if settings.name == "manifest" and settings.manifest is None:
            raise ConfigError(f"fault=manifest needs {path}manifest=FILE, a file of frozen fault assignments")
    trains = isinstance(settings, TrainSettings) and settings.stages
    if trains or isinstance(settings, CollectSettings):
        held_out = {subtype for family in HELD_OUT for subtype in FAMILIES[family]}
        found = sorted(held_out.intersection(settings.fault.subtypes))
        if found:
            raise ConfigError(
                f"fault={settings.fault.name} includes {', '.join(found)}, held out of all training; use "
                "fault=trained (train with stages=[] only evaluates, and takes any fault)"
            )


def _run_fault_rules(settings: Any, path: str) -> None:
    if isinstance(settings, TrainSettings):
        check_together(settings.run_fault, settings.second_run_fault)
    if not isinstance(settings, RunFaultSettings):
        return
    for name in ("strength", "probability"):
        if getattr(settings, name) > 1:
            raise ConfigError(f"{path}{name} is {getattr(settings, name)}; it must be between 0 and 1")
    if settings.end is not None and settings.end <= settings.onset:
        raise ConfigError(
            f"{path}end={settings.end} leaves no step to strike from {path}onset={settings.onset} on; give a "
            "later end, or null"
        )
    if settings.name != "none":
        chosen(settings)


def _training_rules(settings: Any, path: str) -> None:
    if isinstance(settings, GRPOSettings) and settings.groups + settings.fault_groups == 0:
        raise ConfigError(f"{path}groups and {path}fault_groups are both 0; a step needs at least one group")
    if isinstance(settings, GRPOSettings):
        smallest = min(n for n in (settings.groups, settings.fault_groups) if n > 0)
        if settings.mini_batches > smallest:
            raise ConfigError(
                f"{path}mini_batches={settings.mini_batches} cannot be filled: each needs a group of every "
                f"kind, and {smallest} is the smaller number of groups; lower it or raise the groups"
            )
        parse_curriculum(settings.curriculum)
        if settings.decay_from and settings.schedule != "linear":
            raise ConfigError(
                f"{path}decay_from={settings.decay_from} has no effect with {path}schedule="
                f"{settings.schedule}; choose {path}schedule=linear, or {path}decay_from=0"
            )
        if settings.staleness > 1:
            raise ConfigError(f"{path}staleness is {settings.staleness}; choose 0 (on policy) or 1")
    if isinstance(settings, TrainSettings) and settings.stages == ["grpo", "sft"]:
        raise ConfigError(
            "stages=[grpo,sft] is out of order; reinforcement goes on from SFT: stages=[sft,grpo]"
        )
    if isinstance(settings, SFTSettings | CollectSettings) and settings.fault_share > 1:
        raise ConfigError(f"{path}fault_share is {settings.fault_share}; it must be between 0 and 1")
