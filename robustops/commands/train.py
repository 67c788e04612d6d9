"""`robustops train`: Base -> SFT -> GRPO -> paired evaluation in one run folder."""

from __future__ import annotations

from typing import Any

from robustops.commands.runner import Context, prints_results
from robustops.errors import RunPaused
from robustops.settings import TrainSettings


def run(settings: TrainSettings, context: Context) -> dict[str, Any]:
    """Train and evaluate; returns the content of `summary.json`, or the report of a dry run."""
    if settings.dry_run:
        from robustops.commands.dry_run import dry_run

        return dry_run(settings)
    from robustops.commands.launch import as_worker, needs_workers, run_workers

    injected: dict[str, Any] = {}
    if {settings.run_fault.name, settings.second_run_fault.name} != {"none"}:
        from robustops.bench.run_faults.injector import training_hooks

        injected["hooks"] = training_hooks(settings, context.run_dir)
    if needs_workers(settings.hardware):
        summary = run_workers(settings, context)
    else:
        from robustops.learning.pipeline import run_training

        with as_worker(settings, context):
            try:
                summary = run_training(
                    settings, context.run_dir, context.config, context.overrides, **injected
                )
            except RunPaused:
                _say_what_was_done(settings, context)
                raise
    _say_what_was_done(settings, context)
    if prints_results() and settings.format == "text":
        from robustops.commands.show import place, show_line

        show_line(f"run folder: {place(context.run_dir)}")
    return summary


def _say_what_was_done(settings: TrainSettings, context: Context) -> None:
    """One line for each decision of monitor=remediate, from the run's summary."""
    if not prints_results() or settings.format != "text" or settings.monitor.name != "remediate":
        return
    from robustops.commands.show import show_line
    from robustops.files import read_json
    from robustops.monitor.intervention.report import sentences

    summary = read_json(context.run_dir / "summary.json", what="summary")
    for line in sentences(summary["health"]):
        show_line(line)
