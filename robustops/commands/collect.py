"""`robustops collect`: demonstrations as SFT data with masks, from the scripted expert or a teacher."""

from __future__ import annotations

from typing import Any

from robustops.commands.runner import Context
from robustops.settings import CollectSettings


def run(settings: CollectSettings, context: Context) -> dict[str, Any]:
    """Collect; returns how many episodes were tried and kept, and the file."""
    from robustops.learning.collection import run_collection

    report: dict[str, Any] = run_collection(settings, context.run_dir, context.config)
    if settings.format == "text":
        from robustops.commands.show import show_line

        for name, value in report.items():
            show_line(f"{name}: {value}")
    return report
