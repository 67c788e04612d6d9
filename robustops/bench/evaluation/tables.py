"""The tables: ours first, then the counterparts of the paper's tables III to VII."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from robustops.bench.campaign.layout import HARD_MODES
from robustops.bench.evaluation.detection import DIFFICULTIES
from robustops.bench.evaluation.evaluate import Evaluation, Request
from robustops.bench.evaluation.paper_tables import PaperTables
from robustops.bench.evaluation.registry import DETECT, DIAGNOSE
from robustops.bench.evaluation.table import Cell, EvaluationTable
from robustops.bench.evaluation.table_source import Source, row, slug
from robustops.bench.run_faults.catalog import CATALOG

#: Metric and heading; the last letter is how it is shown: percent, number or plain p-value.
_DETECTION = (
    ("auroc", "AUROC", "%"),
    ("recall@1", "recall@1", "%"),
    ("recall@5", "recall@5", "%"),
    ("recall@10", "recall@10", "%"),
    ("balanced_f1", "balanced F1", "%"),
    ("paper_f1", "paper's F1", "%"),
)
_ONLINE = (
    ("online_recall", "detected", "%"),
    ("delay_median", "median delay", "n"),
    ("delay_q25", "25 %", "n"),
    ("delay_q75", "75 %", "n"),
)
#: Of hard faults.
_PARTS = (*HARD_MODES, "main mechanism", "other mechanisms", "verified")
_DIAGNOSIS = (
    ("type_f1", "type F1", "%"),
    ("family_f1", "family F1", "%"),
    ("top_3", "top 3", "%"),
    ("ece", "ECE", "%"),
    ("end_to_end_type_f1", "type, end to end", "%"),
    ("end_to_end_family_f1", "family, end to end", "%"),
)


def everything(found: Evaluation) -> dict[str, Any]:
    """All numbers in JSON values, and what is behind them."""
    return {
        **found.facts,
        "reference": found.reference,
        "not_installed": found.absent,
        "refused": found.refused,
        "rows": [row.to_dict() for row in found.rows.rows],
    }


def tables(
    found: Evaluation, request: Request, remediation: Sequence[EvaluationTable]
) -> list[EvaluationTable]:
    """All of them, in the order of the paper where it has a counterpart. remediation: table V."""
    own, paper = OwnTables(found, request), PaperTables(found, request)
    return [
        *own.detection(),
        *own.online(),
        *own.modes(),
        *own.types(),
        *own.compared(),
        *own.diagnosis(),
        *paper.by_family(),
        *remediation,
        *paper.ablations(),
    ]


class OwnTables(Source):
    """What means something, first."""

    def detection(self) -> Iterator[EvaluationTable]:
        for tier, horizon in self.settings:
            for difficulty in DIFFICULTIES:
                rows = []
                for name, reason in self.names(DETECT, shipped=True):
                    facts = {"method": name, "tier": tier, "horizon": horizon}
                    alarms = [Cell(self.rows.value(metric="false_alarms@5", **facts))]
                    cells = [
                        Cell(self.rows.value(metric=metric, difficulty=difficulty, **facts), kind)
                        for metric, _, kind in _DETECTION
                    ]
                    rows.append(row(name, [*alarms, *cells], reason))
                yield EvaluationTable(
                    f"detection_{slug(tier)}_{horizon}_{difficulty}",
                    f"Detection of {difficulty} faults, tier {tier}, {horizon} steps (percent)",
                    ("method", "false alarms@5", *(heading for _, heading, _ in _DETECTION)),
                    1,
                    tuple(rows),
                    "recall@a: at a run false-alarm rate of a % by split conformal"
                    f"{self._levels(tier, horizon)}; F1 at 5 %, with as many faulty as healthy "
                    "runs, and with the paper's 320 (448) to 11. " + self.note(),
                )

    def _levels(self, tier: str, horizon: int) -> str:
        """What the calibration runs allow, where that is not what was asked for."""
        for name, _ in self.names(DETECT):
            row = self.rows.get(method=name, tier=tier, horizon=horizon, metric="level@1")
            if row is not None and 0.0101 < row.estimate < 1:
                return f" (@1 is @{100 * row.estimate:.1f}: fewer calibration runs than 99)"
        return ""

    def online(self) -> Iterator[EvaluationTable]:
        longest = max(self.request.horizons)
        for tier in self.request.tiers:
            rows = []
            for difficulty in DIFFICULTIES:
                for name, reason in self.names(DETECT):
                    facts = {"method": name, "tier": tier, "horizon": longest}
                    if self.rows.get(metric="online_false_alarms", **facts) is None and not reason:
                        continue
                    cells = [
                        Cell(self.rows.value(metric=metric, difficulty=difficulty, **facts), kind)
                        for metric, _, kind in _ONLINE
                    ]
                    cells.append(Cell(self.rows.value(metric="online_false_alarms", **facts)))
                    cells.append(Cell(self.rows.value(metric="false_alarms_1000_steps", **facts), "n"))
                    rows.append((difficulty, *row(name, cells, reason)))
            yield EvaluationTable(
                f"online_{slug(tier)}",
                f"Alarms while a run goes on, tier {tier}, {longest} steps",
                (
                    *("faults", "method"),
                    *(heading for _, heading, _ in _ONLINE),
                    *("healthy runs with alarm", "false alarms / 1,000 steps"),
                ),
                2,
                tuple(rows),
                "Delay in steps from the first step that was struck, by Kaplan and Meier; threshold: 5 % of "
                "healthy runs have any alarm. An alarm before the onset is a false one, and its run not "
                "detected. " + self.note(),
            )

    def modes(self) -> Iterator[EvaluationTable]:
        """Where recall comes from, and what happens to runs that are no single fault."""
        longest = max(self.request.horizons)
        for tier in self.request.tiers:
            rows = []
            for name, reason in self.names(DETECT):
                facts = {"method": name, "tier": tier, "horizon": longest}
                cells = [
                    Cell(self.rows.value(metric="recall@5", difficulty="hard", of=of, **facts))
                    for of in _PARTS
                ]
                cells += [
                    Cell(self.rows.value(metric=f"alarms_{kind}", **facts)) for kind in ("double", "benign")
                ]
                rows.append(row(name, cells, reason))
            yield EvaluationTable(
                f"modes_{slug(tier)}",
                f"Recall of hard faults by mode and mechanism, tier {tier}, {longest} steps (percent)",
                ("method", *_PARTS, "two faults", "benign shifts"),
                1,
                tuple(rows),
                "At 5 %. Verified: runs whose fault had its mechanical effect. Two faults: runs with both, "
                "easy. Benign shifts: runs in which something legitimate changes; alarms there are false. "
                + self.note(),
            )

    def types(self) -> Iterator[EvaluationTable]:
        """Of the reference detector alone; all others are in rows.json."""
        longest, name = max(self.request.horizons), self.found.reference
        rows = []
        for fault, info in CATALOG.items():
            cells = [
                Cell(
                    self.rows.value(
                        metric="recall@5", difficulty=level, of=fault, method=name, tier=tier, horizon=longest
                    )
                )
                for tier in self.request.tiers
                for level in DIFFICULTIES
            ]
            line: tuple[str | Cell, ...] = (info.code, fault, *cells)
            rows.append(line)
        yield EvaluationTable(
            "types",
            f"Recall of each type by {name}, {longest} steps (percent)",
            ("", "type", *(f"{level}, {tier}" for tier in self.request.tiers for level in DIFFICULTIES)),
            2,
            tuple(rows),
            "At 5 %. " + self.note(),
        )

    def compared(self) -> Iterator[EvaluationTable]:
        longest, tier = max(self.request.horizons), self.request.tiers[-1]
        rows = []
        for difficulty in DIFFICULTIES:
            for name, reason in self.names(DETECT):
                facts = {"method": name, "tier": tier, "horizon": longest, "difficulty": difficulty}
                if name == self.found.reference:
                    continue
                cells = [
                    Cell(self.rows.value(metric=f"{m}_difference", **facts)) for m in ("recall", "auroc")
                ]
                cells += [
                    Cell(self.rows.value(metric=m, **facts), "p") for m in ("mcnemar_p", "mcnemar_p_holm")
                ]
                rows.append((difficulty, *row(name, cells, reason)))
        yield EvaluationTable(
            "compared",
            f"Detectors minus {self.found.reference or 'reference'}, tier {tier}, {longest} steps (points)",
            ("faults", "method", "recall@5", "AUROC", "McNemar p", "Holm p"),
            2,
            tuple(rows),
            "Differences are paired: the same groups are drawn for both. McNemar's test takes runs as "
            "independent, which those of a group are not. " + self.note(),
        )

    def diagnosis(self) -> Iterator[EvaluationTable]:
        for tier, horizon in self.settings:
            rows = []
            for difficulty in DIFFICULTIES:
                for name, reason in self.names(DIAGNOSE):
                    facts = {"method": name, "tier": tier, "horizon": horizon}
                    cells = [
                        Cell(self.rows.value(metric=metric, difficulty=difficulty, **facts), kind)
                        for metric, _, kind in _DIAGNOSIS
                    ]
                    cells.append(
                        Cell(
                            self.rows.value(
                                metric="from_main_type_f1",
                                difficulty=difficulty,
                                of="other mechanisms",
                                **facts,
                            )
                        )
                    )
                    cells.append(Cell(self.rows.value(metric="open_set_auroc", **facts)))
                    rows.append((difficulty, *row(name, cells, reason)))
            yield EvaluationTable(
                f"diagnosis_{slug(tier)}_{horizon}",
                f"Diagnosis, tier {tier}, {horizon} steps (percent)",
                (
                    *("faults", "method"),
                    *(heading for _, heading, _ in _DIAGNOSIS),
                    *("other mechanisms", "open-set AUROC"),
                ),
                2,
                tuple(rows),
                f"Macro-F1 given the fault; end to end behind {self.found.reference} at 5 %, false alarms on "
                "healthy runs included; other mechanisms: type F1 on them, learned from main ones alone; "
                "open set: a type that was left out of training against the others. " + self.note(),
            )
