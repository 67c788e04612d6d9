"""The tables: ours first, then the counterparts of the paper's tables III to VII. As text, Markdown, JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from robustops.bench.evaluation.detection import DIFFICULTIES, FAMILIES, SHIPPED
from robustops.bench.evaluation.evaluate import Evaluation, Request
from robustops.bench.evaluation.registry import DETECT, DIAGNOSE, Method
from robustops.bench.evaluation.rows import Rows
from robustops.tracking.files import atomic_write_json, atomic_write_text
from robustops.tracking.statistics import Interval
from robustops.tracking.tables import plain_table

#: The paper's horizon, which its counterparts have as well.
PAPER_HORIZON = 20
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
_DIAGNOSIS = (
    ("type_f1", "type F1", "%"),
    ("family_f1", "family F1", "%"),
    ("top_3", "top 3", "%"),
    ("ece", "ECE", "%"),
    ("end_to_end_type_f1", "type, end to end", "%"),
    ("end_to_end_family_f1", "family, end to end", "%"),
)


@dataclass(frozen=True)
class Cell:
    """A number with its interval; kind: % (shown in percent), n (a number), p (a p-value)."""

    value: Interval | None
    kind: str = "%"

    def __str__(self) -> str:
        if self.value is None or math.isnan(self.value.estimate):
            return "-"
        scale, digits = {"%": (100.0, 1), "n": (1.0, 1), "p": (1.0, 4)}[self.kind]
        estimate, low, high = (f"{scale * number:.{digits}f}" for number in self.value)
        if self.kind == "p" and self.value.estimate < 1e-4:
            return "< 0.0001"
        return estimate if math.isnan(self.value.low) else f"{estimate} [{low}, {high}]"

    def plain(self) -> Any:
        """In JSON values."""
        if self.value is None or math.isnan(self.value.estimate):
            return None
        return {k: None if math.isnan(v) else v for k, v in self.value._asdict().items()}


@dataclass(frozen=True)
class EvaluationTable:
    """name: of its files; left: how many columns are names; rows: of texts and cells; note: below it."""

    name: str
    title: str
    columns: tuple[str, ...]
    left: int
    rows: tuple[tuple[str | Cell, ...], ...]
    note: str = ""

    def rich(self) -> RichTable:
        """For a terminal."""
        table = plain_table(self.title, self.columns[: self.left], self.columns[self.left :])
        previous = None
        for row in self.rows:
            if previous not in (None, row[0]) and self.left > 1:
                table.add_section()
            previous = row[0]
            table.add_row(*(escape(str(cell)) for cell in row))
        table.caption, table.caption_justify = escape(self.note) or None, "left"
        return table

    def markdown(self) -> str:
        """For a README."""
        lines = [f"### {self.title}", "", "| " + " | ".join(self.columns) + " |"]
        lines.append("|" + "---|" * self.left + "---:|" * (len(self.columns) - self.left))
        lines += ["| " + " | ".join(map(str, row)) + " |" for row in self.rows]
        return "\n".join([*lines, "", self.note, ""] if self.note else [*lines, ""])

    def plain(self) -> dict[str, Any]:
        """In JSON values."""
        rows = [
            {n: c.plain() if isinstance(c, Cell) else c for n, c in zip(self.columns, row, strict=True)}
            for row in self.rows
        ]
        return {"title": self.title, "rows": rows, "note": self.note}


def tables(
    found: Evaluation, request: Request, remediation: Sequence[EvaluationTable]
) -> list[EvaluationTable]:
    """All of them, in the order of the paper where it has a counterpart. remediation: table V."""
    maker = _Maker(found, request)
    return [
        *maker.detection(),
        *maker.online(),
        *maker.compared(),
        *maker.diagnosis(),
        *maker.per_family(
            "table_3", "III, detection", DETECT, ("paper_precision", "paper_recall", "paper_f1")
        ),
        *maker.per_family("table_4", "IV, diagnosis", DIAGNOSE, ("type_precision", "type_recall", "type_f1")),
        *remediation,
        *maker.ablation("table_6", "VI, detection", DETECT, ("paper_precision", "paper_recall", "paper_f1")),
        *maker.ablation("table_7", "VII, diagnosis", DIAGNOSE, ("type_precision", "type_recall", "type_f1")),
    ]


def write(all_tables: Sequence[EvaluationTable], found: Evaluation, folder: Path) -> list[Path]:
    """A Markdown and a JSON file a table, `rows.json` with every number, `tables.md` with all tables."""
    paths = []
    for table in all_tables:
        paths.append(atomic_write_text(folder / f"{table.name}.md", table.markdown()))
        paths.append(atomic_write_json(folder / f"{table.name}.json", table.plain()))
    everything = "\n".join(table.markdown() for table in all_tables)
    paths.append(atomic_write_text(folder / "tables.md", everything))
    body = {
        **found.facts,
        "reference": found.reference,
        "not_installed": found.absent,
        "refused": found.refused,
        "rows": [row.to_dict() for row in found.rows.rows],
    }
    paths.append(atomic_write_json(folder / "rows.json", body, indent=None))
    return paths


@dataclass(frozen=True)
class _Maker:
    found: Evaluation
    request: Request

    @property
    def rows(self) -> Rows:
        return self.found.rows

    @property
    def settings(self) -> Iterator[tuple[str, int]]:
        return ((tier, horizon) for tier in self.request.tiers for horizon in self.request.horizons)

    def names(self, task: str, *, shipped: bool = False) -> Iterator[tuple[str, str]]:
        """Name of each row and, where it has no numbers, why. Ablations are in tables of their own."""
        known = {row.method for row in self.rows.rows}
        for method in self.request.methods:
            if method.task != task or method.ablation_of:
                continue
            yield method.name, self.reason(method)
            own = f"{method.name} ({SHIPPED})"
            if shipped and own in known:
                yield own, ""

    def reason(self, method: Method) -> str:
        """Why a method has no numbers, "" where it has."""
        if method.name in self.found.absent:
            return f"{self.found.absent[method.name]} is not installed"
        return "could not learn" if method.name in self.found.refused else ""

    def note(self) -> str:
        """What was tested on, and what is missing."""
        facts = self.found.facts
        tested = ", ".join(f"{count} {kind}" for kind, count in facts["tested_runs"].items())
        parts = [
            f"Partitions: {facts['partitions']}; in the first: {facts['profile_runs']} healthy runs to learn "
            f"from, {facts['calibration_runs']} to calibrate on, tested: {tested}",
            f"95 % intervals: bootstrap over {facts['tested_groups']} seed groups, "
            f"{facts['bootstrap_draws']:,} draws",
        ]
        parts += [
            f"{name}: {package} is not installed (pip install 'robustops[evaluate]')"
            for name, package in self.found.absent.items()
        ]
        parts += [f"{name}: {reason}" for name, reason in self.found.refused.items()]
        return "; ".join(parts) + "."

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
                    rows.append(_row(name, [*alarms, *cells], reason))
                yield EvaluationTable(
                    f"detection_{_slug(tier)}_{horizon}_{difficulty}",
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
                    rows.append((difficulty, *_row(name, cells, reason)))
            yield EvaluationTable(
                f"online_{_slug(tier)}",
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
                rows.append((difficulty, *_row(name, cells, reason)))
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
                    rows.append((difficulty, *_row(name, cells, reason)))
            yield EvaluationTable(
                f"diagnosis_{_slug(tier)}_{horizon}",
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

    def per_family(
        self, name: str, title: str, task: str, metrics: tuple[str, str, str]
    ) -> Iterator[EvaluationTable]:
        tier, horizon = self.request.tiers[-1], self.horizon
        rows = []
        for family in (*FAMILIES, ""):
            for difficulty in DIFFICULTIES:
                for method, reason in self.names(task):
                    facts = {"method": method, "tier": tier, "horizon": horizon}
                    cells = [
                        Cell(self.rows.value(metric=m, difficulty=difficulty, of=family, **facts))
                        for m in metrics
                    ]
                    rows.append((family or "all", difficulty, *_row(method, cells, reason)))
        yield EvaluationTable(
            name,
            f"Counterpart of table {title}, tier {tier}, {horizon} steps (percent)",
            ("family", "faults", "method", "P", "R", "F1"),
            3,
            tuple(rows),
            ("At 5 % and the paper's prevalence. " if task == DETECT else "Macro over the family's types. ")
            + self.note(),
        )

    def ablation(
        self, name: str, title: str, task: str, metrics: tuple[str, str, str]
    ) -> Iterator[EvaluationTable]:
        tier, horizon = self.request.tiers[-1], self.horizon
        own = [m for m in self.request.methods if m.task == task]
        wholes = dict.fromkeys(m.ablation_of for m in own if m.ablation_of)
        rows = []
        for whole in wholes:
            for method in (m for m in own if whole in (m.name, m.ablation_of)):
                for difficulty in DIFFICULTIES:
                    facts = {"method": method.name, "tier": tier, "horizon": horizon}
                    cells = [Cell(self.rows.value(metric=m, difficulty=difficulty, **facts)) for m in metrics]
                    rows.append((whole, *_row(method.name, [], ""), difficulty, *cells))
        missing = "" if rows else f"No method to {task} has ablations among those evaluated. "
        yield EvaluationTable(
            name,
            f"Counterpart of table {title} with parts left out, tier {tier}, {horizon} steps (percent)",
            ("of", "method", "faults", "P", "R", "F1"),
            3,
            tuple(rows),
            missing + self.note(),
        )

    @property
    def horizon(self) -> int:
        """The paper's, or the shortest that was evaluated."""
        horizons = self.request.horizons
        return PAPER_HORIZON if PAPER_HORIZON in horizons else min(horizons)


def _row(name: str, cells: Sequence[Cell], reason: str) -> tuple[str | Cell, ...]:
    return (f"{name}: {reason}" if reason else name, *cells)


def _slug(tier: str) -> str:
    return tier.replace("+", "").lower()
