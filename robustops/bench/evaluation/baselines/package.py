"""Packages of extra `evaluate`, which single baselines need and nothing else does."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from robustops.errors import ConfigError


def installed(name: str) -> bool:
    """Whether the package of a module is there, without importing it."""
    return importlib.util.find_spec(name.partition(".")[0]) is not None


def package(module: str) -> Any:
    """The module, imported; ConfigError where its package is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{module.partition('.')[0]} is not installed ({error}); pip install 'robustops[evaluate]', or "
            "leave its method out with methods=[...]"
        ) from error
