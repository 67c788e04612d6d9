from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from robustops.errors import TrainingError
from robustops.faults.plan import TRAINED, family_of, fault_choices
from robustops.faults.scheduler import FaultScheduler
from robustops.learning.groups import GroupMaker, GroupPlan, StepGroups
from robustops.records import Episode, RewardParts
from robustops.rewards.combine import RewardWeights
from robustops.rewards.parts import reward_parts
from robustops.rollout.collector import Collector
from robustops.rollout.episode import Limits
from robustops.rollout.sampler import Completion
from tests.rollout.fake_sampler import FakeSampler, TokenExpert
from tests.tiny_model import tiny_renderer
from tests.toy_domain import TOY, toy_tasks

SUBTYPES = fault_choices("trained")
RENDERER = tiny_renderer()
TASKS = toy_tasks(6)


PLAN = GroupPlan(2, 2, 4, 0)


def maker_of(
    plan=PLAN, *, gives_up=0.15, writes=True, seed=1, tasks=TASKS, reward=reward_parts, **options
) -> GroupMaker:
    sampler = options.pop("sampler", None) or TokenExpert(RENDERER, {"toy": TOY}, gives_up, writes)
    limits = options.pop("limits", Limits(4000, 200, 12))
    collector = Collector(sampler, RENDERER, {"toy": TOY}, limits, retries=0)
    scheduler = options.pop("scheduler", FaultScheduler(SUBTYPES, seed=3))
    return GroupMaker(collector, tasks, scheduler, plan, reward, seed, **options)


def by_place(task, episode: Episode) -> RewardParts:
    """A reward that always differs within a group."""
    return RewardParts(0.0, episode.index / 10, 0.0)


def of_condition(step: StepGroups, condition: str):
    return [group for group in step.sampled if group.condition == condition]


def prompt_of(episode: Episode) -> tuple[int, ...]:
    return episode.token_ids[: episode.turns[0].start]


@pytest.fixture(scope="module")
def steps() -> list[StepGroups]:
    maker = maker_of(reward=by_place)
    return [maker.step(step) for step in range(5)]


def test_a_step_has_its_groups_of_each_kind_and_size(steps):
    for step in steps:
        kinds = Counter(group.condition for group in step.sampled)
        assert kinds["clean"] == 2 and kinds["fault"] <= 2
        for group in step.sampled:
            assert (group in step.accepted) == (not all(e.success for e in group.episodes))
            assert [episode.index for episode in group.episodes] == [0, 1, 2, 3]
            assert {(e.case_id, e.condition) for e in group.episodes} == {(group.case_id, group.condition)}
            assert all(e.reward_parts == by_place(None, e) for e in group.episodes)
    assert sum(len(of_condition(step, "fault")) for step in steps) >= 8


def test_members_of_a_clean_group_share_the_start_and_nothing_else(steps):
    for step in steps:
        for group in of_condition(step, "clean"):
            first = group.episodes[0]
            assert {prompt_of(e) for e in group.episodes} == {prompt_of(first)}
            assert {e.checks_start for e in group.episodes} == {first.checks_start}
            assert {e.inherited_turns for e in group.episodes} == {0}
            assert not any(e.faults for e in group.episodes)
    groups = [group for step in steps for group in of_condition(step, "clean")]
    assert any(len({e.token_ids for e in group.episodes}) > 1 for group in groups), "seeds differ"


def test_members_of_a_fault_group_continue_from_one_faulty_reply(steps):
    for step in steps:
        for group in of_condition(step, "fault"):
            first = group.episodes[0]
            shared = first.turns[: first.inherited_turns]
            struck = shared[-1]
            assert struck.fault is not None and struck.fault.turn == len(shared) - 1
            assert struck.fault.subtype in SUBTYPES
            assert [turn.fault for turn in shared[:-1]] == [None] * (len(shared) - 1)
            # The faulty reply, not the native one, is what the prefix's tokens say.
            prefix = (*first.token_ids[: struck.end], *RENDERER.result(struck.result))
            for episode in group.episodes:
                assert episode.turns[: len(shared)] == shared
                assert episode.token_ids[: len(prefix)] == prefix
                assert not any(episode.loss_mask[: len(prefix)])
                assert episode.checks_start == first.checks_start
                if episode.own_turns:
                    assert episode.own_turns[0].start == len(prefix)
                    assert sum(episode.loss_mask) == sum(t.end - t.start for t in episode.own_turns)
                # At most the repetition cap, counted from the shared one on, and on the same call.
                repeats = [turn for turn in episode.own_turns if turn.fault is not None]
                assert [t.fault.repetition for t in repeats] == list(range(2, 2 + len(repeats)))
                assert all(t.call == struck.call for t in repeats)
                assert len(repeats) < struck.fault.cap


