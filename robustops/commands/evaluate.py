"""`robustops evaluate`: success of policies, clean, under tool faults and under the held-out family."""

from __future__ import annotations

from typing import Any

from robustops.commands.runner import Context
from robustops.settings import EvaluateSettings


def run(settings: EvaluateSettings, context: Context) -> dict[str, Any]:
    """Evaluate; returns the content of `summary.json`."""
    from robustops.learning.pipeline import run_evaluation

    summary: dict[str, Any] = run_evaluation(settings, context.run_dir, context.config)
    if settings.format == "text":
        from robustops.commands.show import place, show_line

        show_line(f"run folder: {place(context.run_dir)}")
    return summary
