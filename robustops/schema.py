"""Typed root configs: what Hydra composes is merged into the settings dataclasses.

So a misspelt key, a value of the wrong type and a missing key are refused while composing, before any work.
"""

from __future__ import annotations

from hydra.core.config_store import ConfigStore

from robustops.settings import (
    BenchSettings,
    CollectSettings,
    CommandSettings,
    DoctorSettings,
    EvaluateSettings,
    MonitorCommandSettings,
    ReplaySettings,
    ServeSettings,
    TasksSettings,
    TrainSettings,
)

#: Root config of each command; `conf/<command>.yaml` merges into it as `<command>_schema`.
ROOTS: dict[str, type[CommandSettings]] = {
    "train": TrainSettings,
    "evaluate": EvaluateSettings,
    "collect": CollectSettings,
    "serve": ServeSettings,
    "tasks": TasksSettings,
    "replay": ReplaySettings,
    "bench": BenchSettings,
    "monitor": MonitorCommandSettings,
    "doctor": DoctorSettings,
}


def register() -> None:
    """Make the root schemas known to Hydra; calling it again changes nothing."""
    store = ConfigStore.instance()
    for command, root in ROOTS.items():
        store.store(name=f"{command}_schema", node=root, provider="robustops")
