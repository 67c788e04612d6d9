"""`robustops doctor`: what this machine can run."""

from __future__ import annotations

from typing import Any

from robustops.commands.machine import (
    choices,
    facts,
    lacks_hardware,
    lacks_model,
    lacks_sampler,
)
from robustops.commands.runner import Context
from robustops.commands.show import show_line, show_table
from robustops.settings import DoctorSettings, HardwareSettings, ModelSettings, SamplerSettings

#: Free memory and disk that the quickstart needs, in GiB.
NEEDED_MEMORY, NEEDED_DISK = 6.0, 2.0


def run(settings: DoctorSettings, context: Context) -> dict[str, Any]:
    """Look at the machine; returns everything found."""
    report = examine()
    if settings.format == "text":
        show_table(("what", "found"), _rows(report), "this machine")
        show_table(("choice", "here", "why not"), _verdicts(report), "what it can run")
        show_line("memory of a run: robustops train ... dry_run=true")
        show_line("start with: robustops train experiment=quickstart")
    return report


def examine() -> dict[str, Any]:
    """`machine.facts`, and under `can_run` each choice with None, or with what is missing for it."""
    report = facts()
    report["can_run"] = can_run(report)
    return report


def can_run(machine: dict[str, Any]) -> dict[str, str | None]:
    """Choice -> None if it runs here, else what is missing. The choices are those of conf/."""
    missing = {"experiment=quickstart": _lacks_quickstart(machine)}
    for name, content in choices("hardware").items():
        missing[f"hardware={name}"] = lacks_hardware(HardwareSettings(**content), machine)
    for name, content in choices("model").items():
        missing[f"model={name}"] = lacks_model(ModelSettings(**content), machine)
    for name, content in choices("sampler").items():
        missing[f"sampler={name}"] = lacks_sampler(SamplerSettings(**content), machine)
    for name in ("wandb", "tensorboard"):
        absent = not machine["packages"][name]
        missing[f"logger={name}"] = [f"pip install 'robustops[{name}]'"] if absent else []
    return {choice: "; ".join(things) or None for choice, things in missing.items()}


def _lacks_quickstart(machine: dict[str, Any]) -> list[str]:
    missing = [
        f"{name} {machine[key]} GiB free, {needed} needed"
        for name, key, needed in (
            ("memory", "memory_free_gib", NEEDED_MEMORY),
            ("disk", "disk_free_gib", NEEDED_DISK),
        )
        if machine[key] < needed
    ]
    return missing if machine["tiny_model"] else [*missing, "no tiny model in data/"]


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [(name, str(value)) for name, value in report.items() if isinstance(value, str | int | float)]
    rows += [(name, found or "not installed") for name, found in report["packages"].items()]
    devices = [
        f"{device['name']} ({device['memory_gib']} GiB{', bf16' if device['bf16'] else ''})"
        for device in report["devices"]
    ]
    rows.append(("CUDA devices", ", ".join(devices) or "none"))
    rows.append(("CUDA of torch", report["cuda"]["torch"] or "built without"))
    return [*rows, ("NVIDIA driver", report["cuda"]["driver"] or "none")]


def _verdicts(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(name, "no" if missing else "yes", missing or "") for name, missing in report["can_run"].items()]
