"""Packages that only the benchmark's data set and figures need."""

from __future__ import annotations

from typing import Any

from robustops import extras


def require(module: str) -> Any:
    """The module, imported; ConfigError where its package is not installed."""
    return extras.require(module, "faultbench")
