"""`robustops replay`: play recorded tool calls on fresh worlds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from robustops.commands.runner import Context
from robustops.errors import ConfigError
from robustops.rollout.replay import read_lines, replay_calls, write_lines
from robustops.settings import ReplaySettings
from robustops.worlds.domain import get_domain


def run(settings: ReplaySettings, context: Context) -> dict[str, Any]:
    """Replay; returns how many calls were played, and how many were refused by error code."""
    if settings.calls is None or settings.out is None:
        raise ConfigError("replay needs calls=FILE (recorded calls) and out=FILE (where the replies go)")
    out = Path(settings.out)
    if not out.parent.is_dir():
        raise ConfigError(f"out={out}: there is no folder {out.parent}; create it first")
    domain = get_domain(settings.domain.name, settings.domain.detail, settings.domain.database)
    lines = list(replay_calls(read_lines(settings.calls), domain, settings.domain.database))
    write_lines(out, lines)
    refused = Counter(str(line["error_code"]) for line in lines if line.get("error_code"))
    report = {"calls": len(lines), "refused": dict(refused), "out": str(out)}
    if settings.format == "text":
        from robustops.commands.show import show_line

        codes = ", ".join(f"{code} {count}" for code, count in refused.most_common()) or "none"
        show_line(f"{len(lines)} calls played, refused: {codes}; written to {out}")
    return report
