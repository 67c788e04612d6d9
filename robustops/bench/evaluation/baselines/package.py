"""Packages of extra `evaluate`, which single baselines need and nothing else does."""

from __future__ import annotations

import importlib.util
from typing import Any

from robustops.extras import require


def installed(name: str) -> bool:
    """Whether the package of a module is there, without importing it."""
    return importlib.util.find_spec(name.partition(".")[0]) is not None


def package(module: str) -> Any:
    """The module, imported; ConfigError where its package is not installed."""
    return require(module, "evaluate", ", or leave its method out with methods=[...]")
