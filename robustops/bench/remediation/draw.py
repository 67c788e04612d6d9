"""Which runs are remedied: as many of each type, easy and hard ones, of main and other mechanisms.

Only runs of tested seed groups are drawn, so that nothing that steps in has learned from them: with `final`
of the held-out groups, else of the first fold of the first partition (`evaluation.protocol`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from robustops.bench.evaluation.protocol import Fold, Partition
from robustops.bench.evaluation.runs import Label
from robustops.bench.run_faults.catalog import CATALOG
from robustops.errors import ConfigError
from robustops.seeding import generator


@dataclass(frozen=True)
class Draw:
    """run_ids. faulty: type by type, in the order of the catalogue; healthy: to be left alone."""

    faulty: tuple[str, ...]
    healthy: tuple[str, ...]

    @property
    def run_ids(self) -> tuple[str, ...]:
        """All of them."""
        return self.faulty + self.healthy


def draw(labels: Mapping[str, Label], partition: Partition, fold: Fold, number: int, seed: int) -> Draw:
    """Choose `number` faulty runs among those that the fold tests, and all healthy runs of groups from which
    nobody has learned.

    A larger number has the runs of a smaller one that is a multiple of the types' among its own.

    Raises:
        ConfigError: fewer cases than types, or no type has a run to draw.
    """
    types = [name for name in CATALOG if any(labels[run].fault == name for run in fold.test)]
    if not types or number < len(types):
        raise ConfigError(
            f"cases={number} of {len(types)} types with tested runs; give {len(CATALOG)} or a multiple of "
            "it, and a data set that holds faulty runs"
        )
    shares = _shares(types, number, seed)
    faulty = []
    for name in types:
        own = [labels[run] for run in fold.test if labels[run].fault == name]
        faulty += [label.run_id for label in _balanced(own, seed)[: shares[name]]]
    learned = {labels[run].group for run in (*partition.profile, *partition.calibration, *fold.train)}
    healthy = [
        run for run in partition.test if labels[run].kind == "healthy" and labels[run].group not in learned
    ]
    return Draw(tuple(faulty), tuple(sorted(healthy)))


def _shares(types: Sequence[str], number: int, seed: int) -> dict[str, int]:
    """Cases of each type: as many of each, and what is left over to types that are drawn."""
    whole, over = divmod(number, len(types))
    order = list(types)
    generator(seed, "remediation", "types").shuffle(order)
    return {name: whole + (place < over) for place, name in enumerate(order)}


def _balanced(runs: Sequence[Label], seed: int) -> list[Label]:
    """Runs of a type in an order in which difficulty and mechanism take turns."""
    cells: dict[tuple[bool, bool], list[Label]] = defaultdict(list)
    for run in sorted(runs, key=lambda label: label.run_id):
        cells[run.difficulty == "easy", run.main].append(run)
    random = generator(seed, "remediation", "cases", runs[0].fault)
    for own in cells.values():
        random.shuffle(own)
    order = sorted(cells)
    random.shuffle(order)
    # Opposite cells follow each other, so that few cases are already balanced in both respects.
    first = order[0]
    order.sort(key=lambda cell: (cell[0] != cell[1]) != (first[0] != first[1]))
    rounds = zip_longest(*(cells[cell] for cell in order))
    return [label for label in chain.from_iterable(rounds) if label is not None]
