"""The data set's datasheet, README.md beside the tables: written from the columns and the catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from robustops.bench.campaign.columns import DATASET_VERSION, EXPOSURE, RUNS, SPLITS, STEPS, Column
from robustops.bench.campaign.dataset import LIMIT_MB, MANIFEST
from robustops.bench.campaign.splits import FINAL_SHARE, FOLDS, HEALTHY_SETS, PARTITIONS
from robustops.bench.run_faults.catalog import CATALOG
from robustops.files import atomic_write_text, read_json
from robustops.monitor import schema

NAME = "README.md"

_HEAD = """# RFT-FaultBench, made with RobustOps

Training runs of a small tool-using policy under GRPO: healthy ones, ones with a failure injected into
training itself, and ones with a legitimate change in mid-run. Each is recorded step by step. It is for
finding out whether a monitor sees from telemetry that training has failed, how soon, and what has failed.

After the RFT-FaultBench / RFT-FM paper, whose data were not at hand: nothing here is taken from them.

## How it was made

`robustops bench stage=campaign`, then `stage=dataset`. All runs have the same number of steps, so that a
run's length tells nothing of its label, and start from the same policy (142,000 parameters, domain
`arithmetic`) with settings `experiment=faultbench`: 8 groups of 8 episodes a step, two epochs on them. A
seed group has a seed and a variety of the configuration of its own; its control, its faulty runs and its
shifts share them, so that a faulty run equals its control to the byte before the onset. The injector
draws from a random stream of its own.

Strengths were found by a pilot on seeds that are not part of the campaign and frozen before any detector
was fitted: easy faults move the quantity that their mechanism touches by four deviations of healthy runs
or more, hard ones by 0.8 to 1.5, where a mechanism can reach that. Hard faults come in four modes: weak,
intermittent (a unit is struck with a probability), ramp (strength grows over 20 steps), delayed (a late
onset).

A verification looks at exposure and at the touched quantity, never at a detector's score. Runs that fail
it stay in the data set, marked `verified = false`: leaving them out would flatter every detector.

## Files

| file | a row is | columns |
|---|---|---|
"""

_LIMITS = """## Limits

- One algorithm (GRPO), one tiny policy, one domain: how large effects are will not carry over to large
  models.
- GRPO has no critic: `value_mismatch` is about the group mean that stands in for it.
- The floor of easy and hard is the mechanical effect, not how hard a fault is to detect; some types
  leave no trace in the portable columns.
- Runs that failed their verification are kept; report recall with and without them.
- Time: `seconds` and `cpu_seconds` are of one machine, and are no telemetry; `robustops bench
  stage=table` tells whether a label can be told from them, and that it cannot be told from name, length
  or missing columns.
- Synthetic failures. Real ones are less clean, and may be several at once.
- No personal data: prompts are generated sums, and no text is in the tables.

## Use

```python
from pathlib import Path
from robustops.bench.campaign.dataset import load

dataset = load(Path("data/rft_faultbench"))
for row in dataset.rows:
    entropy = dataset.series(row["run_id"], "entropy")  # (steps,) float64
```

`robustops bench stage=campaign types=[reward_spike] seeds=2` makes runs again and `stage=compare` holds
them against the rows here. `stage=table` and `stage=figures` sum the data set up. Licence: that of
RobustOps.
"""


def render(manifest: Mapping[str, Any] | None = None) -> str:
    """The datasheet. manifest: of the tables that it stands beside, for rows and sizes."""
    files = (
        ("runs.parquet", "a run: plan, label, verification, cost", RUNS),
        ("steps.parquet", "a step of a run: its telemetry", STEPS),
        ("exposure.parquet", "a step of a faulty run: what was touched. Not for detectors", EXPOSURE),
        ("splits.parquet", "a run in a partition", SPLITS),
    )
    listed = "".join(f"| `{name}` | {row} | {len(columns)} |\n" for name, row, columns in files)
    return "\n".join(
        (
            _HEAD + listed,
            _sizes(manifest),
            _conventions(),
            _splits(),
            _faults(),
            *(f"## `{name}`\n\n{_fields(columns)}" for name, _, columns in files if name != "steps.parquet"),
            f"## `steps.parquet`\n\n{_step_fields()}",
            _LIMITS,
        )
    )


def write(folder: Path) -> Path:
    """Write README.md beside the tables of a folder, with their sizes if they are there."""
    path = folder / MANIFEST
    return atomic_write_text(folder / NAME, render(read_json(path) if path.is_file() else None))


def _sizes(manifest: Mapping[str, Any] | None) -> str:
    if manifest is None:
        return f"The tables are not there yet. They take {LIMIT_MB:g} MB at most.\n"
    rows = "; ".join(f"{name}: {f['rows']:,} rows, {f['bytes']:,} B" for name, f in manifest["files"].items())
    return f"{rows}; {manifest['megabytes']} MB in all.\n"


def _conventions() -> str:
    return (
        f"Layout version {DATASET_VERSION}, telemetry schema {schema.SCHEMA_VERSION}; both stand in each "
        "file's metadata under `faultbench`. Parquet with zstd; rows are in order of `run_id`. "
        f"`{MANIFEST}` holds the SHA-256 of each file.\n\n"
        "Telemetry is rounded to single precision (float32) and nothing else; a column with a finite value "
        "beyond its range is float64. Null: the source has no such column. NaN: not observed, as the column "
        "says. Infinity is a value. Other numbers are not rounded.\n"
    )


def _splits() -> str:
    sets = ", ".join(f"{name} {share:.0%}" for name, share in HEALTHY_SETS.items())
    return (
        "## Splits\n\n"
        f"{PARTITIONS} partitions, none of which splits a seed group. {FINAL_SHARE:.0%} of the seed groups "
        "are `final`, the same in each partition: for one last test. Of the others, those with faults or "
        f"shifts are in {FOLDS} folds, stratified by type and mode; those of healthy runs only are dealt to "
        f"{sets}. "
        "Controls are test runs and stay with their group.\n"
    )


def _faults() -> str:
    rows = []
    for fault in CATALOG.values():
        mechanisms = ", ".join(f"`{info.name}`" for info in fault.mechanisms)
        rows.append(f"| {fault.code} | `{fault.name}` | {fault.family} | {mechanisms} |")
    head = "| code | type | family | mechanisms, the main one first |\n|---|---|---|---|\n"
    return f"## Labels\n\n{head}" + "\n".join(rows) + "\n"


def _fields(columns: Iterable[Column]) -> str:
    rows = [
        f"| `{c.name}` | {c.kind} | {c.unit or '-'} | {_cell(c.meaning)} | {_cell(c.null) or '-'} |"
        for c in columns
    ]
    return "| column | type | unit | meaning | null |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _step_fields() -> str:
    """Columns of the telemetry with what the schema says of them."""
    keys = [column for column in STEPS if column.name not in schema.names()]
    rows = [
        f"| `{q.name}` | {q.unit} | {q.tier} | {q.over} | {_cell(q.formula)} | {_cell(_nan(q)) or '-'} |"
        for q in schema.QUANTITIES
    ]
    return (
        f"{_fields(keys)}\nTelemetry (`robustops/monitor/schema.py`). Tier P: other trainers log it as well, "
        "I: needs instrumentation. Over: all episodes sampled, those trained on, or the updates of the "
        "step.\n\n| column | unit | tier | over | meaning | NaN |\n|---|---|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def _nan(quantity: schema.Quantity) -> str:
    lacks = [f"without {schema.NEEDS[need]}" for need in quantity.needs]
    return "; ".join([*lacks, *([quantity.nan] if quantity.nan else [])])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
