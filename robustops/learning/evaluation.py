"""Paired evaluation: the same cases, seeds and frozen tool faults for every policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from robustops.errors import unknown_name
from robustops.faults.manifest import Manifest
from robustops.records import Episode, Task
from robustops.rewards.parts import rewarded
from robustops.rollout.collector import Collector, valid_episodes
from robustops.rollout.episode import EpisodeRun, EpisodeStart
from robustops.seeding import child_seed

CONDITIONS = ("clean", "fault", "heldout")


@dataclass(frozen=True)
class EvaluationPlan:
    """What every policy is measured on.

    cases: rows (task x tool configuration); manifests: condition -> frozen fault assignments (`clean`
    has none; a case without an assignment is left out of that condition); attempts: episodes a case.
    """

    cases: Sequence[Task]
    manifests: Mapping[str, Manifest]
    conditions: Sequence[str]
    attempts: int
    seed: int

    def starts(self, condition: str) -> list[EpisodeStart]:
        """Episodes of one condition; their seeds do not depend on the policy."""
        if condition not in CONDITIONS:
            raise unknown_name("condition", condition, CONDITIONS)
        starts = []
        for task in self.cases:
            plan = None
            if condition != "clean":
                plan = self.manifests[condition].plan(task.case_id)
                if plan is None:
                    continue
            for attempt in range(self.attempts):
                seed = child_seed(self.seed, "evaluation", condition, task.case_id, attempt)
                starts.append(EpisodeStart(task, condition, attempt, seed, plan))
        return starts

    @property
    def size(self) -> int:
        """Episodes of all conditions."""
        return sum(len(self.starts(condition)) for condition in self.conditions)


def evaluate_policy(
    collector: Collector, plan: EvaluationPlan, on_done: Callable[[EpisodeRun], None] | None = None
) -> list[Episode]:
    """Every episode of every condition, with raw reward parts; invalid ones keep their error."""
    starts = [start for condition in plan.conditions for start in plan.starts(condition)]
    runs = collector.run(starts, on_done)
    episodes = valid_episodes(runs, what="evaluation")
    return [rewarded(start.task, episode) for start, episode in zip(starts, episodes, strict=True)]
