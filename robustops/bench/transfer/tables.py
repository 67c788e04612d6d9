"""What was found, as tables, and run by run."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robustops.bench.evaluation.registry import DETECT, DIAGNOSE
from robustops.bench.evaluation.table import Cell, EvaluationTable, write
from robustops.bench.transfer.evaluate import Found
from robustops.bench.transfer.scored import Detected, Diagnosed
from robustops.files import atomic_write_text

_DETECTION = (
    ("auroc", "AUROC"),
    ("recall@5", "recall@5"),
    ("false_alarms@5", "false alarms"),
    ("level@5", "level"),
)
_DIAGNOSIS = (("type_f1", "type F1"), ("family_f1", "family F1"), ("top_3", "top 3"))
#: Columns of the answers run by run.
VERDICT_COLUMNS = (
    *("set", "tier", "run_id", "fault", "mechanism", "onset", "task", "method", "basis"),
    *("p_value", "alarm", "alarm_step", "said", "probability", "unknown", "right"),
)


def tables(found: Found) -> list[EvaluationTable]:
    """Detection and diagnosis."""
    return [
        _table(
            *(
                found,
                "transfer_detection",
                "Detection on other runs than those that were learned from (percent)",
            ),
            *(DETECT, _DETECTION),
            "recall@5: at a run false-alarm rate of 5 %, or at `level`, the lowest that the healthy runs can "
            "tell. Re-calibrated, false alarms are one in n at most by construction (cross-conformal) and no "
            "finding; as learned, they are. Shares with Wilson's interval. " + _note(found),
        ),
        _table(
            *(found, "transfer_diagnosis", "Diagnosis of other runs, given the fault (percent)"),
            *(DIAGNOSE, _DIAGNOSIS),
            "The diagnoser is the same in both rows; re-calibrated, it is given runs that were aligned by "
            "healthy ones. " + _note(found),
        ),
    ]


def _table(
    found: Found, name: str, title: str, task: str, metrics: tuple[tuple[str, str], ...], note: str
) -> EvaluationTable:
    rows: list[tuple[str | Cell, ...]] = []
    numbers = found.numbers
    seen = dict.fromkeys((r.of, r.tier, r.method, r.horizon) for r in found.rows if r.task == task)
    for of, tier, method, horizon in seen:
        facts = {"of": of, "tier": tier, "method": method, "horizon": horizon}
        cells = [Cell(numbers.value(metric=metric, **facts)) for metric, _ in metrics]
        rows.append((*of.split(", "), tier, method, *cells))
    headings = ("set", "basis", "tier", "method", *(heading for _, heading in metrics))
    return EvaluationTable(name, title, headings, 4, tuple(rows), note)


def _note(found: Found) -> str:
    facts = found.facts
    sets = {name: (len(t.healthy), len(t.faulty)) for (name, _), t in found.tested.items()}
    parts = [
        f"{name}: {healthy} healthy and {faulty} faulty runs" for name, (healthy, faulty) in sets.items()
    ]
    parts.append(
        f"learned from {facts['profile_runs']} healthy and {facts['faulty_runs']} faulty runs of arithmetic, "
        f"calibrated on {facts['calibration_runs']}"
    )
    columns = {f"{name} {tier}": len(t.columns) for (name, tier), t in found.tested.items()}
    parts.append("columns in common: " + ", ".join(f"{name} {count}" for name, count in columns.items()))
    parts += [f"{name}: {package} is not installed" for name, package in found.absent.items()]
    parts += [f"{name}: {reason}" for name, reason in found.refused.items()]
    return "; ".join(parts) + "."


def verdicts(found: Found) -> Iterator[dict[str, Any]]:
    """A row a faulty run, set, tier, method and basis; healthy runs by detectors, too."""
    for key in found.tested:
        for one in found.detectors[key]:
            yield from _detections(found, key, one)
        for other in found.diagnosers[key]:
            yield from _diagnoses(found, key, other)


def _detections(found: Found, key: tuple[str, str], one: Detected) -> Iterator[dict[str, Any]]:
    tested = found.tested[key]
    sides = ((tested.healthy, one.p_healthy, None), (tested.faulty, one.p_faulty, one.alarm_step))
    for runs, p_values, steps in sides:
        for place, run in enumerate(runs):
            yield {
                **_run(key, run),
                **{"task": DETECT, "method": one.method, "basis": one.basis},
                "p_value": round(float(p_values[place]), 4),
                "alarm": int(p_values[place] <= one.level + 1e-9),
                "alarm_step": "" if steps is None or not steps[place] else int(steps[place]),
            }


def _diagnoses(found: Found, key: tuple[str, str], one: Diagnosed) -> Iterator[dict[str, Any]]:
    for place, run in enumerate(found.tested[key].faulty):
        yield {
            **_run(key, run),
            **{"task": DIAGNOSE, "method": one.method, "basis": one.basis, "said": one.said[place]},
            "probability": round(float(one.sure[place]), 4),
            "unknown": round(float(one.unknown[place]), 4),
            "right": int(one.said[place] == run.planned.fault),
        }


def _run(key: tuple[str, str], run: Any) -> dict[str, Any]:
    planned = run.planned
    facts = {"set": key[0], "tier": key[1], "run_id": planned.run_id, "onset": run.onset or ""}
    return {**facts, "fault": planned.fault, "mechanism": planned.mechanism}


def write_all(found: Found, folder: Path) -> list[Path]:
    """Tables in Markdown and JSON, all numbers as `transfer.csv`, answers run by run as `verdicts.csv`."""
    body = {
        **found.facts,
        "not_installed": found.absent,
        "refused": found.refused,
        "columns": {f"{name} {tier}": list(t.columns) for (name, tier), t in found.tested.items()},
        "rows": [row.to_dict() for row in found.rows],
    }
    made = tables(found)
    paths = write(made, body, folder)
    paths.append(atomic_write_text(folder / "transfer.md", "\n".join(table.markdown() for table in made)))
    rows = [row.to_dict() for row in found.rows]
    paths.append(_csv(folder / "transfer.csv", list(rows[0]) if rows else [], rows))
    paths.append(_csv(folder / "verdicts.csv", list(VERDICT_COLUMNS), list(verdicts(found))))
    return paths


def _csv(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return atomic_write_text(path, text.getvalue())
