"""`robustops bench stage=evaluate`: detectors and diagnosers on the data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustops.commands.machine import cores
from robustops.settings import BenchSettings

#: Numbers of each method that are part of the command's JSON; all of them are in rows.json.
HEADLINES = (
    *("auroc", "recall@5", "false_alarms@5", "balanced_f1", "paper_f1", "delay_median"),
    *("false_alarms_1000_steps", "type_f1", "family_f1", "end_to_end_type_f1", "open_set_auroc"),
)


def evaluate(settings: BenchSettings) -> dict[str, Any]:
    """Evaluate the methods, write tables and figures; returns where they are and the headline numbers."""
    from robustops.bench.campaign.dataset import load
    from robustops.bench.campaign.extras import require
    from robustops.bench.evaluation import evaluate as work
    from robustops.bench.evaluation import figures, registry, remediation
    from robustops.bench.evaluation import table as written
    from robustops.bench.evaluation import tables as paper
    from robustops.bench.evaluation.runs import Runs

    require("matplotlib")  # before the work, not after it
    campaign, dataset = Path(settings.campaign).absolute(), Path(settings.dataset).absolute()
    methods = registry.chosen(settings.methods)
    swept = registry.swept(methods)
    request = work.Request(
        dataset,
        campaign / "evaluation",
        tuple(methods),
        settings.partitions,
        settings.final,
        sweep=tuple(method.name for method in swept),
        seed=settings.seed,
        workers=settings.workers or cores(),
    )
    with _progress(settings) as tell:
        found = work.evaluate(request, tell)
    loaded = load(dataset)
    cases = remediation.read_cases(campaign, final=settings.final)
    table_5 = remediation.remediation_table(cases, Runs(loaded).labels, settings.seed, request.draws)
    all_tables = paper.tables(found, request, [table_5])
    paths = written.write(all_tables, paper.everything(found), request.folder / "tables")
    drawn = figures.draw(
        loaded, found.rows, swept, request.tiers[-1], cases, campaign, request.folder / "figures"
    )
    if settings.format == "text":
        _show(all_tables, request.folder, drawn)
    return {
        "stage": "evaluate",
        **found.facts,
        "reference": found.reference,
        "not_installed": found.absent,
        "refused": found.refused,
        "tables": [str(path) for path in paths],
        "figures": [str(path) for path in drawn],
        "rows": [row.to_dict() for row in found.rows.rows if row.metric in HEADLINES and not row.of],
    }


class _progress:
    """Tells of finished units, on a terminal's standard error."""

    def __init__(self, settings: BenchSettings) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("evaluating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not settings.progress)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Callable[[int, int], None]:
        self._bar.start()
        return lambda done, of: self._bar.update(self._task, completed=done, total=of)

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


def _show(all_tables: Any, folder: Path, drawn: list[Path]) -> None:
    from robustops.commands.show import place, show_line, show_wide

    for table in all_tables:
        if table.rows:
            show_wide(table.rich())
        else:
            show_line(f"{table.title}: {table.note}")
    show_line(f"tables: {place(folder / 'tables' / 'tables.md')}")
    for path in drawn:
        show_line(f"figure: {place(path)}")


def fit(settings: BenchSettings) -> dict[str, Any]:
    """Write what the data set teaches as a profile for `monitor.profile`; returns where it is."""
    from robustops.bench.campaign.worker import EXPERIMENT
    from robustops.bench.evaluation.fitting import fit_monitor
    from robustops.bench.evaluation.runs import Runs
    from robustops.commands.composition import composed_training
    from robustops.commands.show import place, show_line
    from robustops.learning.fingerprint import flat_settings

    folder = Path(settings.profile or Path(settings.campaign) / "profile").absolute()
    training, _ = composed_training([f"experiment={EXPERIMENT}", f"paths.run_dir={folder}"])
    fitted = fit_monitor(Runs.read(Path(settings.dataset)), flat_settings(training), settings.seed)
    fitted.save(folder)
    counts = fitted.about["runs"]
    if settings.format == "text":
        learned = ", ".join(f"{count} {name}" for name, count in counts.items())
        show_line(f"profile: {place(folder)} ({learned} runs)")
    return {
        "stage": "fit",
        "profile": str(folder),
        "runs": counts,
        "false_alarm_bound": fitted.calibration.rate_bound(fitted.level),
    }


#: By name; takes the command's settings and returns what format=json prints.
STAGES: dict[str, Callable[[BenchSettings], dict[str, Any]]] = {"evaluate": evaluate, "fit": fit}
