"""`robustops train`: Base -> SFT -> GRPO -> paired evaluation in one run folder."""

from __future__ import annotations

from typing import Any

from robustops.commands.runner import Context
from robustops.settings import TrainSettings


def run(settings: TrainSettings, context: Context) -> dict[str, Any]:
    """Train and evaluate; returns the content of `summary.json`."""
    from robustops.learning.pipeline import run_training

    summary: dict[str, Any] = run_training(settings, context.run_dir, context.config)
    if settings.format == "text":
        from robustops.commands.show import place, show_line

        show_line(f"run folder: {place(context.run_dir)}")
    return summary
