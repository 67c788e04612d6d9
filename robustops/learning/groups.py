"""The groups of one GRPO step: clean ones from the start state, fault ones from a shared snapshot.

A fault group begins with a probe: the current policy works on the task with tools that do not fail, and
every call at which a fault could be injected is remembered. One of them is chosen, its fault injected,
and all members of the group continue from the state after it (RobustOps, training strategy). Groups
without a relative signal are replaced by groups of the same kind (dynamic sampling).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from robustops.faults.branch import Branch, branch
from robustops.faults.scheduler import FaultScheduler
from robustops.faults.wrapper import Opportunity
from robustops.objectives.advantages import has_signal
from robustops.records import Episode, Group, RewardParts, Task
from robustops.rewards.combine import RewardWeights
from robustops.rollout.collector import Collector, valid_episodes
from robustops.rollout.episode import EpisodeRun, EpisodeStart, Prefix
from robustops.seeding import child_seed, shuffled_passes

CLEAN, FAULT = "clean", "fault"
Reward = Callable[[Task, Episode], RewardParts]


@dataclass(frozen=True)
class GroupPlan:
    """How many groups a step trains on, their size, and how often missing ones are sampled anew."""

    clean_groups: int
    fault_groups: int
    group_size: int
    refill_rounds: int


@dataclass
class StepGroups:
    """The accepted groups, everything that was sampled (in order), and counts of what happened."""

    accepted: list[Group] = field(default_factory=list)
    sampled: list[Group] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Slot:
    """One group to be sampled; number: its place in the run's sequence of slots of this condition."""

    task: Task
    condition: str
    number: int