def test_the_world_of_a_continuation_is_the_one_after_the_fault():
    """Only a lost receipt leaves its write in the world; a refused call does not."""
    for subtype, landed in (("lost_receipt", True), ("temporary_refusal", False)):
        maker = maker_of(
            GroupPlan(0, 3, 2, 0), gives_up=0.0, scheduler=FaultScheduler([subtype]), reward=by_place
        )
        struck_writes = 0
        for step in range(4):
            for group in maker.step(step).sampled:
                episode = group.episodes[0]
                struck = episode.turns[episode.inherited_turns - 1]
                if struck.call.name == "create_note":
                    struck_writes += 1
                    assert struck.changed == landed
                    assert episode.checks_start[0] == landed, "note_is_there"
                assert all(member.success for member in group.episodes), "the expert recovers from both"
        assert struck_writes > 0


def test_injections_are_balanced_over_families_and_counted():
    maker = maker_of(GroupPlan(0, 4, 2, 0), gives_up=0.05, reward=by_place)
    counts: Counter[str] = Counter()
    for step in range(8):
        result = maker.step(step)
        counts.update(result.counts)
        injected = [g.episodes[0].turns[g.episodes[0].inherited_turns - 1].fault for g in result.sampled]
        found = Counter(f"injected_{fault.subtype}" for fault in injected)
        assert found == Counter({k: v for k, v in result.counts.items() if k.startswith("injected_")})
    families = Counter()
    for subtype, count in maker.scheduler.injected.items():
        assert counts[f"injected_{subtype}"] == count
        families[family_of(subtype)] += count
    assert set(families) == set(TRAINED) and max(families.values()) - min(families.values()) <= 2


def test_no_scheduler_means_no_fault_groups():
    result = maker_of(GroupPlan(1, 3, 2, 1), scheduler=None, writes=False, reward=by_place).step(0)
    assert [group.condition for group in result.sampled] == ["clean"]


def test_all_success_groups_are_dropped_and_refilled_until_the_rounds_are_used_up():
    maker = maker_of(GroupPlan(2, 1, 3, 2), gives_up=0.0)
    result = maker.step(0)
    assert result.accepted == [] and result.counts["rounds"] == 3
    assert result.counts["groups_all_success"] == len(result.sampled) == 9
    assert all(e.success for group in result.sampled for e in group.episodes)
    assert maker.cases.drawn == {"clean": 6, "fault": 3}, "each refill takes the next case of its kind"


def test_groups_without_signal_are_dropped():
    result = maker_of(GroupPlan(2, 0, 3, 1), gives_up=1.0).step(0)
    assert result.accepted == [] and result.counts["groups_no_signal"] == len(result.sampled) == 4


def test_mixed_groups_are_kept():
    maker = maker_of(GroupPlan(4, 4, 4, 0), gives_up=0.15)
    results = [maker.step(step) for step in range(3)]
    for result in results:
        for group in result.sampled:
            parts = {episode.reward_parts for episode in group.episodes}
            wins = [episode.success for episode in group.episodes]
            assert (group in result.accepted) == (len(parts) > 1 and not all(wins))
    accepted = [group for result in results for group in result.accepted]
    assert {group.condition for group in accepted} == {"clean", "fault"}
    assert any(any(e.success for e in g.episodes) for g in accepted)


def test_only_missing_groups_are_refilled_by_the_same_kind():
    silent = set()

    def reward(task, episode):
        # The first clean case and the second fault case say nothing; the others differ by place.
        quiet = (episode.condition, task.case_id) in silent
        return RewardParts(0.0, 0.0 if quiet else episode.index / 10, 0.0)

    plan = GroupPlan(2, 2, 2, 2)
    first = maker_of(plan, reward=by_place, gives_up=0.0, writes=False).step(0)
    assert first.counts["rounds"] == 1 and len(first.accepted) == 4
    silent.add(("clean", first.sampled[0].case_id))
    silent.add(("fault", first.sampled[3].case_id))
    maker = maker_of(plan, reward=reward, gives_up=0.0, writes=False)
    second = maker.step(0)
    assert second.counts["rounds"] == 2 and second.counts["groups_no_signal"] == 2
    assert [g.condition for g in second.sampled] == ["clean", "clean", "fault", "fault", "clean", "fault"]
    assert Counter(g.condition for g in second.accepted) == {"clean": 2, "fault": 2}
    assert maker.cases.drawn == {"clean": 3, "fault": 3}


def test_a_part_without_weight_gives_no_signal():
    def quality_only(task, episode):
        return RewardParts(0.0, 0.0, episode.index / 10)

    plan = GroupPlan(2, 0, 3, 0)
    assert len(maker_of(plan, reward=quality_only, gives_up=1.0).step(0).accepted) == 2
    weights = RewardWeights(1.0, 0.3, 0.0)
    silent = maker_of(plan, reward=quality_only, gives_up=1.0, weights=weights).step(0)
    assert silent.accepted == [] and silent.counts["groups_no_signal"] == 2


def failing(when):
    """A sampler that reads and then answers, or fails where `when(request)` says so."""
    good = TokenExpert(RENDERER, {"toy": TOY}, writes=False)

    class Failing(FakeSampler):
        produces_tokens = False

    def say(request, turn):
        if when(request):
            return Completion(request.session, error="no route")
        return good.speak(request, turn)

    return Failing(RENDERER, say)


