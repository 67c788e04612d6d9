"""The counterparts of the paper's tables III and IV (by family), VI and VII (parts left out)."""

from __future__ import annotations

from collections.abc import Iterator

from robustops.bench.evaluation.detection import DIFFICULTIES, FAMILIES
from robustops.bench.evaluation.registry import DETECT, DIAGNOSE
from robustops.bench.evaluation.table import Cell, EvaluationTable
from robustops.bench.evaluation.table_source import Source, row

_DETECTED = ("paper_precision", "paper_recall", "paper_f1")
_DIAGNOSED = ("type_precision", "type_recall", "type_f1")


class PaperTables(Source):
    """Named as in the paper."""

    def by_family(self) -> Iterator[EvaluationTable]:
        """Tables III and IV."""
        yield from self.per_family("table_3", "III, detection", DETECT, _DETECTED)
        yield from self.per_family("table_4", "IV, diagnosis", DIAGNOSE, _DIAGNOSED)

    def ablations(self) -> Iterator[EvaluationTable]:
        """Tables VI and VII."""
        yield from self.ablation("table_6", "VI, detection", DETECT, _DETECTED)
        yield from self.ablation("table_7", "VII, diagnosis", DIAGNOSE, _DIAGNOSED)

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
                    rows.append((family or "all", difficulty, *row(method, cells, reason)))
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
                    rows.append((whole, *row(method.name, [], ""), difficulty, *cells))
        missing = "" if rows else f"No method to {task} has ablations among those evaluated. "
        yield EvaluationTable(
            name,
            f"Counterpart of table {title} with parts left out, tier {tier}, {horizon} steps (percent)",
            ("of", "method", "faults", "P", "R", "F1"),
            3,
            tuple(rows),
            missing + self.note(),
        )