class GroupMaker:
    """Samples the groups of each step with the current policy.

    tasks: rows (task x tool configuration) to draw from; scheduler: None trains without fault groups;
    reward: raw reward parts of a finished episode; weights: of the parts (a part of weight 0 gives no
    signal; default: those of the source). The state that a checkpoint needs is in `state_dict`.
    """

    def __init__(
        self,
        collector: Collector,
        tasks: Sequence[Task],
        scheduler: FaultScheduler | None,
        plan: GroupPlan,
        reward: Reward,
        seed: int,
        weights: RewardWeights | None = None,
    ) -> None:
        self.collector = collector
        self.tasks = tasks
        self.scheduler = scheduler
        self.plan = plan
        self.reward = reward
        self.seed = seed
        self.weights = weights
        self.drawn = {CLEAN: 0, FAULT: 0}

    def step(self, step: int, on_done: Callable[[EpisodeRun], None] | None = None) -> StepGroups:
        """Sample groups until the step is full or the refill rounds are used up."""
        result = StepGroups()
        fault_groups = self.plan.fault_groups if self.scheduler is not None else 0
        missing = {CLEAN: self.plan.clean_groups, FAULT: fault_groups}
        for round_number in range(self.plan.refill_rounds + 1):
            slots = [slot for kind, number in missing.items() for slot in self._draw(kind, number)]
            if not slots:
                break
            result.counts["rounds"] = round_number + 1
            for group in self._sample(step, slots, result, on_done):
                result.sampled.append(group)
                if self._accept(group, result):
                    result.accepted.append(group)
                    missing[group.condition] -= 1
        return result

    def state_dict(self) -> dict[str, Any]:
        scheduler = self.scheduler.state_dict() if self.scheduler is not None else {}
        return {"drawn": dict(self.drawn), "scheduler": scheduler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = dict(state["drawn"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])

    # ---------------------------------------------------------------------------------------------
    def _draw(self, condition: str, number: int) -> list[_Slot]:
        """The next cases; each pass over the tasks is a fresh permutation."""
        first = self.drawn[condition]
        places = range(first, first + number)
        self.drawn[condition] += number
        cases = shuffled_passes(places, len(self.tasks), self.seed, "cases", condition)
        return [_Slot(self.tasks[case], condition, place) for case, place in zip(cases, places, strict=True)]

    def _sample(
        self,
        step: int,
        slots: Sequence[_Slot],
        result: StepGroups,
        on_done: Callable[[EpisodeRun], None] | None,
    ) -> list[Group]:
        """Clean groups and probes together, then the continuations of all fault groups together."""
        size = self.plan.group_size
        clean = [slot for slot in slots if slot.condition == CLEAN]
        probed = [slot for slot in slots if slot.condition == FAULT]
        first = [self._start(slot, member) for slot in clean for member in range(size)]
        probes = [dataclasses.replace(self._start(slot, -1), observe=True) for slot in probed]
        runs = self.collector.run([*first, *probes], on_done)
        valid_episodes(runs, what=f"GRPO step {step}")
        continued: list[EpisodeStart] = []
        for slot, probe in zip(probed, runs[len(first) :], strict=True):
            continued += self._branch(step, slot, probe, result)
        branched = [start for start in continued if start.index == 0]
        suffixes = self.collector.run(continued, on_done) if continued else []
        clean_groups = _cut(runs[: len(first)], [slot.task for slot in clean], CLEAN, size)
        fault_groups = _cut(suffixes, [start.task for start in branched], FAULT, size)
        return [self._rewarded(group, task) for group, task in [*clean_groups, *fault_groups]]

    def _start(self, slot: _Slot, member: int) -> EpisodeStart:
        seed = child_seed(self.seed, "episode", slot.condition, slot.number, member)
        return EpisodeStart(slot.task, slot.condition, max(member, 0), seed)

    def _branch(self, step: int, slot: _Slot, probe: EpisodeRun, result: StepGroups) -> list[EpisodeStart]:
        """The members of a fault group, or none where the probe had no opportunity for a fault."""
        assert self.scheduler is not None
        episode = probe.episode
        if episode is None or episode.error is not None:
            result.counts["invalid_probes"] += 1
            return []
        chosen = self.scheduler.choose(probe.opportunities, step, slot.number)
        if chosen is None:
            result.counts["probes_without_opportunity"] += 1
            return []
        shared = branch(probe.world.world, chosen.opportunity, chosen.plan)
        self.scheduler.record(chosen.plan.subtype)
        result.counts[f"injected_{chosen.plan.subtype}"] += 1
        prefix = self._prefix(episode, chosen.opportunity, shared)
        return [
            dataclasses.replace(self._start(slot, member), plan=chosen.plan, prefix=prefix)
            for member in range(self.plan.group_size)
        ]

    def _prefix(self, episode: Episode, opportunity: Opportunity, shared: Branch) -> Prefix:
        """The probe's dialogue up to the chosen call, whose reply is the faulty one."""
        calls = [place for place, turn in enumerate(episode.turns) if turn.call is not None]
        place = calls[opportunity.turn]
        turn = episode.turns[place]
        event = dataclasses.replace(shared.event, turn=place)
        last = dataclasses.replace(turn, result=shared.result, fault=event, changed=shared.changed)
        ids = (*episode.token_ids[: turn.end], *self.collector.renderer.result(shared.result))
        return Prefix(ids, (*episode.turns[:place], last), shared.snapshot)

    def _rewarded(self, group: Group, task: Task) -> Group:
        episodes = tuple(
            episode
            if episode.error is not None
            else dataclasses.replace(episode, reward_parts=self.reward(task, episode))
            for episode in group.episodes
        )
        return dataclasses.replace(group, episodes=episodes)

    def _accept(self, group: Group, result: StepGroups) -> bool:
        """Keep groups that compare: complete, not all successful, a weighted reward part differs."""
        if any(episode.error is not None for episode in group.episodes):
            result.counts["groups_invalid"] += 1
            return False
        if all(episode.success for episode in group.episodes):
            result.counts["groups_all_success"] += 1
            return False
        parts = [episode.reward_parts for episode in group.episodes if episode.reward_parts is not None]
        if not has_signal(parts, [0] * len(parts), self.weights).any():
            result.counts["groups_no_signal"] += 1
            return False
        result.counts[f"groups_{group.condition}"] += 1
        return True


def _cut(
    runs: Sequence[EpisodeRun], tasks: Sequence[Task], condition: str, size: int
) -> list[tuple[Group, Task]]:
    """Consecutive runs as groups of equal size."""
    groups = []
    for place, task in enumerate(tasks):
        members = runs[place * size : (place + 1) * size]
        episodes = tuple(run.episode for run in members if run.episode is not None)
        groups.append((Group(task.case_id, condition, episodes), task))
    return groups
