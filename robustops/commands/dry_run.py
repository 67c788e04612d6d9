"""`robustops train ... dry_run=true`: what the run would take, and whether this machine could run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from robustops.commands.machine import GIB, facts, lacks_hardware, lacks_model, lacks_sampler
from robustops.commands.show import show_line, show_table
from robustops.errors import ConfigError
from robustops.settings import TrainSettings

_PARTS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimiser": "optimiser state",
    "earlier_weights": "weights before the step",
    "reference": "reference policy",
    "sampler": "sampler",
    "activations": "activations",
    "logits": "logits",
    "total": "most at one time",
}
_STATES = ("weights", "gradients", "optimiser")
_ENGINE = {
    "share": "share of the device",
    "weights": "weights",
    "room": "KV cache",
    "context": "one episode of full context",
    "wanted": "all episodes in flight at full context",
}


def dry_run(settings: TrainSettings) -> dict[str, Any]:
    """Report sizes and what is missing here; nothing is trained and nothing is written."""
    from robustops.learning.dry_run import plan

    machine = facts()
    report = plan(settings, _device_memory(settings, machine))
    report["missing_here"] = missing = _missing(settings, machine, report)
    report["runs_here"] = not missing
    if settings.format == "text":
        _show(report)
    return report


def _device_memory(settings: TrainSettings, machine: Mapping[str, Any]) -> int | None:
    """Bytes of the smallest GPU in use, or of this machine's memory; None where there is no GPU."""
    if settings.hardware.accelerator != "gpu":
        return int(machine["memory_gib"] * GIB)
    gpus = machine["devices"][: settings.hardware.devices]
    return int(min(gpu["memory_gib"] for gpu in gpus) * GIB) if gpus else None


def _missing(settings: TrainSettings, machine: Mapping[str, Any], report: Mapping[str, Any]) -> list[str]:
    """What keeps this machine from this run."""
    missing = [
        *lacks_hardware(settings.hardware, machine),
        *lacks_model(settings.model, machine),
        *lacks_sampler(settings.sampler, machine),
        *_refused(settings),
    ]
    device = report["device_memory"]
    if device["known"] and not device["fits"]:
        most = max(parts["total"] for parts in report["memory_per_device"].values())
        missing.append(f"{most / GIB:.1f} GiB a process for {device['bytes'] / GIB:.1f} GiB of memory")
    for needed, there, what in (
        (report["memory_per_host"]["total"], machine["memory_gib"], "CPU memory"),
        (report["disk"]["total"], machine["disk_free_gib"], "disk"),
    ):
        if needed > there * GIB:
            missing.append(f"{needed / GIB:.1f} GiB of {what}, {there} here")
    return missing


def _refused(settings: TrainSettings) -> list[str]:
    """What training refuses beside devices that are not here."""
    from robustops.learning.stages import check_stages

    try:
        check_stages(replace(settings, hardware=replace(settings.hardware, accelerator="cpu")))
    except ConfigError as error:
        return [str(error)]
    return []


# text ---------------------------------------------------------------------------------------------
def _show(report: Mapping[str, Any]) -> None:
    view = _View(report)
    hardware, model = report["hardware"], report["model"]
    machines = f" on each of {hardware['num_nodes']} machines" if hardware["num_nodes"] > 1 else ""
    show_line("dry run: nothing is trained")
    show_table(("model", model["name"]), view.model())
    show_line(
        f"hardware={hardware['name']}: {hardware['devices']} {view.devices}{machines}, "
        f"{hardware['strategy']}, {hardware['precision']}"
    )
    show_table((f"{view.unit} a {view.device}", *report["memory_per_device"]), view.memory())
    show_table(("largest micro-batch", view.unit), view.activations())
    if report["engine"] is not None:
        show_table(("vLLM engine", view.unit), view.engine())
    counts = sorted({row["devices"] for row in report["strategies"]})
    show_table(
        (f"(+ {view.unit} of CPU memory)", *map(str, counts)),
        view.strategies(counts),
        f"weights, gradients, optimiser: {view.unit} a {view.device}, by number of {view.devices}",
    )
    show_table(("work, at most", "stage", "count"), view.work())
    show_table(("disk, at most", view.unit), view.disk())
    for line in view.verdict():
        show_line(line)


