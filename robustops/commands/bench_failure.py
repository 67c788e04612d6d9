"""Why a start of the campaign's runner did not make everything, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def failure(report: Any, folder: Path, what: str = "runs") -> str:
    """report: `bench.campaign.campaign.Report`; folder: where it is made; what: is made, in the plural."""
    parts = []
    if report.failed:
        run_id, error = next(iter(report.failed.items()))
        parts.append(
            f"{len(report.failed)} of {report.planned} {what} failed, first {run_id}: {error} (planned run "
            f"and traceback: {folder / 'failures' / run_id}.txt)"
        )
    missing = report.planned - report.done - report.in_flight - len(report.failed)
    if missing:
        how = f" (workers were ended by {', '.join(report.killed)})" if report.killed else ""
        parts.append(f"{missing} {what} are missing{how}; start the same command again to make them")
    return "; ".join(parts)