def test_a_group_with_a_failed_member_is_dropped_and_its_failure_kept():
    sampler = failing(lambda request: request.session == 1)
    result = maker_of(GroupPlan(2, 0, 3, 0), sampler=sampler, reward=by_place).step(0)
    assert result.counts["groups_invalid"] == 1 and len(result.accepted) == 1
    broken = result.sampled[0].episodes
    assert [e.error is not None for e in broken] == [False, True, False]
    assert broken[1].reward_parts is None and broken[0].reward_parts is not None


def test_a_failed_probe_and_one_without_calls_make_no_group():
    # Sessions 0-3 are the clean members, 4 and 5 the probes of the fault groups.
    sampler = failing(lambda request: request.session == 4)
    result = maker_of(GroupPlan(2, 2, 2, 0), sampler=sampler, reward=by_place).step(0)
    assert result.counts["invalid_probes"] == 1 and len(of_condition(result, "fault")) == 1
    silent = maker_of(GroupPlan(0, 2, 2, 0), gives_up=1.0).step(0)
    assert silent.counts["probes_without_opportunity"] == 2 and silent.sampled == []


def test_a_step_in_which_nothing_completed_is_an_error():
    with pytest.raises(TrainingError, match=r"GRPO step 3: none of 2 groups completed an episode.*no route"):
        maker_of(GroupPlan(1, 1, 3, 0), sampler=failing(lambda request: True)).step(3)


def test_the_same_seed_gives_the_same_groups():
    one, two, other = maker_of(), maker_of(), maker_of(seed=2)
    for step in range(3):
        first, second, third = (maker.step(step) for maker in (one, two, other))
        assert first.sampled == second.sampled and first.accepted == second.accepted
        assert first.counts == second.counts
        assert first.sampled != third.sampled


def test_groups_do_not_depend_on_how_many_episodes_are_in_flight():
    one, two = maker_of(), maker_of()
    two.collector.max_in_flight = 1
    assert one.step(0).sampled == two.step(0).sampled


def test_a_restored_maker_goes_on_with_the_same_cases_and_faults():
    whole = maker_of()
    expected = [whole.step(step) for step in range(4)]
    first = maker_of()
    first.step(0)
    first.step(1)
    state = json.loads(json.dumps(first.state_dict()))
    second = maker_of()
    second.load_state_dict(state)
    for step in (2, 3):
        again = second.step(step)
        assert again.sampled == expected[step].sampled and again.counts == expected[step].counts
    assert second.state_dict() == whole.state_dict()
    fresh = maker_of().step(2)
    assert fresh.sampled != expected[2].sampled, "without its state it would repeat itself"


def test_each_pass_over_the_tasks_is_a_permutation_of_its_own():
    maker = maker_of(GroupPlan(3, 0, 2, 0), gives_up=1.0)
    cases = [group.case_id for step in range(8) for group in maker.step(step).sampled]
    wanted = sorted(task.case_id for task in TASKS)
    assert len(TASKS) == 12 and sorted(cases[:12]) == sorted(cases[12:]) == wanted
    assert cases[:12] != cases[12:]
    faulty = maker_of(GroupPlan(0, 3, 2, 0), gives_up=0.0)
    drawn = [group.case_id for step in range(4) for group in faulty.step(step).sampled]
    assert drawn != cases[: len(drawn)], "clean and fault groups go through the tasks in different orders"


def test_progress_is_told_of_every_episode():
    ended = []
    maker = maker_of(GroupPlan(2, 1, 3, 0), reward=by_place, gives_up=0.0)
    maker.step(0, ended.append)
    assert len(ended) == 2 * 3 + 1 + 3, "clean members, the probe, its continuations"


def shared_maker(rank: int, size: int, meet, plan=PLAN, **options) -> GroupMaker:
    """One of several makers, in threads of their own, that exchange what they sampled."""
    maker = maker_of(plan, **options)
    maker.rank, maker.size, maker.gather = rank, size, lambda own: meet(rank, own)
    return maker


class Meeting:
    """All-gather between threads."""

    def __init__(self, size: int) -> None:
        self.barrier, self.parts = Barrier(size), [None] * size

    def __call__(self, rank, own):
        self.parts[rank] = own
        self.barrier.wait(30)
        parts = list(self.parts)
        self.barrier.wait(30)
        return parts


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_share_the_slots_and_end_with_the_same_groups(size):
    plan = GroupPlan(3, 4, 2, 1, zero_signal_wait=1)
    meeting = Meeting(size)
    makers = [shared_maker(rank, size, meeting, plan, gives_up=0.2) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(lambda maker: [maker.step(step) for step in range(3)], makers))
    for other, maker in zip(results[1:], makers[1:], strict=True):
        assert other == results[0]
        assert maker.state_dict() == makers[0].state_dict()
    alone = maker_of(plan, gives_up=0.2, writes=True)
    single = [alone.step(step) for step in range(3)]
    # Which fault strikes depends on what this process has injected; clean groups are the same.
    assert of_condition(results[0][0], "clean")[:3] == of_condition(single[0], "clean")[:3]
    sampled = sum(len(maker.collector.sampler.requests) for maker in makers)
    assert sampled > max(len(maker.collector.sampler.requests) for maker in makers), "the work is shared"
