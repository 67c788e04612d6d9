from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.errors import ConfigError, TrainingError
from robustops.learning.groups import GroupMaker, GroupPlan
from robustops.learning.zero_signal import ZeroSignalQueue
from robustops.records import RewardParts
from tests.learning.test_groups import TASKS, by_place, maker_of


def test_a_silent_case_returns_after_its_wait_and_no_step_before():
    queue = ZeroSignalQueue(10)
    queue.add("a", "clean", 3)
    assert queue.take("clean", 12, ()) is None
    assert queue.take("clean", 13, ()).case_id == "a"
    assert len(queue) == 0 and queue.take("clean", 99, ()) is None


def test_a_slot_takes_its_own_kind_and_no_case_that_the_batch_holds():
    queue = ZeroSignalQueue(1)
    for case, condition in (("a", "clean"), ("a", "fault"), ("b", "clean"), ("c", "fault")):
        queue.add(case, condition, 0)
    assert queue.take("clean", 5, {"a"}).case_id == "b"
    assert queue.take("clean", 5, {"a"}) is None
    assert queue.take("fault", 5, {"a"}).case_id == "c"
    assert [(c.case_id, c.condition) for c in queue.waiting] == [("a", "clean"), ("a", "fault")]


def test_a_case_that_is_silent_again_waits_anew():
    queue = ZeroSignalQueue(10)
    queue.add("a", "clean", 0)
    queue.add("a", "clean", 4)
    assert len(queue) == 1 and queue.take("clean", 13, ()) is None
    assert queue.take("clean", 14, ()).case_id == "a"


def test_the_one_that_waited_longest_makes_room():
    queue = ZeroSignalQueue(1, capacity=2)
    for case in "abc":
        queue.add(case, "clean", 0)
    assert [c.case_id for c in queue.waiting] == ["b", "c"]
    with pytest.raises(ConfigError, match="zero_signal_capacity is 0"):
        ZeroSignalQueue(1, capacity=0)


def test_without_a_wait_nothing_is_kept():
    queue = ZeroSignalQueue(None)
    queue.add("a", "clean", 0)
    assert len(queue) == 0


class SlowQueue:
    """A dictionary of due steps in the order of insertion."""

    def __init__(self, wait):
        self.wait, self.due = wait, {}

    def add(self, case, condition, step):
        self.due.pop((case, condition), None)
        self.due[case, condition] = step + self.wait

    def take(self, condition, step, used):
        ready = [k for k, due in self.due.items() if k[1] == condition and due <= step and k[0] not in used]
        if not ready:
            return None
        del self.due[ready[0]]
        return ready[0][0]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.sampled_from("abcd"),
            st.sampled_from(["clean", "fault"]),
            st.sets(st.sampled_from("abcd")),
        ),
        max_size=40,
    )
)
def test_equals_the_slow_queue(events):
    queue, slow = ZeroSignalQueue(3), SlowQueue(3)
    for step, (adds, case, condition, used) in enumerate(events):
        if adds:
            queue.add(case, condition, step)
            slow.add(case, condition, step)
        else:
            taken = queue.take(condition, step, used)
            assert (taken.case_id if taken else None) == slow.take(condition, step, used)


# --- in the group maker --------------------------------------------------------------------------
PLAN = GroupPlan(2, 2, 3, 2, zero_signal_wait=2)


class Rewards:
    """Groups of the cases in `silent` have equal rewards; all others differ by place."""

    def __init__(self) -> None:
        self.silent: set[tuple[str, str]] = set()

    def __call__(self, task, episode) -> RewardParts:
        quiet = (episode.condition, task.case_id) in self.silent
        return RewardParts(0.0, 0.0 if quiet else episode.index / 10, 0.0)


def silent_maker(plan=PLAN, silent=("clean", "fault"), **options) -> tuple[GroupMaker, Rewards]:
    rewards = Rewards()
    rewards.silent = {(condition, task.case_id) for condition in silent for task in TASKS}
    return maker_of(plan, reward=rewards, gives_up=0.0, writes=False, **options), rewards


def cases_of(step, condition):
    return [group.case_id for group in step.sampled if group.condition == condition]


def test_a_case_returns_only_to_replace_a_filtered_group_of_its_kind():
    maker, rewards = silent_maker(GroupPlan(2, 2, 3, 1, zero_signal_wait=2))
    first = maker.step(0)
    assert first.accepted == [] and first.counts["zero_signal_waiting"] == len(first.sampled)
    rewards.silent.clear()
    second = maker.step(2)
    assert second.counts["rounds"] == 1 and not second.counts["returned_clean"], "nothing was filtered"
    rewards.silent = {("clean", case) for case in cases_of(second, "clean")}
    rewards.silent |= {("clean", task.case_id) for task in TASKS} - {
        ("clean", case) for case in cases_of(first, "clean")
    }
    third = maker.step(3)
    returned = third.counts["returned_clean"]
    assert 0 < returned <= 2 and not third.counts["returned_fault"]
    assert set(cases_of(third, "clean")[2:]) & set(cases_of(first, "clean"))


