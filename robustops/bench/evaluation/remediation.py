"""Interventions in numbers: the counterpart of the paper's table V, from the cases that a campaign has.

`<campaign>/remediation/cases.jsonl`, one line a case (a run on which one arm intervened):

    run_id, arm        the run; noop, random, rules, llm, oracle, ...
    severity_before    anomaly severity of the run without intervention, S(X) of equation 8
    severity_after     with it, S(X~)
    success_control    mean success of the healthy twin over the last steps; success_before, success_after: of
                       the run without the intervention, and with it
    telemetry          optional: file of the run with the intervention, from the campaign's folder
    final              optional: whether the run's seed group is held out; evaluated with those alone

`robustops bench stage=remediate` writes it, with further fields for people (`bench.remediation.outcome`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robustops.bench.evaluation.detection import FAMILIES
from robustops.bench.evaluation.metrics import share
from robustops.bench.evaluation.resampling import Draws, Values, divided, draw_groups, interval
from robustops.bench.evaluation.runs import Label
from robustops.bench.evaluation.table import Cell, EvaluationTable
from robustops.errors import DatasetError

CASES = Path("remediation") / "cases.jsonl"
_FIELDS = ("severity_before", "severity_after", "success_control", "success_before", "success_after")
#: A healthy run is harmed where it ends with this much less success than it would have had.
HARM = 0.05
Case = Mapping[str, Any]


def read_cases(campaign: Path, *, final: bool | None = None) -> list[Case]:
    """Of a campaign; none where it has no such file. DatasetError for a line that is no case.

    final: of these groups alone, and cases that do not say; None: all.
    """
    path = campaign / CASES
    if not path.is_file():
        return []
    found: list[Case] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            case = json.loads(line)
            numbers = {name: float(case[name]) for name in _FIELDS}
            texts = {name: str(case[name]) for name in ("run_id", "arm")}
            if final is None or case.get("final", final) == final:
                found.append({**texts, "telemetry": case.get("telemetry"), **numbers})
        except (ValueError, KeyError, TypeError) as error:
            raise DatasetError(
                f"{path}:{number} is no case ({error}); its fields are in {__name__}"
            ) from error
    return found


def severity_change(before: Values, after: Values) -> Values:
    """Relative decrease of the severity, equation 9; NaN for a run that had none. Positive: it fell."""
    return divided(before - after, before)


def weighted_median(draws: Draws, groups: Sequence[int], values: Values) -> Values:
    """(1 + draws,) median, runs as often as their group is drawn; NaN where none is."""
    order = np.argsort(values, kind="stable")
    columns = [draws.groups[groups[place]] for place in order]
    mass = np.cumsum(draws.weights[:, columns], axis=1)
    half = mass[:, -1:] / 2
    low, high = (mass >= half - 1e-9).argmax(axis=1), (mass > half + 1e-9).argmax(axis=1)
    ordered = np.asarray(values)[order]
    return np.where(mass[:, -1] > 0, (ordered[low] + ordered[high]) / 2, np.nan)


def remediation_table(
    cases: Sequence[Case], labels: Mapping[str, Label], seed: int, draws: int
) -> EvaluationTable:
    """Mitigation rate, median severity change, recovered success, harm on healthy runs, by arm and family.

    recovered: (after - before) / (control - before) of mean success over the arm's runs (a ratio of means: a
    single run may have lost nothing).
    """
    rows: list[tuple[str | Cell, ...]] = []
    known = [case for case in cases if case["run_id"] in labels]
    groups = {labels[case["run_id"]].group: "all" for case in known}
    drawn = draw_groups(groups, seed, draws) if groups else None
    for arm in dict.fromkeys(case["arm"] for case in known):
        own = [case for case in known if case["arm"] == arm]
        for family in (*FAMILIES, "all"):
            faulty = [c for c in own if labels[c["run_id"]].kind != "healthy"]
            faulty = [c for c in faulty if family in ("all", labels[c["run_id"]].family)]
            if faulty and drawn is not None:
                rows.append((arm, family, str(len(faulty)), *_cells(faulty, labels, drawn), Cell(None)))
        healthy = [c for c in own if labels[c["run_id"]].kind == "healthy"]
        if healthy and drawn is not None:
            rows.append((arm, "healthy", str(len(healthy)), *[Cell(None)] * 3, _harm(healthy, labels, drawn)))
    note = "" if rows else f"No cases: this campaign has no {CASES}."
    return EvaluationTable(
        "table_5",
        "Counterpart of table V, intervention (percent)",
        ("arm", "family", "cases", "mitigated", "median severity change", "success recovered", "harmed"),
        2,
        tuple(rows),
        note or "Mitigated: the severity fell, which a rerun does half of the time; see arm noop.",
    )


def _cells(cases: Sequence[Case], labels: Mapping[str, Label], draws: Draws) -> Iterator[Cell]:
    groups = [labels[case["run_id"]].group for case in cases]
    before, after, control, without, with_it = (np.array([case[n] for case in cases]) for n in _FIELDS)
    yield Cell(interval(share(draws, groups, (after < before).astype(np.float64))))
    change = severity_change(before, after)
    seen = ~np.isnan(change)
    own = [group for group, one in zip(groups, seen, strict=True) if one]
    yield Cell(interval(weighted_median(draws, own, change[seen])) if own else None)
    lost = draws.sums(groups, control - without)
    yield Cell(interval(divided(draws.sums(groups, with_it - without), lost)))


def _harm(cases: Sequence[Case], labels: Mapping[str, Label], draws: Draws) -> Cell:
    groups = [labels[case["run_id"]].group for case in cases]
    harmed = np.array([case["success_before"] - case["success_after"] > HARM for case in cases])
    return Cell(interval(share(draws, groups, harmed.astype(np.float64))))
