"""Which case comes next: fresh permutations of all cases, evenly or by whether their template gave signal.

Once a policy always solves a template, or never does, its groups compare nothing. `by_signal` passes over
most cases of such templates and so spends the rollout on the others (curriculum by learnability).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any

from robustops.records import Task
from robustops.seeding import generator, shuffled_passes

#: Least share of a template's cases that is taken: the policy may have changed since.
LEAST_SHARE = 0.1
#: What is left of a template's record with each further group: about the last ten count.
MEMORY = 0.9
NO_RECORD = [0.0, 0.0]


class CaseDraw:
    """Draws the cases of each condition.

    tasks: rows to draw from; by_signal: take a case with a probability in proportion to the share of recent
    groups of its template that gave signal, the most promising template's always, none's more seldom than
    `LEAST_SHARE`; False: every case in turn.
    """

    def __init__(self, tasks: Sequence[Task], seed: int, *, by_signal: bool = False) -> None:
        self.tasks = tasks
        self.templates = {task.template for task in tasks}
        self.seed = seed
        self.by_signal = by_signal
        #: Places of the passes that are used up, by condition.
        self.drawn: dict[str, int] = defaultdict(int)
        #: [groups, groups with signal] by condition and template, older ones counting less.
        self.records: dict[str, dict[str, list[float]]] = {}

    def next(self, condition: str, used: Collection[str]) -> Task:
        """The next case that is not `used`; any case where all are."""
        size = len(self.tasks)
        shares = self.shares(condition) if self.by_signal else {}
        for _ in range(size):
            place = self.drawn[condition]
            self.drawn[condition] += 1
            places = range(place, place + 1)
            task = self.tasks[shuffled_passes(places, size, self.seed, "cases", condition)[0]]
            if task.case_id in used:
                continue
            share = shares.get(task.template, 1.0)
            if share >= 1 or generator(self.seed, "take", condition, place).random() < share:
                break
        return task

    def note(self, condition: str, template: str, *, signal: bool) -> None:
        """A group of this template was sampled completely, and compared something or not."""
        of_condition = self.records.setdefault(condition, {})
        groups, hits = of_condition.get(template, NO_RECORD)
        of_condition[template] = [MEMORY * groups + 1, MEMORY * hits + signal]

    def shares(self, condition: str) -> dict[str, float]:
        """Which share of each template's cases is taken, in [LEAST_SHARE, 1]."""
        rates = {
            template: (hits + 1) / (groups + 2)  # a template without a record: one half
            for template in self.templates
            for groups, hits in [self.records.get(condition, {}).get(template, NO_RECORD)]
        }
        most = max(rates.values())
        return {template: max(LEAST_SHARE, rate / most) for template, rate in rates.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": dict(self.drawn), "records": deepcopy(self.records)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = defaultdict(int, state["drawn"])
        self.records = deepcopy(state["records"])
