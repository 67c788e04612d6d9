"""Packages that only some parts need, and which extra of `pip install` has them."""

from __future__ import annotations

import importlib
from typing import Any

from robustops.errors import ConfigError


def require(module: str, extra: str, otherwise: str = "") -> Any:
    """The module, imported; ConfigError with the extra to install where its package is absent, and what
    `otherwise` can be done.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{module.partition('.')[0]} is not installed ({error}); "
            f"pip install 'robustops[{extra}]'{otherwise}"
        ) from error
