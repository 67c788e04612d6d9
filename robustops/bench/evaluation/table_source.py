"""What all tables draw from: rows of numbers, names of methods, and why some have no numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from robustops.bench.evaluation.detection import SHIPPED
from robustops.bench.evaluation.evaluate import Evaluation, Request
from robustops.bench.evaluation.registry import Method
from robustops.bench.evaluation.rows import Rows
from robustops.bench.evaluation.table import Cell

#: The paper's horizon, which its counterparts have as well.
PAPER_HORIZON = 20


@dataclass(frozen=True)
class Source:
    """found: the numbers; request: what was asked for."""

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
        """Why a method has no numbers at all, "" where it has some."""
        if method.name in self.found.absent:
            return f"{self.found.absent[method.name]} is not installed"
        known = any(row.method == method.name for row in self.rows.rows)
        return "could not learn" if method.name in self.found.refused and not known else ""

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

    @property
    def horizon(self) -> int:
        """The paper's, or the shortest that was evaluated."""
        horizons = self.request.horizons
        return PAPER_HORIZON if PAPER_HORIZON in horizons else min(horizons)


def row(name: str, cells: Sequence[Cell], reason: str) -> tuple[str | Cell, ...]:
    """Name, with the reason why it has no numbers if there is one, and cells."""
    return (f"{name}: {reason}" if reason else name, *cells)


def slug(tier: str) -> str:
    """A tier in file names."""
    return tier.replace("+", "").lower()
