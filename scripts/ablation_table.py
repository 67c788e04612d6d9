"""Compare the runs of an ablation sweep with the whole recipe, as a Markdown table.

    robustops train experiment=ablation_recipe model.checkpoint=RUN/checkpoints/sft/policy
    python scripts/ablation_table.py multirun/DATE/TIME

A run's variant and seed are its overrides `ablation` and `seed`. Success is in per cent, the mean over the
seeds; a difference to `full` is of the same cases and seeds, with the 95% interval of a bootstrap over cases
(of a case's mean over seeds), and the differences of the single seeds. It is called noise unless the interval
leaves zero out and all seeds agree on the sign. `trained` is the number of groups a step that had a signal.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from robustops.errors import ConfigError
from robustops.monitor.telemetry import read_telemetry
from robustops.tracking.run_store import RunStore
from robustops.tracking.statistics import Interval, paired_difference_ci

BASELINE = "full"
CONDITIONS = ("clean", "fault")


@dataclass(frozen=True)
class AblationRun:
    """One run of the sweep. success: of each valid case, by condition; groups: trained ones a step."""

    variant: str
    seed: str
    success: dict[str, dict[str, float]]
    groups: float


def read_run(folder: Path) -> AblationRun:
    """The run in this folder, as its overrides, run.db and telemetry.jsonl describe it."""
    overrides = (folder / ".hydra" / "overrides.yaml").read_text(encoding="utf-8")
    given = dict(re.findall(r"^- (ablation|seed)=(\S+)$", overrides, flags=re.MULTILINE))
    if given.keys() != {"ablation", "seed"}:
        raise ConfigError(f"{folder} was not given ablation=... and seed=...; it is no run of an ablation")
    with RunStore(folder / "run.db") as store:
        rows = [row for row in store.evaluation_rows() if row.policy == "grpo" and row.error is None]
    if not rows:
        raise ConfigError(f"{folder} has no evaluated GRPO policy; let the run end, or resume it")
    success: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        success[row.condition][row.case_id].append(row.success)
    records = [step.metrics for step in read_telemetry(folder / "telemetry.jsonl") if step.stage == "grpo"]
    return AblationRun(
        given["ablation"],
        given["seed"],
        {name: {case: fmean(values) for case, values in cases.items()} for name, cases in success.items()},
        fmean(record["rollout/groups_accepted"] for record in records),
    )


def difference(
    variant: list[AblationRun], baseline: list[AblationRun], condition: str
) -> tuple[Interval, list[float]]:
    """Of the variant's success to the baseline's, in points; and that of each seed.

    Over the cases that both have in every seed.
    """
    other = {run.seed: run for run in baseline}
    pairs = [(run, other[run.seed]) for run in variant if run.seed in other]
    if not pairs:
        name = variant[0].variant
        raise ConfigError(f"{name} and {BASELINE} have no seed in common; run both with the same ones")
    tables = [run.success[condition] for pair in pairs for run in pair]
    cases = sorted(set.intersection(*(set(table) for table in tables)))
    ours = [100 * fmean(run.success[condition][case] for run, _ in pairs) for case in cases]
    theirs = [100 * fmean(run.success[condition][case] for _, run in pairs) for case in cases]
    seeds = [
        100 * fmean(run.success[condition][case] - base.success[condition][case] for case in cases)
        for run, base in pairs
    ]
    return paired_difference_ci(ours, theirs, seed=0), seeds


def verdict(interval: Interval, seeds: list[float]) -> str:
    """`better`, `worse` or `noise`."""
    if interval.low > 0 and min(seeds) > 0:
        return "better"
    return "worse" if interval.high < 0 and max(seeds) < 0 else "noise"


def table(runs: list[AblationRun]) -> str:
    """The whole comparison."""
    variants: dict[str, list[AblationRun]] = defaultdict(list)
    for run in runs:
        variants[run.variant].append(run)
    if BASELINE not in variants:
        raise ConfigError(f"no run of ablation={BASELINE} among {len(runs)}; the others compare with it")
    lines = [
        "| variant | seeds | trained | clean | fault | clean - full | fault - full |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, members in variants.items():
        rates = [
            f"{100 * fmean(fmean(run.success[condition].values()) for run in members):.1f}"
            for condition in CONDITIONS
        ]
        cells = ["-"] * len(CONDITIONS)
        if name != BASELINE:
            cells = [_cell(*difference(members, variants[BASELINE], condition)) for condition in CONDITIONS]
        groups = f"{fmean(run.groups for run in members):.1f}"
        lines.append("| " + " | ".join([name, str(len(members)), groups, *rates, *cells]) + " |")
    return "\n".join(lines)


def _cell(interval: Interval, seeds: list[float]) -> str:
    single = " ".join(f"{value:+.1f}" for value in seeds)
    bounds = f"[{interval.low:+.1f}, {interval.high:+.1f}]"
    return f"{interval.estimate:+.1f} {bounds} ({single}): {verdict(interval, seeds)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweeps", nargs="+", type=Path, help="folders of sweeps: multirun/DATE/TIME")
    folders = [run.parent for sweep in parser.parse_args().sweeps for run in sorted(sweep.glob("*/run.db"))]
    try:
        if not folders:
            raise ConfigError("no run in these folders; give the multirun/DATE/TIME that a sweep has written")
        print(table([read_run(folder) for folder in folders]))
    except ConfigError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
