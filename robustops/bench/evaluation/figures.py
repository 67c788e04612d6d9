"""The counterparts of the paper's figures 6 (one intervention) and 7 (the horizon). No screen is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robustops.bench.campaign.dataset import Dataset
from robustops.bench.campaign.extras import require
from robustops.bench.campaign.figures import SHOWN, STYLES, healthy_band
from robustops.bench.evaluation.detection import DIFFICULTIES
from robustops.bench.evaluation.registry import DETECT, Method
from robustops.bench.evaluation.remediation import Case
from robustops.bench.evaluation.rows import Rows
from robustops.bench.run_faults.catalog import CATALOG
from robustops.monitor.panel import Panel
from robustops.monitor.telemetry import read_telemetry

#: Shown in figure 6, as in the paper: observation corruption, TE-2.
CASE_FAULT = "observation_corruption"
_DPI = 150
_METRICS = {DETECT: ("balanced_f1", "balanced F1"), "diagnose": ("type_f1", "macro-F1 over types")}


def draw(
    dataset: Dataset,
    rows: Rows,
    swept: Sequence[Method],
    tier: str,
    cases: Sequence[Case],
    campaign: Path,
    out: Path,
) -> list[Path]:
    """Write figure_6.png and figure_7.png; returns the paths of those that there is anything to draw for.

    swept: methods evaluated at several horizons in this tier.
    """
    require("matplotlib").use("Agg")
    pyplot = require("matplotlib.pyplot")
    out.mkdir(parents=True, exist_ok=True)
    made = {
        "figure_6": _intervention(pyplot, dataset, cases, campaign),
        "figure_7": _horizon(pyplot, rows, swept, tier),
    }
    paths = []
    for name, figure in made.items():
        if figure is not None:
            paths.append(out / f"{name}.png")
            figure.savefig(paths[-1], dpi=_DPI, metadata={"Software": None})
            pyplot.close(figure)
    return paths


def horizons(rows: Rows, method: str, tier: str, metric: str, difficulty: str) -> np.ndarray:
    """(horizons, 4): horizon, estimate, low, high of a method's metric, in order."""
    found = [
        (row.horizon, row.estimate, row.low, row.high)
        for row in rows.rows
        if (row.method, row.tier, row.metric, row.difficulty, row.of)
        == (method, tier, metric, difficulty, "")
    ]
    return np.array(sorted(found), dtype=np.float64).reshape(-1, 4)


def _horizon(pyplot: Any, rows: Rows, swept: Sequence[Method], tier: str) -> Any:
    """A panel a task, a line a method and difficulty, with its 95 % interval as a band."""
    tasks = [task for task in _METRICS if any(method.task == task for method in swept)]
    if not tasks:
        return None
    figure, axes = pyplot.subplots(
        1, len(tasks), figsize=(5 * len(tasks), 4.2), layout="constrained", squeeze=False
    )
    for axis, task in zip(axes[0], tasks, strict=True):
        metric, label = _METRICS[task]
        lines = [(m.name, d) for m in swept if m.task == task for d in DIFFICULTIES]
        for (name, difficulty), (colour, dashes) in zip(lines, STYLES, strict=False):
            values = horizons(rows, name, tier, metric, difficulty)
            if len(values):
                at, estimate, low, high = values.T
                axis.fill_between(at, 100 * low, 100 * high, color=colour, alpha=0.15, linewidth=0)
                axis.plot(
                    at, 100 * estimate, "o", color=colour, linestyle=dashes, label=f"{name}, {difficulty}"
                )
        axis.set(xlabel="horizon (steps)", ylabel=f"{label} (%)", ylim=(0, 102))
        axis.grid(alpha=0.3, linewidth=0.5)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
    figure.suptitle(f"What is known after so many steps, tier {tier} (bands: 95 %)", fontsize=11)
    return figure


def _intervention(pyplot: Any, dataset: Dataset, cases: Sequence[Case], campaign: Path) -> Any:
    """Four signals of one run: with the fault, with the intervention where there is one, and its twin."""
    shown = _shown(dataset, cases)
    if shown is None:
        return None
    run_id, case = shown
    row, control = dataset.by_id[run_id], dataset.control(run_id)
    mended = _mended(case, campaign)
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 6.4), layout="constrained", sharex=True)
    for axis, (column, label) in zip(axes.flat, SHOWN.items(), strict=True):
        band = healthy_band(dataset, column)
        steps = np.arange(1, len(band.middle) + 1)
        axis.fill_between(
            steps, band.low, band.high, color="#BBBBBB", alpha=0.6, linewidth=0, label="healthy, 5 to 95 %"
        )
        lines = [("fault", dataset.series(run_id, column))]
        if control is not None:
            lines.append(("same seed, healthy", dataset.series(control, column)))
        if mended is not None:
            lines.append((f"fault, {case['arm'] if case else ''}", mended[column]))
        for (name, series), (colour, dashes) in zip(lines, STYLES, strict=False):
            axis.plot(
                np.arange(1, len(series) + 1),
                series,
                color=colour,
                linestyle=dashes,
                linewidth=1.4,
                label=name,
            )
        axis.axvline(row["onset"], color="black", linewidth=0.7, linestyle=":")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3, linewidth=0.5)
    for axis in axes[-1]:
        axis.set_xlabel("step")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    fault = CATALOG[row["fault"]]
    what = "no intervention on record" if mended is None else "with and without intervention"
    figure.suptitle(f"{fault.code} {fault.name.replace('_', ' ')}, {what} (dotted: onset)", fontsize=11)
    return figure


def _shown(dataset: Dataset, cases: Sequence[Case]) -> tuple[str, Case | None] | None:
    """The case of the paper's type, any case, or an easy run of the type without a case."""
    known = [c for c in cases if c["run_id"] in dataset.by_id and c.get("telemetry")]
    known.sort(key=lambda case: dataset.by_id[case["run_id"]]["fault"] != CASE_FAULT)  # stable
    if known:
        return known[0]["run_id"], known[0]
    runs = [row for row in dataset.rows if row["fault"] == CASE_FAULT and row["kind"] == "fault"]
    runs.sort(key=lambda row: row["difficulty"] != "easy")
    return (runs[0]["run_id"], None) if runs else None


def _mended(case: Case | None, campaign: Path) -> Panel | None:
    """Telemetry of the run with the intervention."""
    if case is None:
        return None
    records = read_telemetry(campaign / case["telemetry"])
    return Panel.of([record for record in records if record.stage == "grpo"], str(case["run_id"]))
