"""Packages that only some parts of the monitor need."""

from __future__ import annotations

import importlib
from typing import Any

from robustops.errors import ConfigError


def require(module: str, extra: str) -> Any:
    """The module, imported; ConfigError with the extra to install where its package is absent."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{module.partition('.')[0]} is not installed ({error}); pip install 'robustops[{extra}]'"
        ) from error
