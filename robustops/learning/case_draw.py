"""Which case comes next: fresh permutations of all cases, evenly or by whether their template gave signal.

Once a policy always solves a template, or never does, its groups compare nothing. `by_signal` passes over
most cases of such templates and so spends the rollout on the others (curriculum by learnability). A given
curriculum (`tasks.curriculum`) passes over cases by the weights of its phases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any

from robustops.records import Task
from robustops.seeding import generator, shuffled_passes
from robustops.tasks.curriculum import Phase, check_templates, phase_at

#: Least share of a template's cases that is taken: the policy may have changed since.
LEAST_SHARE = 0.1
#: What is left of a template's record with each further group: about the last ten count.
MEMORY = 0.9
NO_RECORD = [0.0, 0.0]


class CaseDraw:
    """Draws the cases of each condition.

    tasks: rows to draw from; by_signal: take a case with a probability in proportion to the share of recent
    groups of its template that gave signal, the most promising template's always, none's more seldom than
    `LEAST_SHARE`; False: every case in turn; curriculum: weights of templates by step.

    Raises:
        ConfigError: the curriculum names a template that no task has.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        seed: int,
        *,
        by_signal: bool = False,
        curriculum: Sequence[Phase] = (),
    ) -> None:
        self.tasks = tasks
        self.templates = {task.template for task in tasks}
        self.seed = seed
        self.by_signal = by_signal
        self.curriculum = curriculum
        check_templates(curriculum, self.templates)
        #: Places of the passes that are used up, by condition.
        self.drawn: dict[str, int] = defaultdict(int)
        #: [groups, groups with signal] by condition and template, older ones counting less.
        self.records: dict[str, dict[str, list[float]]] = {}

    def next(self, condition: str, used: Collection[str], step: int = 1) -> Task:
        """The next case for a step (from 1) that is not `used`; any case of the step's mix where all are."""
        size = len(self.tasks)
        shares = self._all_shares(condition, step)
        task: Task | None = None
        for _ in range(size):
            place = self.drawn[condition]
            self.drawn[condition] += 1
            places = range(place, place + 1)
            drawn = self.tasks[shuffled_passes(places, size, self.seed, "cases", condition)[0]]
            share = shares.get(drawn.template, 1.0)
            if share > 0 or task is None:
                task = drawn
            if drawn.case_id in used or share <= 0:
                continue
            if share >= 1 or generator(self.seed, "take", condition, place).random() < share:
                break
        assert task is not None
        return task

    def _all_shares(self, condition: str, step: int) -> dict[str, float]:
        """Shares of templates by signal and by curriculum; one that is not in it: 1."""
        shares = self.shares(condition) if self.by_signal else {}
        phase = phase_at(self.curriculum, step)
        if phase is None:
            return shares
        return {
            template: share * shares.get(template, 1.0)
            for template, share in phase.shares(self.templates).items()
        }

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
