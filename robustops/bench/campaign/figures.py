"""Two figures of the data set: what healthy and faulty runs look like, and what each type of fault moves.

Colours are those of Okabe and Ito, and a blue-to-orange scale: both can be told apart with any common colour
blindness; lines differ in their dashes, too. Drawn without a screen (Agg).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robustops.bench.campaign.dataset import Dataset
from robustops.bench.campaign.extras import require
from robustops.bench.campaign.fingerprints import fingerprints, primary_effects
from robustops.bench.run_faults.catalog import CATALOG
from robustops.errors import DatasetError
from robustops.monitor import schema

#: Columns of the observability figure, as in the paper's figure 3, and the names of their axes.
SHOWN = {
    "reward_mean": "reward",
    "kl_ref_k3": "KL to the reference (nats/token)",
    "entropy": "entropy (nats/token)",
    "len_mean": "length (tokens)",
}
#: Of Okabe and Ito, with the dashes that go with them.
STYLES = (
    ("#0072B2", "-"),
    ("#D55E00", (0, (5, 1.5))),
    ("#009E73", (0, (1, 1))),
    ("#CC79A7", (0, (5, 1.5, 1, 1.5))),
    ("#000000", (0, (3, 1, 1, 1, 1, 1))),
)
#: Effects beyond this have the last colour of the scale.
CLIP = 6.0
_DPI = 150


@dataclass(frozen=True)
class Band:
    """What healthy runs do: (steps,) median, and the bounds of nine tenths of the runs."""

    low: np.ndarray
    middle: np.ndarray
    high: np.ndarray


def healthy_band(dataset: Dataset, column: str) -> Band:
    """Of one column over all healthy runs, as long as the shortest; DatasetError where there is none."""
    series = [dataset.series(row["run_id"], column) for row in dataset.rows if row["kind"] == "healthy"]
    if not series:
        raise DatasetError(f"{dataset.folder} has no healthy run to draw")
    steps = min(map(len, series))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice")
        bounds = np.nanpercentile(np.stack([one[:steps] for one in series]), [5, 50, 95], axis=0)
    return Band(*bounds)


def representatives(dataset: Dataset) -> list[dict[str, Any]]:
    """One easy run a family, the one whose effect is nearest to the median of its type; of the types of a
    family that one whose median effect is the largest. Hard ones where a family has no easy run.
    """
    longest = max(row["steps"] for row in dataset.rows)
    effects = primary_effects(dataset, fingerprints(dataset, longest))
    chosen = []
    for family in dict.fromkeys(fault.family for fault in CATALOG.values()):
        own = [row for row in dataset.rows if row["kind"] == "fault" and row["family"] == family]
        own = [row for row in own if np.isfinite(effects.get(row["run_id"], np.nan))]
        easy = [row for row in own if row["difficulty"] == "easy"] or own
        if not easy:
            continue
        medians = {
            name: float(np.median([effects[row["run_id"]] for row in easy if row["fault"] == name]))
            for name in dict.fromkeys(row["fault"] for row in easy)
        }
        name = max(medians, key=lambda name: medians[name])
        alike = [row for row in easy if row["fault"] == name]
        chosen.append(min(alike, key=lambda row: abs(effects[row["run_id"]] - medians[name])))
    return chosen


def heat_map(dataset: Dataset, horizon: int) -> tuple[list[str], list[str], np.ndarray]:
    """Types, columns and the (types, columns) median effects of their easy runs (of all, where a type has no
    easy one). Columns that no run observed, or that never move, are left out; portable ones come first.
    """
    prints = fingerprints(dataset, horizon)
    single = [row for row in dataset.rows if row["kind"] == "fault" and row["run_id"] in prints.run_ids]
    types = [name for name in CATALOG if any(row["fault"] == name for row in single)]
    rows = []
    for name in types:
        own = [row for row in single if row["fault"] == name]
        easy = [row["run_id"] for row in own if row["difficulty"] == "easy"] or [r["run_id"] for r in own]
        places = [prints.run_ids.index(run_id) for run_id in easy]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice")
            rows.append(np.nanmedian(prints.z[places], axis=0))
    values = np.stack(rows)
    tiers = [schema.quantity(name).tier for name in prints.columns]
    order = sorted(range(len(tiers)), key=lambda place: tiers[place] != "P")  # stable
    kept = [p for p in order if np.any(np.nan_to_num(values[:, p]) != 0)]
    return types, [prints.columns[p] for p in kept], values[:, kept]


def draw(dataset: Dataset, out: Path, horizon: int | None = None) -> list[Path]:
    """Write observability.png and fingerprints.png; returns their paths. horizon: None is the whole run."""
    require("matplotlib").use("Agg")
    pyplot = require("matplotlib.pyplot")
    out.mkdir(parents=True, exist_ok=True)
    steps = max(row["steps"] for row in dataset.rows)
    paths = []
    for name, figure in (
        ("observability", _observability(pyplot, dataset)),
        ("fingerprints", _fingerprints(pyplot, *heat_map(dataset, horizon or steps))),
    ):
        paths.append(out / f"{name}.png")
        figure.savefig(paths[-1], dpi=_DPI, metadata={"Software": None})
        pyplot.close(figure)
    return paths


def _observability(pyplot: Any, dataset: Dataset) -> Any:
    """Four panels under each other in pairs; a dot marks each fault's onset on its own line."""
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 6.4), layout="constrained", sharex=True)
    runs = representatives(dataset)
    for axis, (column, label) in zip(axes.flat, SHOWN.items(), strict=True):
        band = healthy_band(dataset, column)
        steps = np.arange(1, len(band.middle) + 1)
        axis.fill_between(steps, band.low, band.high, color="#BBBBBB", alpha=0.6, linewidth=0)
        axis.plot(steps, band.middle, color="#666666", linewidth=1.2)
        for row, (colour, dashes) in zip(runs, STYLES, strict=False):
            series = dataset.series(row["run_id"], column)
            axis.plot(np.arange(1, len(series) + 1), series, color=colour, linestyle=dashes, linewidth=1.4)
            axis.plot(row["onset"], series[row["onset"] - 1], "o", color=colour, markersize=5, zorder=4)
        if _wide([dataset.series(row["run_id"], column) for row in runs], band):
            axis.set_yscale("symlog", linthresh=max(float(np.nanmax(np.abs(band.high))), 1e-6))
        axis.set_ylabel(label)
        axis.grid(alpha=0.3, linewidth=0.5)
    for axis in axes[-1]:
        axis.set_xlabel("step")
    _legend(pyplot, figure, runs)
    figure.suptitle("Healthy runs and one fault of each family (dot: onset)", fontsize=11)
    return figure


