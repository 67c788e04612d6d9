"""Stages of `robustops bench` that make and read the data set."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustops.errors import ConfigError
from robustops.settings import BenchSettings


def dataset(settings: BenchSettings) -> dict[str, Any]:
    """Verify the campaign's runs and make the tables and the datasheet; returns the manifest."""
    from robustops.bench.campaign import datasheet
    from robustops.bench.campaign.dataset import LIMIT_MB, build
    from robustops.bench.campaign.verdict import judged
    from robustops.commands.show import place, show_line

    campaign, out = _folders(settings)
    manifest = build(
        campaign,
        out,
        expected=_expected(settings),
        verdicts=judged(campaign),
        commit=_commit(),
        partial=settings.partial,
        seed=settings.seed,
    )
    datasheet.write(out)
    if settings.format == "text":
        for name, facts in manifest["files"].items():
            show_line(f"{name}: {facts['rows']:,} rows, {facts['bytes'] / 1e6:.2f} MB")
        over = "" if manifest["megabytes"] <= LIMIT_MB else f", more than the {LIMIT_MB:g} MB to be committed"
        show_line(f"data set: {place(out)} ({manifest['megabytes']} MB{over})")
    return {"stage": "dataset", "dataset": str(out), **manifest}


def compared(settings: BenchSettings) -> dict[str, Any] | None:
    """`compare` at the end of a campaign: None where there is no data set, or none of these runs."""
    from robustops.bench.campaign.dataset import MANIFEST
    from robustops.commands.show import show_line

    if not (_folders(settings)[1] / MANIFEST).is_file():
        return None
    try:
        return compare(settings)
    except ConfigError as error:
        if settings.format == "text":
            show_line(f"not compared with the data set: {error}")
        return None


def compare(settings: BenchSettings) -> dict[str, Any]:
    """Hold the campaign's runs against the rows of the data set; returns the largest differences."""
    from robustops.bench.campaign.compare import reproduces
    from robustops.bench.campaign.dataset import load
    from robustops.commands.show import show_line, show_table

    campaign, out = _folders(settings)
    found = reproduces(load(out), campaign)
    if settings.format == "text":
        verdict = "equal as stored" if found.exact else f"{len(found.differing)} differ"
        show_line(f"{found.runs} runs against the data set, {found.values:,} values: {verdict}")
        if found.unknown:
            show_line(f"{len(found.unknown)} runs are not in the data set")
        if found.largest:
            worst = sorted(found.largest.items(), key=lambda item: -item[1].relative)
            rows = [(n, f"{d.relative:.2g}", f"{d.absolute:.2g}", d.run_id, d.step) for n, d in worst]
            show_table(("column", "relative", "absolute", "run", "step"), rows, "largest differences")
    return {"stage": "compare", **found.report()}


def table(settings: BenchSettings) -> dict[str, Any]:
    """Sum the data set up, and probe whether metadata tell its labels; returns both."""
    from robustops.bench.campaign.dataset import load
    from robustops.bench.campaign.metadata_probe import probe
    from robustops.bench.campaign.tables import summary, tables
    from robustops.commands.show import show_line, show_wide

    loaded = load(_folders(settings)[1])
    found = summary(loaded)
    probes = {"metadata": probe(loaded), "timing": probe(loaded, timing=True)}
    if settings.format == "text":
        for one in tables(found):
            show_wide(one)
        for name, told in probes.items():
            interval = f"95 % {told.low:.3f} to {told.high:.3f}, p {told.p_value:.3f}"
            verdict = "tells the label" if told.leaks else "does not tell the label"
            show_line(f"{name} alone {verdict}: AUROC {told.auroc:.3f} ({interval})")
    return {"stage": "table", **found, "probes": {name: told.report() for name, told in probes.items()}}


def figures(settings: BenchSettings) -> dict[str, Any]:
    """Draw the figures beside the tables; returns their paths."""
    from robustops.bench.campaign.dataset import load
    from robustops.bench.campaign.figures import draw
    from robustops.commands.show import place, show_line

    out = _folders(settings)[1]
    paths = draw(load(out), out / "figures")
    if settings.format == "text":
        for path in paths:
            show_line(f"figure: {place(path)}")
    return {"stage": "figures", "figures": [str(path) for path in paths]}


def _folders(settings: BenchSettings) -> tuple[Path, Path]:
    return Path(settings.campaign).absolute(), Path(settings.dataset).absolute()


def _expected(settings: BenchSettings) -> list[str]:
    from robustops.bench.campaign.plan import planned
    from robustops.bench.campaign.strengths import injection

    plan = planned(settings.types, settings.seeds, root=settings.seed, injection=injection)
    return [run.run_id for run in plan]


def _commit() -> str | None:
    """Commit of the checkout that this program is, None where it is none."""
    from robustops.resources import in_checkout

    if not in_checkout():
        return None
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


#: By name; each takes the command's settings and returns what format=json prints.
STAGES: dict[str, Callable[[BenchSettings], dict[str, Any]]] = {
    "dataset": dataset,
    "compare": compare,
    "table": table,
    "figures": figures,
}
