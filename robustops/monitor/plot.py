"""A picture of a judged run: its key signals, the onset, and where each piece of evidence lies.

Colours are those of Okabe and Ito. Drawn without a screen (Agg); matplotlib is in the extra `faultbench`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from robustops.errors import ConfigError
from robustops.extras import require
from robustops.monitor.panel import Panel, Series
from robustops.monitor.verdict import Evidence, Verdict
from robustops.monitor.wording import headline

#: What is drawn beside the columns of the evidence, where it was observed.
USUAL = (
    *("reward_mean", "success_mean", "kl_ref_k3", "kl_ref_k1", "entropy", "grad_norm", "len_mean"),
    *("zero_signal_frac", "trunc_frac"),
)
#: Panels of one picture.
MOST = 8
_ENDINGS = (".png", ".svg", ".pdf")
_LINE, _BAD, _ONSET = "#0072B2", "#D55E00", "#CC79A7"
#: Largest over least value from which on an axis is logarithmic.
_DECADES = 1e3


def draw(panel: Panel, verdict: Verdict, path: Path, title: str = "") -> None:
    """Write the picture. ConfigError for an ending that is none of png, svg, pdf, or without matplotlib."""
    if path.suffix not in _ENDINGS:
        raise ConfigError(f"plot={path}: write a file that ends in {', '.join(_ENDINGS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"plot={path}: there is no folder {path.parent}; create it first")
    require("matplotlib", "faultbench").use("Agg")
    pyplot = require("matplotlib.pyplot", "faultbench")
    names = shown(panel, verdict)
    rows = max(1, (len(names) + 1) // 2)
    figure, grid = pyplot.subplots(
        *(rows, 2), figsize=(10, 0.6 + 2.0 * rows), sharex=True, squeeze=False, layout="constrained"
    )
    try:
        for axes, name in zip(grid.flat, names, strict=False):
            _signal(axes, panel, verdict, name)
        for axes in grid.flat[len(names) :]:
            axes.set_visible(False)
        for axes in grid[-1]:
            axes.set_xlabel("step")
        figure.supxlabel("dashed: onset; ring: evidence; dotted: the bound that it broke", fontsize=8)
        figure.suptitle(" - ".join(part for part in (title, headline(verdict)) if part), fontsize=11)
        figure.savefig(path, dpi=150)
    finally:
        pyplot.close(figure)


def shown(panel: Panel, verdict: Verdict) -> list[str]:
    """Columns to draw: those of the evidence, first mover first, then the usual ones."""
    wanted = (*(evidence.column for evidence in verdict.evidence), *USUAL)
    return [name for name in dict.fromkeys(wanted) if panel.observed(name)][:MOST]


def _signal(axes: Any, panel: Panel, verdict: Verdict, name: str) -> None:
    values = panel[name]
    known = np.isfinite(values)
    axes.plot(panel.steps[known], values[known], color=_LINE, linewidth=1.2, marker=_marker(known))
    if verdict.onset is not None:
        axes.axvline(verdict.onset, color=_ONSET, linewidth=1.2, linestyle=(0, (5, 2)))
    if _wide(values[known]):
        axes.set_yscale("log")
    for evidence in verdict.evidence:
        if evidence.column == name:
            _mark(axes, evidence, values)
    axes.set_title(name, fontsize=9, loc="left")
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)


def _mark(axes: Any, evidence: Evidence, values: Series) -> None:
    """A ring at the evidence, and the bound that it broke where that is within reach of the axis."""
    if np.isfinite(evidence.value):
        axes.plot(
            *([evidence.step], [evidence.value]), "o", markersize=9, color=_BAD, fillstyle="none", mew=1.6
        )
    spread = float(np.nanmax(values) - np.nanmin(values)) if np.isfinite(values).any() else 0.0
    for bound in {evidence.low, evidence.high}:
        if np.isfinite(bound) and np.nanmin(values) - spread <= bound <= np.nanmax(values) + spread:
            axes.axhline(bound, color=_BAD, linewidth=0.8, linestyle=(0, (1, 1.5)))


def _marker(known: Any) -> str | None:
    """Points where a line would show nothing: few values."""
    return "." if int(known.sum()) <= 40 else None


def _wide(values: Series) -> bool:
    return bool(values.size and values.min() > 0 and values.max() / values.min() > _DECADES)