def test_no_case_is_twice_in_a_batch_while_others_are_left():
    maker, _ = silent_maker(GroupPlan(4, 0, 2, 2, zero_signal_wait=1))
    for step in range(4):
        cases = cases_of(maker.step(step), "clean")
        assert len(cases) == 12 == len(set(cases)) == len(TASKS)
    crowded, _ = silent_maker(GroupPlan(5, 0, 2, 2, zero_signal_wait=1))
    cases = cases_of(crowded.step(0), "clean")
    assert len(cases) == 15 and set(cases) == {task.case_id for task in TASKS}


def test_a_returned_clean_case_starts_anew_and_a_fault_case_from_its_saved_state():
    maker, _ = silent_maker(GroupPlan(2, 2, 3, 1, zero_signal_wait=1))
    first = maker.step(0)
    before = {(g.condition, g.case_id): g.episodes for g in first.sampled}
    assert {c.packed is not None for c in maker.queue.waiting if c.condition == "fault"} == {True}
    assert {c.packed is not None for c in maker.queue.waiting if c.condition == "clean"} == {False}
    injected = dict(maker.scheduler.injected)
    again = maker.step(1)
    back = [g for g in again.sampled if (g.condition, g.case_id) in before]
    assert {g.condition for g in back} == {"clean", "fault"}
    fresh = sum(group.condition == "fault" for group in again.sampled if group not in back)
    assert sum(maker.scheduler.injected.values()) == sum(injected.values()) + fresh, "not injected again"
    for group in back:
        for old, new in zip(before[group.condition, group.case_id], group.episodes, strict=True):
            shared = old.turns[: old.inherited_turns]
            assert new.turns[: new.inherited_turns] == shared
            prefix = old.token_ids[: old.turns[old.inherited_turns].start]
            assert new.token_ids[: len(prefix)] == prefix and not any(new.loss_mask[: len(prefix)])
            assert new.checks_start == old.checks_start


def test_all_success_groups_do_not_wait():
    maker = maker_of(dataclasses.replace(PLAN, fault_groups=0), gives_up=0.0)
    result = maker.step(0)
    assert result.counts["groups_all_success"] == len(result.sampled) and len(maker.queue) == 0


def test_a_silent_return_waits_again():
    maker, _ = silent_maker(GroupPlan(1, 0, 2, 1, zero_signal_wait=5))
    maker.step(0)
    waiting = {c.case_id: c.due for c in maker.queue.waiting}
    maker.step(5)
    later = {c.case_id: c.due for c in maker.queue.waiting}
    back = [case for case in waiting if later.get(case) == 10]
    assert back and all(waiting[case] == 5 for case in back)


def test_the_switch_trains_on_every_complete_group():
    maker, _ = silent_maker(dataclasses.replace(PLAN, dynamic_sampling=False))
    result = maker.step(0)
    assert result.accepted == result.sampled and len(result.accepted) == 4 and len(maker.queue) == 0
    winners = maker_of(dataclasses.replace(PLAN, dynamic_sampling=False), gives_up=0.0).step(0)
    assert all(e.success for g in winners.accepted for e in g.episodes)


def test_the_queue_survives_a_checkpoint():
    whole, _ = silent_maker()
    expected = [whole.step(step) for step in range(4)]
    assert sum(step.counts["returned_fault"] for step in expected) > 0
    first, _ = silent_maker()
    first.step(0)
    first.step(1)
    second, _ = silent_maker()
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    for step in (2, 3):
        again = second.step(step)
        assert again.sampled == expected[step].sampled and again.counts == expected[step].counts


def test_a_waiting_case_that_is_no_task_of_the_run_is_an_error():
    maker, _ = silent_maker()
    maker.queue.add("gone/oracle", "clean", -99)
    with pytest.raises(TrainingError, match=r"gone/oracle waits .* is not among the training cases"):
        maker.step(0)


def test_a_part_of_the_reward_that_is_not_finite_makes_the_episode_invalid():
    def reward(task, episode):
        return RewardParts(0.0, float("nan") if episode.index == 1 else episode.index / 10, 0.0)

    result = maker_of(GroupPlan(2, 0, 3, 0), reward=reward).step(0)
    assert result.accepted == [] and result.counts["groups_invalid"] == 2
    for group in result.sampled:
        assert [e.error is not None for e in group.episodes] == [False, True, False]
        assert group.episodes[1].error.boundary == "reward" and group.episodes[1].reward_parts is None
    assert len(maker_of(GroupPlan(2, 0, 3, 0), reward=by_place).step(0).accepted) == 2