def _legend(pyplot: Any, figure: Any, runs: Sequence[dict[str, Any]]) -> None:
    """Below the panels, so that it covers no line."""
    lines, patches = require("matplotlib.lines"), require("matplotlib.patches")
    handles = [patches.Patch(color="#BBBBBB", label="healthy, 5 to 95 %")]
    handles.append(lines.Line2D([], [], color="#666666", label="healthy, median"))
    for row, (colour, dashes) in zip(runs, STYLES, strict=False):
        label = f"{CATALOG[row['fault']].code} {row['fault'].replace('_', ' ')}"
        handles.append(lines.Line2D([], [], color=colour, linestyle=dashes, label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)


def _wide(series: Sequence[np.ndarray], band: Band) -> bool:
    """Whether a line leaves the band so far that the band would be flat."""
    room = float(np.nanmax(band.high) - np.nanmin(band.low))
    return any(float(np.nanmax(np.abs(one))) > float(np.nanmax(band.high)) + 20 * room for one in series)


def _fingerprints(pyplot: Any, types: Sequence[str], columns: Sequence[str], values: np.ndarray) -> Any:
    """The heat map, columns upright along the bottom, with a line between portable and own columns."""
    width, height = 3.2 + 0.19 * len(columns), 2.6 + 0.26 * len(types)
    figure, axis = pyplot.subplots(figsize=(width, height), layout="constrained")
    scale = require("matplotlib.colors").LinearSegmentedColormap.from_list(
        "blue_orange", ["#0B4C8C", "#6BAED6", "#F7F7F7", "#FDAE61", "#A63603"]
    )
    scale.set_bad("#DDDDDD")
    clipped = np.ma.masked_invalid(np.clip(values, -CLIP, CLIP))
    image = axis.imshow(clipped, cmap=scale, vmin=-CLIP, vmax=CLIP, aspect="auto", interpolation="none")
    axis.set_xticks(range(len(columns)), labels=columns, rotation=90, fontsize=7)
    axis.set_yticks(
        range(len(types)), labels=[f"{CATALOG[t].code}  {t.replace('_', ' ')}" for t in types], fontsize=8
    )
    axis.tick_params(length=0)
    for border in _family_borders(types):
        axis.axhline(border - 0.5, color="black", linewidth=0.6)
    portable = sum(schema.quantity(name).tier == "P" for name in columns)
    axis.axvline(portable - 0.5, color="black", linewidth=1.4)
    for text, left, right in (("P: portable", 0, portable), ("I: instrumented", portable, len(columns))):
        if right > left:
            place = ((left + right) / 2 / len(columns), 1.0)
            axis.annotate(
                *(text, place),
                xycoords="axes fraction",
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=9,
            )
    bar = figure.colorbar(image, ax=axis, shrink=0.8, pad=0.01, extend="both")
    bar.set_label("median effect (deviations of healthy runs)", fontsize=8)
    figure.suptitle("What each type of fault moves, against its control (grey: not observed)", fontsize=10)
    return figure


def _family_borders(types: Sequence[str]) -> list[int]:
    families = [CATALOG[name].family for name in types]
    return [i for i in range(1, len(families)) if families[i] != families[i - 1]]
