"""`robustops monitor`: a verdict on the log of a training run, ours or another trainer's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from robustops.commands.monitor_fit import fit
from robustops.commands.runner import Context
from robustops.commands.show import place, show_line, show_table
from robustops.errors import ConfigError
from robustops.monitor.detect.conformal import least_runs
from robustops.monitor.fitted import ALPHA, FittedMonitor, is_fitted
from robustops.monitor.importers import Imported, load
from robustops.monitor.judge import judge, unseen, within
from robustops.monitor.panel import Panel
from robustops.monitor.plot import draw
from robustops.monitor.taxonomy import CODES
from robustops.monitor.verdict import Verdict
from robustops.monitor.wording import headline
from robustops.settings import MonitorCommandSettings

Profile = FittedMonitor | Sequence[Panel]


def run(settings: MonitorCommandSettings, context: Context) -> dict[str, Any]:
    """Read and judge; returns the verdict's JSON keys, and what was read."""
    if settings.fit is not None:
        return fit(settings, healthy_runs(settings.fit, settings, "fit"))
    if settings.source is None:
        raise ConfigError("monitor needs source=PATH: a run folder or a log file of any known trainer")
    profile = _profile(settings)
    found = _followed(settings, profile) if settings.follow else _once(settings, profile)
    if found is None:
        raise ConfigError(f"{settings.source} had nothing to read when the watch ended; check source=")
    imported, verdict = found
    if settings.plot is not None:
        draw(
            within(imported.panel, settings.horizon), verdict, Path(settings.plot), Path(settings.source).name
        )
    if settings.format == "text":
        _show(imported, verdict, settings)
    return report(imported, verdict, settings)


def report(imported: Imported, verdict: Verdict, settings: MonitorCommandSettings) -> dict[str, Any]:
    """What `format=json` prints."""
    panel = imported.panel
    return {
        "source": settings.source,
        "format": imported.format,
        "names": imported.names,
        "rows": len(panel),
        "steps": [int(panel.steps[0]), int(panel.steps[-1])],
        **verdict.to_dict(),
        "not_observed_because": _reasons(imported, verdict, settings),
        "notes": list(imported.notes),
        "unmapped": dict(imported.unmapped),
    }


def _profile(settings: MonitorCommandSettings) -> Profile:
    if settings.profile is None:
        return []
    if is_fitted(settings.profile):
        return FittedMonitor.load(settings.profile)
    panels = healthy_runs(settings.profile, settings)
    if len(panels) < least_runs(ALPHA):
        return panels
    return FittedMonitor.fit([within(panel, settings.horizon) for panel in panels])


def healthy_runs(path: str, settings: MonitorCommandSettings, key: str = "profile") -> list[Panel]:
    """Panels of a log, or of every log in a folder; ConfigError where there is none."""
    root = Path(path)
    try:
        return [_load(root, settings).panel]
    except ConfigError as alone:
        if not root.is_dir():
            raise
        panels = []
        for entry in sorted(root.iterdir()):
            try:
                panels.append(_load(entry, settings).panel)
            except ConfigError:
                continue  # what else lies there: notes, configurations
        if not panels:
            raise ConfigError(f"{key}={path} holds no log of a healthy run: {alone}") from alone
        return panels


def _load(path: Path, settings: MonitorCommandSettings) -> Imported:
    estimator = None if settings.kl_estimator == "unknown" else settings.kl_estimator
    return load(path, settings.source_format, estimator)


def _once(settings: MonitorCommandSettings, profile: Profile) -> tuple[Imported, Verdict]:
    assert settings.source is not None
    imported = _load(Path(settings.source), settings)
    verdict = judge(imported.panel, horizon=settings.horizon, profile=profile, growing=settings.follow)
    return imported, verdict


def _followed(settings: MonitorCommandSettings, profile: Profile) -> tuple[Imported, Verdict] | None:
    """The last state of a growing log, once Ctrl-C ends the watch; None where there was never anything. A
    line on standard error tells each change of the verdict.
    """
    console = Console(stderr=True)
    newest, said, seen = None, "", -1
    if settings.progress:
        console.print(f"watching {settings.source}, Ctrl-C ends it", style="dim", highlight=False)
    try:
        while True:
            try:
                if (size := _size(Path(settings.source or ""))) != seen:
                    newest, seen = _once(settings, profile), size
            except ConfigError as error:  # not there yet, or its first row is not
                if newest is None and said != str(error):
                    said = str(error)
                    console.print(f"waiting: {error}", style="dim", highlight=False, markup=False)
            if newest is not None and settings.progress and (line := _line(*newest)) != said:
                said = line
                console.print(line, highlight=False, markup=False, soft_wrap=True)
            time.sleep(settings.interval_s)
    except KeyboardInterrupt:
        return newest


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder: what grows when a row comes."""
    total = 0
    for entry in path.rglob("*") if path.is_dir() else [path]:
        with contextlib.suppress(FileNotFoundError):  # checkpoints come and go
            total += entry.stat().st_size
    return total


def _line(imported: Imported, verdict: Verdict) -> str:
    """What a watcher is told: the verdict, and what came last of the evidence."""
    step = int(imported.panel.steps[-1])
    newest = max(verdict.evidence, key=lambda evidence: evidence.step, default=None)
    because = f" - {newest.text}" if newest is not None else ""
    return f"step {step}: {headline(verdict)}{because}"


def _reasons(imported: Imported, verdict: Verdict, settings: MonitorCommandSettings) -> list[str]:
    return unseen(within(imported.panel, settings.horizon)) if verdict.verdict == "not_observed" else []


# text ---------------------------------------------------------------------------------------------
def _show(imported: Imported, verdict: Verdict, settings: MonitorCommandSettings) -> None:
    panel = imported.panel
    first, last = int(panel.steps[0]), int(panel.steps[-1])
    show_line(
        f"{settings.source}: {imported.format}, {len(panel)} rows ({first} to {last}), "
        f"{len(panel.columns)} columns"
    )
    show_line(f"verdict: {headline(verdict)}")
    for reason in _reasons(imported, verdict, settings):
        show_line(f"  {reason}")
    _show_diagnosis(verdict)
    if verdict.evidence:
        rows = [(e.step, e.column, f"{e.value:.4g}", _range(e.low, e.high), e.text) for e in verdict.evidence]
        show_table(("step", "signal", "value", "expected", "what"), rows, "evidence, first mover first")
    if verdict.missing:
        show_line(f"not observed, would tell more: {', '.join(verdict.missing)}")
    for note in imported.notes:
        show_line(f"note: {note}")
    for key, reason in imported.unmapped.items():
        if "kl_estimator" in reason:
            show_line(f"note: {key} is {reason}")
    if imported.unmapped:
        some = ", ".join(list(imported.unmapped)[:4])
        show_line(f"{len(imported.unmapped)} keys have no column ({some}, ...); format=json says why")
    if settings.plot is not None:
        show_line(f"plot: {place(Path(settings.plot))}")


def _show_diagnosis(verdict: Verdict) -> None:
    if verdict.verdict == "anomalous":
        labels = ", ".join(f"{name} ({CODES[name]}) {share:.0%}" for name, share in verdict.labels.items())
        show_line(f"  severity {verdict.severity:.2g}; may be: {labels or 'none of the 16 known faults'}")
    if verdict.p_value == verdict.p_value:
        show_line(f"  {verdict.p_value:.1%} of healthy runs look as bad")


def _range(low: float, high: float) -> str:
    if low != low or high != high:
        return ""
    if low == float("-inf"):
        return f"<= {high:.4g}"
    if high == float("inf"):
        return f">= {low:.4g}"
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
