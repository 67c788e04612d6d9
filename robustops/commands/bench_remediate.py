"""`robustops bench stage=remediate`: interventions on runs of the campaign."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from robustops.commands.bench_failure import failure
from robustops.commands.machine import cores
from robustops.errors import ConfigError, TrainingError
from robustops.settings import BenchSettings, EndpointSettings


def remediate(settings: BenchSettings) -> dict[str, Any]:
    """Make the cases that are not there yet; returns what was done, and what came of each arm.

    TrainingError where a case raised, or where workers were killed and cases are missing for it.
    """
    from rich.console import Console

    from robustops.bench.evaluation.remediation import CASES
    from robustops.bench.remediation.remediate import Request, remediate
    from robustops.commands.composition import composed_training

    request = Request(
        Path(settings.campaign).absolute(),
        Path(settings.dataset).absolute(),
        tuple(settings.arms),
        settings.cases,
        settings.final,
        settings.seed,
        _endpoint(settings.arms, settings.llm),
        settings.shard,
        settings.shards,
        settings.workers or cores(),
    )
    console = Console(stderr=True) if settings.progress else None
    found = remediate(request, composed_training, console)
    arms = by_arm(found.rows)
    if settings.format == "text":
        _show(found.report, request.campaign / CASES, arms)
    if not found.report.whole:
        raise TrainingError(failure(found.report, request.folder, "cases"))
    return {
        "stage": "remediate",
        "split": request.split,
        "cases": str(request.campaign / CASES),
        "drawn": {"faulty": len(found.draw.faulty), "healthy": len(found.draw.healthy)},
        "made": found.report.made,
        "core_seconds": found.report.core_seconds,
        "arms": arms,
    }


def by_arm(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """How many cases of each arm ended how; other_prefix: that were not the recorded run at first."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        own = found.setdefault(str(row["arm"]), {})
        for name in (f"{row['kind']}/{row['state']}", *(["other_prefix"] if not row["same_prefix"] else [])):
            own[name] = own.get(name, 0) + 1
    return found


def _endpoint(arms: Sequence[str], llm: EndpointSettings) -> tuple[str, ...]:
    """Overrides of a training run; none where no model is asked."""
    if "llm" not in arms:
        return ()
    if llm.model is None:
        raise ConfigError(
            "arm llm needs a model; give llm.model=NAME and, if it is not OpenAI's, llm.base_url"
        )
    values = {
        name: getattr(llm, name) for name in ("base_url", "model", "api_key_env", "timeout_s", "retries")
    }
    return tuple(
        f"monitor.llm.{name}={'null' if value is None else _quoted(value)}" for name, value in values.items()
    )


def _quoted(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def _show(report: Any, path: Path, arms: Mapping[str, Mapping[str, int]]) -> None:
    from robustops.commands.show import place, show_line, show_table

    show_line(
        f"{report.done} of {report.planned} cases are done, {report.made} made now in {report.seconds:.0f} s "
        f"({report.core_seconds:.0f} core-seconds)"
    )
    rows = [(arm, name, count) for arm, own in arms.items() for name, count in sorted(own.items())]
    show_table(("arm", "case", "number"), rows)
    show_line(f"cases: {place(path)}; robustops bench stage=evaluate makes table V of them")


#: By name; takes the command's settings and returns what format=json prints.
STAGES: dict[str, Callable[[BenchSettings], dict[str, Any]]] = {"remediate": remediate}
