"""Packages that only the benchmark's data set and figures need."""

from __future__ import annotations

import importlib
from typing import Any

from robustops.errors import ConfigError


def require(module: str) -> Any:
    """The module, imported; ConfigError where its package is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{module.partition('.')[0]} is not installed ({error}); pip install 'robustops[faultbench]'"
        ) from error