class _View:
    """The tables of a report. unit: GiB or MiB, of all sizes; device: what has memory of its own."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        self.report = report
        gpu = report["hardware"]["accelerator"] == "gpu"
        self.device, self.devices = ("GPU", "GPUs") if gpu else ("process", "processes")
        large = report["model"]["parameters"] >= GIB // 8
        self.unit, self._divisor = ("GiB", GIB) if large else ("MiB", GIB // 1024)

    def size(self, count: int) -> str:
        return f"{count / self._divisor:.1f}"

    def model(self) -> list[tuple[str, str]]:
        model = self.report["model"]
        return [
            ("shape from", model["shape_from"]),
            ("parameters", f"{model['parameters']:,}"),
            ("trained", f"{model['trained']:,}"),
            ("bytes a weight", str(model["weight_bytes"])),
            ("layers, width, vocabulary", f"{model['layers']}, {model['hidden']}, {model['vocabulary']:,}"),
        ]

    def memory(self) -> list[list[str]]:
        stages = self.report["memory_per_device"].values()
        rows = [
            [label, *(self.size(parts[name]) if name in parts else "" for parts in stages)]
            for name, label in _PARTS.items()
            if any(name in parts for parts in stages)
        ]
        for name, count in self.report["memory_per_host"].items():
            if count:
                rows.append([f"CPU memory: {name}", *[self.size(count)] * len(stages)])
        estimate = self.report["deepspeed_estimate"]
        if estimate is not None:
            states = [sum(parts[name] for name in _STATES) for parts in stages]
            rows.append([", ".join(_STATES), *map(self.size, states)])
            rows.append(["  DeepSpeed's estimate", *[self.size(estimate["device"])] * len(stages)])
            rows.append(["  DeepSpeed's estimate, CPU", *[self.size(estimate["host"])] * len(stages)])
        return rows

    def activations(self) -> list[tuple[str, str]]:
        found = self.report["activations"]
        used = {found["checkpointing"]: " (as configured)"}
        return [
            ("tokens", f"{found['tokens']:,}"),
            (f"activations without checkpointing{used.get(False, '')}", self.size(found["kept"])),
            (f"activations with checkpointing{used.get(True, '')}", self.size(found["checkpointed"])),
        ]

    def engine(self) -> list[tuple[str, str]]:
        engine = self.report["engine"]
        rows = [(label, self.size(engine[name])) for name, label in _ENGINE.items()]
        return [*rows, ("episodes of full context at once", f"{engine['full_contexts']:.1f}")]

    def strategies(self, counts: Sequence[int]) -> list[list[str]]:
        """A row a strategy; where DeepSpeed has figures, they are in the row below."""
        ours: dict[str, dict[int, str]] = {}
        theirs: dict[str, dict[int, str]] = {}
        for row in self.report["strategies"]:
            ours.setdefault(row["strategy"], {})[row["devices"]] = self._pair(row)
            if row["deepspeed"] is not None:
                theirs.setdefault(row["strategy"], {})[row["devices"]] = self._pair(row["deepspeed"])
        rows = []
        for name, cells in ours.items():
            rows.append([name, *(cells.get(count, "") for count in counts)])
            if name in theirs:
                rows.append(["  DeepSpeed's estimate", *(theirs[name].get(count, "") for count in counts)])
        return rows

    def _pair(self, sizes: Mapping[str, int]) -> str:
        device, host = self.size(sizes["device"]), self.size(sizes["host"])
        return f"{device}+{host}" if sizes["host"] else device

    def work(self) -> list[tuple[str, str, str]]:
        rows = [
            (name.replace("_", " "), stage, f"{count:,}")
            for stage, work in self.report["work"].items()
            for name, count in work.items()
        ]
        return [*rows, ("episodes", "evaluation", f"{self.report['evaluation_episodes']:,}")]

    def disk(self) -> list[tuple[str, str]]:
        return [(name.replace("_", " "), self.size(count)) for name, count in self.report["disk"].items()]

    def verdict(self) -> list[str]:
        """One line each: does it fit, what to know, what is missing, can it run here."""
        lines, device = [], self.report["device_memory"]
        if self.report["memory_per_device"]:
            where = "" if device["known"] else " (supposed: no GPU is here)"
            verb = "fits" if device["fits"] else "does not fit"
            lines.append(f"{verb} into {device['bytes'] / GIB:.1f} GiB a {self.device}{where}")
        lines += [f"note: {note}" for note in self.report["notes"]]
        lines += [f"missing here: {thing}" for thing in self.report["missing_here"]]
        return [*lines, f"this machine can{'' if self.report['runs_here'] else 'not'} run it"]
