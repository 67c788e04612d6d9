"""Our own telemetry: a run folder, or its `telemetry.jsonl`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from robustops.errors import ConfigError
from robustops.monitor.importers.log import Imported, Source
from robustops.monitor.panel import Panel
from robustops.monitor.telemetry import StepRecord, read_telemetry

NAME = "telemetry.jsonl"
#: The stage that is judged, where a run has several.
STAGE = "grpo"


def matches(source: Source) -> bool:
    """A folder with telemetry, or a file whose first line is a step record."""
    if source.is_folder:
        return (source.path / NAME).is_file()
    first = next((line for _, line in source.lines()), "")
    try:
        body = json.loads(first)
    except ValueError:
        return False
    return isinstance(body, dict) and {"step", "stage", "metrics"} <= set(body)


def load(source: Source) -> Imported:
    """The GRPO stage, or the last one where there is none. ConfigError where there is no step yet."""
    path: Path = source.path / NAME if source.is_folder else source.path
    records = read_telemetry(path)
    if not records:
        raise ConfigError(f"{path} has no step yet; wait for the first one (follow=true waits)")
    stages = list(dict.fromkeys(record.stage for record in records))
    stage = STAGE if STAGE in stages else stages[-1]
    chosen: list[StepRecord] = []
    notes = [f"of the stages {', '.join(stages)} {stage} is judged"] if len(stages) > 1 else []
    for record in records:
        if record.stage != stage:
            continue
        while chosen and chosen[-1].step >= record.step:
            notes.append(f"step {record.step} comes again: the earlier row is replaced")
            chosen.pop()
        chosen.append(record)
    panel = Panel.of(chosen, str(source.path))
    extra = {name for record in chosen for name in record.metrics} - set(panel.columns)
    unmapped = {name: "not in the schema" for name in sorted(extra)}
    empty = {name for name, values in panel.columns.items() if np.isnan(values).all()}
    kept = {name: values for name, values in panel.columns.items() if name not in empty}
    return Imported(
        Panel(panel.steps, kept, panel.source), "ours", "ours", unmapped, tuple(dict.fromkeys(notes))
    )
