from __future__ import annotations

import pytest

from robustops.errors import ConfigError, TrainingError
from robustops.faults.manifest import Manifest, build_manifest
from robustops.faults.plan import FaultPlan, fault_choices
from robustops.learning.evaluation import EvaluationPlan, evaluate_policy
from robustops.rewards.parts import reward_parts
from robustops.rollout.collector import Collector
from robustops.rollout.episode import Limits
from robustops.rollout.sampler import Completion
from tests.rollout.fake_sampler import FakeSampler, TokenExpert
from tests.tiny_model import tiny_renderer
from tests.toy_domain import TOY, toy_tasks

RENDERER = tiny_renderer()
DOMAINS = {"toy": TOY}
CASES = toy_tasks(5)


@pytest.fixture(scope="module")
def plan() -> EvaluationPlan:
    manifests = {
        "fault": build_manifest(CASES, DOMAINS, fault_choices("trained"), seed=1),
        "heldout": build_manifest(CASES, DOMAINS, fault_choices("ignored_filter"), seed=2),
    }
    return EvaluationPlan(CASES, manifests, ("clean", "fault", "heldout"), attempts=2, seed=3)


def policy_of(gives_up: float, sampler=None) -> Collector:
    sampler = sampler or TokenExpert(RENDERER, DOMAINS, gives_up)
    return Collector(sampler, RENDERER, DOMAINS, Limits(4000, 200, 12), retries=0)


def key(episode):
    return episode.condition, episode.case_id, episode.index


def test_starts_by_hand():
    one = FaultPlan("lost_receipt")
    manifest = Manifest(("lost_receipt",), 0, ((CASES[0].case_id, one),), (CASES[1].case_id,))
    plan = EvaluationPlan(CASES[:2], {"fault": manifest}, ("clean", "fault"), attempts=2, seed=0)
    clean, fault = plan.starts("clean"), plan.starts("fault")
    ids = [task.case_id for task in CASES[:2]]
    assert [(s.task.case_id, s.index, s.plan) for s in clean] == [
        (ids[0], 0, None),
        (ids[0], 1, None),
        (ids[1], 0, None),
        (ids[1], 1, None),
    ]
    # A case at which no mechanism is eligible is left out of the condition.
    assert [(s.task.case_id, s.index, s.plan) for s in fault] == [(ids[0], 0, one), (ids[0], 1, one)]
    assert {s.condition for s in fault} == {"fault"} and plan.size == 6
    assert len({s.seed for s in [*clean, *fault]}) == 6


def test_an_unknown_condition_and_a_foreign_manifest_are_refused(plan):
    with pytest.raises(ConfigError, match="choose one of: clean, fault, heldout"):
        plan.starts("dirty")
    foreign = EvaluationPlan(toy_tasks(7), plan.manifests, ("fault",), 1, seed=3)
    with pytest.raises(ConfigError, match="not in the fault manifest"):
        foreign.starts("fault")


def test_seeds_depend_on_the_case_not_on_its_neighbours(plan):
    fewer = EvaluationPlan(CASES[3:5], plan.manifests, ("fault",), 1, seed=3)
    all_starts = {(s.task.case_id, s.index): s for s in plan.starts("fault")}
    for start in fewer.starts("fault"):
        assert start == all_starts[start.task.case_id, start.index]
    other = EvaluationPlan(CASES, plan.manifests, ("clean",), 2, seed=4)
    assert {s.seed for s in other.starts("clean")}.isdisjoint(s.seed for s in plan.starts("clean"))


def test_policies_are_paired(plan):
    """Two policies get the same episodes: the same cases, seeds and faults, whatever they do."""
    collectors = [policy_of(0.0), policy_of(0.3)]
    results = [evaluate_policy(collector, plan) for collector in collectors]
    assert [key(e) for e in results[0]] == [key(e) for e in results[1]]
    assert len(results[0]) == plan.size == len({key(e) for e in results[0]})
    # The first request of an episode carries its seed: equal in both.
    seeds = [[r.seed for r in c.sampler.requests if not r.history] for c in collectors]
    assert sorted(seeds[0]) == sorted(set(seeds[1])) and len(seeds[0]) == plan.size
    wanted = {
        (condition, start.task.case_id): start.plan
        for condition in plan.conditions
        for start in plan.starts(condition)
    }
    struck = 0
    for episodes in results:
        for episode in episodes:
            assigned = wanted[episode.condition, episode.case_id]
            for event in episode.faults:
                assert (event.subtype, event.cap) == (assigned.subtype, assigned.repetitions)
                struck += 1
    assert struck > 20


def test_the_expert_solves_all_conditions_and_meets_every_assigned_fault(plan):
    episodes = evaluate_policy(policy_of(0.0), plan)
    assert all(e.success for e in episodes)
    for episode in episodes:
        assert bool(episode.faults) == (episode.condition != "clean")
    families = {event.family for e in episodes if e.condition == "heldout" for event in e.faults}
    assert families == {"ignored_filter"}
    trained = {event.family for e in episodes if e.condition == "fault" for event in e.faults}
    assert "ignored_filter" not in trained and len(trained) > 1


def test_episodes_carry_raw_reward_parts(plan):
    tasks = {task.case_id: task for task in CASES}
    ended = []
    for episode in evaluate_policy(policy_of(0.3), plan, ended.append):
        assert episode.reward_parts == reward_parts(tasks[episode.case_id], episode)
    assert len(ended) == plan.size


def test_an_invalid_episode_is_kept_with_its_error_and_without_reward(plan):
    expert = TokenExpert(RENDERER, DOMAINS)

    class Failing(FakeSampler):
        produces_tokens = False

    def say(request, turn):
        if request.session == 2:
            return Completion(request.session, error="no route")
        return expert.speak(request, turn)

    episodes = evaluate_policy(policy_of(0, Failing(RENDERER, say)), plan)
    assert [n for n, e in enumerate(episodes) if e.error is not None] == [2]
    assert episodes[2].reward_parts is None and not episodes[2].success
    broken = FakeSampler(RENDERER, lambda request, turn: Completion(request.session, error="no route"))
    with pytest.raises(TrainingError, match=r"evaluation: none of \d+ episodes completed"):
        evaluate_policy(policy_of(0, broken), plan)
