"""The groups of one GRPO step: clean ones from the start state, fault ones from a shared snapshot.

A fault group begins with a probe: the current policy works on the task with tools that do not fail, and
every call at which a fault could be injected is remembered. One of them is chosen, its fault injected,
and all members of the group continue from the state after it (RobustOps, training strategy). Groups
without a relative signal are replaced by groups of the same kind (dynamic sampling): by a case whose wait
is over (`zero_signal`), else by the next case (`case_draw`). No case is twice in a batch while others are
left.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from robustops.errors import TrainingError, WorldError
from robustops.faults.branch import Branch, branch
from robustops.faults.scheduler import FaultScheduler
from robustops.faults.wrapper import Opportunity
from robustops.learning.case_draw import CaseDraw
from robustops.learning.hooks import NO_TRAINING_HOOKS, TrainingHooks
from robustops.learning.zero_signal import ZeroSignalQueue
from robustops.objectives.advantages import has_signal
from robustops.records import Episode, EpisodeError, Group, Task, text_digest
from robustops.rewards.combine import RewardWeights
from robustops.rewards.guards import RewardGuards, guarded
from robustops.rewards.parts import Reward, rewarded
from robustops.rollout.collector import Collector, retry_counts
from robustops.rollout.episode import EpisodeRun, EpisodeStart, Prefix
from robustops.rollout.hooks import Place
from robustops.seeding import child_seed
from robustops.tasks.curriculum import Phase

CLEAN, FAULT = "clean", "fault"
OnDone = Callable[[EpisodeRun], None]


@dataclass(frozen=True)
class GroupPlan:
    """How many groups a step trains on and how missing ones are replaced.

    refill_rounds: how often missing groups are sampled anew; dynamic_sampling: False trains on every group
    that is complete; zero_signal_wait: steps until a silent case may return, None: never;
    zero_signal_capacity: most cases that wait; draw_by_signal, curriculum: see `case_draw`.
    """

    clean_groups: int
    fault_groups: int
    group_size: int
    refill_rounds: int
    dynamic_sampling: bool = True
    zero_signal_wait: int | None = None
    zero_signal_capacity: int = 256
    draw_by_signal: bool = False
    curriculum: tuple[Phase, ...] = ()


@dataclass
class StepGroups:
    """The accepted groups, everything that was sampled (in order), and counts of what happened."""

    accepted: list[Group] = field(default_factory=list)
    sampled: list[Group] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Slot:
    """One group to be sampled. number: its place in the run's sequence of slots of this condition; prefix:
    where a fault case that returns continues.
    """

    task: Task
    condition: str
    number: int
    prefix: Prefix | None = None


@dataclass
class _Sampled:
    """What became of the slot at `place`; group None: its probe gave no place for a fault."""

    place: int
    group: Group | None = None
    prefix: Prefix | None = None
    counts: Counter[str] = field(default_factory=Counter)
    injected: str | None = None
    failure: EpisodeError | None = None


#: Lists of all processes, in the order of their ranks, from the list of this one.
Gather = Callable[[list[_Sampled]], list[list[_Sampled]]]


class GroupMaker:
    """Samples the groups of each step with the current policy.

    tasks: rows (task x tool configuration) to draw from; scheduler: None trains without fault groups;
    reward: raw reward parts of a finished episode; weights: of the parts (a part of weight 0 gives no
    signal; default: those of the source); guards: of the rewards (default: none); hooks: see
    `learning.hooks`; rank, size, gather: where several processes share the work, each samples its part of
    the slots and all of them end with the same groups. The state that a checkpoint needs is in `state_dict`,
    the same in every process.
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
        *,
        guards: RewardGuards | None = None,
        hooks: TrainingHooks = NO_TRAINING_HOOKS,
        rank: int = 0,
        size: int = 1,
        gather: Gather = lambda own: [own],
    ) -> None:
        self.collector = collector
        self.scheduler = scheduler
        self.plan = plan
        self.reward = reward
        self.seed = seed
        self.weights = weights
        self.guards = guards or RewardGuards()
        self.hooks = hooks
        self.rank, self.size, self.gather = rank, size, gather
        self.queue = ZeroSignalQueue(plan.zero_signal_wait, plan.zero_signal_capacity)
        self.cases = CaseDraw(tasks, seed, by_signal=plan.draw_by_signal, curriculum=plan.curriculum)
        self.tasks = {task.case_id: task for task in tasks}
        #: Slots sampled, by condition.
        self.slots = {CLEAN: 0, FAULT: 0}

    def step(self, step: int, on_done: OnDone | None = None) -> StepGroups:
        """Sample groups until the step is full or the refill rounds are used up."""
        result = StepGroups()
        fault_groups = self.plan.fault_groups if self.scheduler is not None else 0
        missing = {CLEAN: self.plan.clean_groups, FAULT: fault_groups}
        used: dict[str, set[str]] = {CLEAN: set(), FAULT: set()}
        failures: list[EpisodeError | None] = []
        for round_number in range(self.plan.refill_rounds + 1):
            slots = self._slots(step, missing, used, result, refill=round_number > 0)
            if not slots:
                break
            result.counts["rounds"] = round_number + 1
            sampled = self._sample(step, slots, on_done)
            failures += [one.failure for one in sampled]
            for one in sampled:
                result.counts.update(one.counts)
                if one.group is not None:
                    result.sampled.append(one.group)
                    if self._accept(step, one.group, one.prefix, result):
                        result.accepted.append(one.group)
                        missing[one.group.condition] -= 1
        if failures and all(failures):
            raise TrainingError(
                f"GRPO step {step}: none of {len(failures)} groups completed an episode; first: {failures[0]}"
            )
        result.counts["zero_signal_waiting"] = len(self.queue)
        return result

    def state_dict(self) -> dict[str, Any]:
        scheduler = self.scheduler.state_dict() if self.scheduler is not None else {}
        return {
            "cases": self.cases.state_dict(),
            "slots": dict(self.slots),
            "scheduler": scheduler,
            "zero_signal": self.queue.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cases.load_state_dict(state["cases"])
        self.slots = dict(state["slots"])
        self.queue.load_state_dict(state["zero_signal"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])

    # drawing ------------------------------------------------------------------------------------
    def _slots(
        self,
        step: int,
        missing: dict[str, int],
        used: dict[str, set[str]],
        result: StepGroups,
        *,
        refill: bool,
    ) -> list[_Slot]:
        slots = []
        for condition, number in missing.items():
            for _ in range(number):
                back = self.queue.take(condition, step, used[condition]) if refill else None
                if back is not None:
                    result.counts[f"returned_{condition}"] += 1
                    task, prefix = self._task(back.case_id), back.prefix
                else:
                    task, prefix = self.cases.next(condition, used[condition], step + 1), None
                used[condition].add(task.case_id)
                slots.append(_Slot(task, condition, self.slots[condition], prefix))
                self.slots[condition] += 1
        return slots

    def _task(self, case_id: str) -> Task:
        if (task := self.tasks.get(case_id)) is None:
            raise TrainingError(
                f"case {case_id} waits in the zero-signal queue but is not among the training cases; resume "
                "with the tasks that the run began with"
            )
        return task

    # sampling -----------------------------------------------------------------------------------
    def _sample(self, step: int, slots: Sequence[_Slot], on_done: OnDone | None) -> list[_Sampled]:
        """This process's share of the slots, and then everybody's, in order."""
        places = range(self.rank, len(slots), self.size)
        own = self._sample_own(step, [slots[place] for place in places], on_done)
        for place, one in zip(places, own, strict=True):
            one.place = place
        everyone = [one for part in self.gather(own) for one in part]
        if self.scheduler is not None:
            for one in everyone:
                if one.injected is not None and one.place not in places:
                    self.scheduler.record(one.injected)
        return sorted(everyone, key=lambda one: one.place)

    def _sample_own(self, step: int, slots: Sequence[_Slot], on_done: OnDone | None) -> list[_Sampled]:
        """Clean groups and probes together, then the continuations of all fault groups together."""
        results = [_Sampled(place, prefix=slot.prefix) for place, slot in enumerate(slots)]
        members = range(self.plan.group_size)
        clean = [place for place, slot in enumerate(slots) if slot.condition == CLEAN]
        probed = [p for p, slot in enumerate(slots) if slot.condition == FAULT and slot.prefix is None]
        first = [self._start(step, slots[place], member) for place in clean for member in members]
        probes = [dataclasses.replace(self._start(step, slots[place], -1), observe=True) for place in probed]
        runs = self.collector.run([*first, *probes], on_done)
        for place, probe in zip(probed, runs[len(first) :], strict=True):
            self._branch(step, slots[place], probe, results[place])
        continued = [p for p, slot in enumerate(slots) if slot.condition == FAULT and results[p].prefix]
        starts = [
            dataclasses.replace(self._start(step, slots[place], member), prefix=results[place].prefix)
            for place in continued
            for member in members
        ]
        runs = runs[: len(first)] + (self.collector.run(starts, on_done) if starts else [])
        for number, place in enumerate([*clean, *continued]):
            cut = runs[number * len(members) : (number + 1) * len(members)]
            self._group(step, slots[place], cut, results[place])
        return results

    def _start(self, step: int, slot: _Slot, member: int) -> EpisodeStart:
        """Of one member of a group, or of its probe (-1), which has no place: hooks leave it alone."""
        seed = child_seed(self.seed, "episode", slot.condition, slot.number, member)
        place = None
        if member >= 0:
            place = Place(step + 1, slot.task.case_id, slot.condition, slot.number, member)
        return EpisodeStart(slot.task, slot.condition, max(member, 0), seed, place=place)

    def _branch(self, step: int, slot: _Slot, probe: EpisodeRun, result: _Sampled) -> None:
        """Set the prefix of a fault group; none where the probe had no opportunity for a fault."""
        assert self.scheduler is not None
        episode = probe.episode
        result.counts += retry_counts([probe])
        if episode is None or episode.error is not None:
            result.counts["invalid_probes"] += 1
            result.failure = episode.error if episode is not None else None
            return
        chosen = self.scheduler.choose(probe.opportunities, step, slot.number)
        if chosen is None:
            result.counts["probes_without_opportunity"] += 1
            return
        try:
            shared = branch(probe.world.world, chosen.opportunity, chosen.plan)
        except WorldError as error:
            result.counts["invalid_probes"] += 1
            result.failure = EpisodeError("world", str(error))
            return
        self.scheduler.record(chosen.plan.subtype)
        result.injected = chosen.plan.subtype
        result.counts[f"injected_{chosen.plan.subtype}"] += 1
        result.prefix = self._prefix(episode, chosen.opportunity, shared)

    def _prefix(self, episode: Episode, opportunity: Opportunity, shared: Branch) -> Prefix:
        """The probe's dialogue up to the chosen call, whose reply is the faulty one."""
        calls = [place for place, turn in enumerate(episode.turns) if turn.call is not None]
        place = calls[opportunity.turn]
        turn = episode.turns[place]
        event = dataclasses.replace(shared.event, turn=place)
        said = text_digest(shared.result.text)
        last = dataclasses.replace(turn, result=shared.result, fault=event, changed=shared.changed, said=said)
        ids = (*episode.token_ids[: turn.end], *self.collector.renderer.result(shared.result))
        return Prefix(ids, (*episode.turns[:place], last), shared.snapshot)

    def _group(self, step: int, slot: _Slot, runs: Sequence[EpisodeRun], result: _Sampled) -> None:
        episodes = tuple(
            rewarded(slot.task, run.episode, self.reward) for run in runs if run.episode is not None
        )
        result.counts += retry_counts(runs)
        group = Group(slot.task.case_id, slot.condition, episodes)
        judged = self.hooks.on_group(step + 1, slot.number, group)
        result.group = guarded(judged, self.guards, partial(self.reward, slot.task))
        failures = [episode.error for episode in episodes]
        result.failure = failures[0] if failures and all(failures) else None
        if any(failures) or self._silent(result.group) != "no_signal":
            result.prefix = None  # only a silent case comes back to it

    # choosing -----------------------------------------------------------------------------------
    def _accept(self, step: int, group: Group, prefix: Prefix | None, result: StepGroups) -> bool:
        """Keep groups that compare: complete, not all successful, a weighted reward part differs."""
        if any(episode.error is not None for episode in group.episodes):
            result.counts["groups_invalid"] += 1
            return False
        reason = self._silent(group)
        self.cases.note(group.condition, self._task(group.case_id).template, signal=reason is None)
        if self.plan.dynamic_sampling and reason is not None:
            result.counts[f"groups_{reason}"] += 1
            if reason == "no_signal":
                self.queue.add(group.case_id, group.condition, step, prefix)
            return False
        result.counts[f"groups_{group.condition}"] += 1
        return True

    def _silent(self, group: Group) -> str | None:
        """Why a complete group gives nothing to learn from, or None."""
        if all(episode.success for episode in group.episodes):
            return "all_success"
        parts = [episode.reward_parts for episode in group.episodes if episode.reward_parts is not None]
        return None if has_signal(parts, [0] * len(parts), self.weights).any() else "no_signal"
