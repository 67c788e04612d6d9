"""Settings of `robustops train` from overrides, outside of Hydra's own job: for runs in code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from robustops.commands.explain import COMPOSE_ERRORS, explain
from robustops.resources import conf_dir
from robustops.schema import ROOTS, register
from robustops.settings import TrainSettings
from robustops.validation import validate


def composed_training(overrides: Sequence[str]) -> tuple[TrainSettings, dict[str, Any]]:
    """Valid settings, and the resolved config in plain values. `paths.run_dir` must be among the overrides.

    ConfigError for what `robustops train` would refuse, too.
    """
    register()
    outer = GlobalHydra.get_state()  # of the command's own job
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            config = compose("train", list(overrides))
        plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        settings: Any = OmegaConf.to_object(config)
    except COMPOSE_ERRORS as error:
        raise explain(error, ROOTS["train"]) from error
    finally:
        GlobalHydra.set_state(outer)
    validate(settings)
    return settings, plain
