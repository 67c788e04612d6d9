"""The state machine over all its branches, with planted verdicts."""

from __future__ import annotations

import pytest

from robustops.errors import ConfigError
from robustops.monitor.intervention.actions import Change
from robustops.monitor.intervention.journal import Entry
from robustops.monitor.intervention.planners import (
    NoopPlanner,
    OraclePlanner,
    Plan,
    RandomPlanner,
    RollbackPlanner,
    RulePlanner,
)
from robustops.monitor.intervention.policy import Jump, label_of
from robustops.monitor.verdict import UNKNOWN, Verdict
from tests.monitor.intervention.cases import (
    HEALTHY,
    SETTINGS,
    STEPS,
    Scripted,
    anomalous,
    journal,
    machine,
    panel,
)

EVERY_SECOND = [2, 4, 6, 8, 10, 12]


def at(deciding, step, success=0.5, checkpoints=EVERY_SECOND):
    return deciding.after_step(panel(step, success), lambda: [c for c in checkpoints if c <= step])


def kinds(deciding):
    return [entry.kind for entry in deciding.journal.entries()]


def test_a_healthy_run_is_left_alone():
    deciding = machine(Scripted())
    assert [at(deciding, step) for step in range(1, STEPS + 1)] == [None] * STEPS
    assert len(deciding.journal) == 0


def test_an_alarm_goes_back_to_the_newest_checkpoint_before_the_onset_with_a_change():
    said = []
    deciding = machine(Scripted(s8=anomalous(onset=7)), said=said)
    assert at(deciding, 7) is None
    assert at(deciding, 8) == Jump(6, False, 1)
    (entry,) = deciding.journal.entries()
    assert (entry.kind, entry.attempt, entry.label, entry.target) == ("rollback", 1, "kl_explosion", 6)
    assert entry.changes == {"grpo.whole_updates": True}
    assert entry.detail["diff"] == ["grpo.whole_updates: false -> true"]
    assert entry.verdict["evidence"][0]["column"] == "update_norm_rel"
    assert not entry.applied and deciding.pinned == 6
    assert entry.until == 12, "six steps, the first of them the one at which it went wrong before"
    assert "back to step 6, attempt 1 of 3" in said[0] and "false -> true" in said[0]


def test_a_trial_lasts_at_least_to_the_step_of_the_alarm_and_not_beyond_the_stage():
    deciding = machine(Scripted(s20=anomalous(onset=5)))
    at(deciding, 20)
    assert deciding.journal.state().trial.until == 20
    late = machine(Scripted(s39=anomalous(onset=39)))
    at(late, 39, checkpoints=[36])
    assert late.journal.state().trial.until == STEPS


def test_a_checkpoint_must_have_been_healthy_for_some_steps():
    doubtful = Verdict("healthy", p_value=0.1)  # not anomalous, but no longer usual
    deciding = machine(Scripted(s8=anomalous(onset=7), s5=doubtful))
    assert at(deciding, 8).target == 4
    deciding = machine(Scripted(s8=anomalous(onset=7), s3=doubtful))
    assert at(deciding, 8).target == 6, "step 3 is none of the three before the checkpoint of 6"
    deciding = machine(Scripted(s8=anomalous(onset=7), s1=doubtful, s3=doubtful, s5=doubtful))
    assert at(deciding, 8).target == 0, "none is: the stage begins anew"
    assert at(machine(Scripted(s8=anomalous(onset=2))), 8).target == 0


def test_only_what_the_bound_calls_an_alarm_is_one():
    quiet = machine(Scripted(s8=anomalous(p_value=0.06)))
    assert at(quiet, 8) is None and len(quiet.journal) == 0
    assert at(machine(Scripted(s8=anomalous(p_value=0.05))), 8) is not None
    assert at(machine(Scripted(s8=Verdict("not_observed"))), 8) is None


def test_a_canary_that_is_healthy_is_kept_and_then_alarms_are_passed_over():
    deciding = machine(Scripted(s8=anomalous(onset=7), s13=anomalous(), s18=anomalous()), canary=5)
    at(deciding, 8)
    deciding.judge.verdicts.pop(8)
    assert [at(deciding, step) for step in range(7, 12)] == [None] * 5
    assert kinds(deciding) == ["rollback", "accept"]
    state = deciding.journal.state()
    assert state.accepted == {"grpo.whole_updates": True} == state.changes
    assert state.trial is None and deciding.pinned is None
    assert at(deciding, 13) is None and kinds(deciding) == ["rollback", "accept"], "step 13 is still quiet"
    at(deciding, 18)
    assert kinds(deciding)[-1] == "rollback"


def test_a_canary_is_judged_at_its_end_only():
    deciding = machine(Scripted(s8=anomalous(onset=7), s9=anomalous()))
    at(deciding, 8)
    asked = len(deciding.judge.calls)
    at(deciding, 9)
    assert len(deciding.judge.calls) == asked
    at(deciding, 12)
    assert kinds(deciding) == ["rollback", "accept"]


def test_a_canary_that_is_anomalous_is_taken_back_for_the_next_candidate():
    deciding = machine(Scripted(s8=anomalous(onset=7), s12=anomalous("reward_spike")))
    at(deciding, 8)
    assert at(deciding, 12) == Jump(6, False, 3)
    assert kinds(deciding) == ["rollback", "revert", "rollback"]
    _, revert, second = deciding.journal.entries()
    assert revert.reason == "still reward_spike"
    assert (second.attempt, second.label, second.target) == (2, "kl_explosion", 6)
    assert second.changes == {"grpo.kl": 0.0}, "from the settings before"
    assert deciding.journal.state().changes == second.changes


@pytest.mark.parametrize(("after", "kept"), [(0.5, True), (0.38, True), (0.3, False)])
def test_a_canary_must_keep_success(after, kept):
    """Before the onset: .3 .5 .7 .5 .5 .5, mean .5, deviation .126; at least .374 is asked for."""
    deciding = machine(Scripted(s8=anomalous(onset=7)))
    before = [0.3, 0.5, 0.7, 0.5, 0.5, 0.5]
    at(deciding, 8, [*before, 0.0, 0.0])
    at(deciding, 12, [*before, *[after] * 6])
    assert kinds(deciding)[1] == ("accept" if kept else "revert")
    assert "came before the onset" in deciding.journal.entries()[1].reason


def test_success_is_compared_from_the_onset_on_and_only_where_it_is_known():
    deciding = machine(Scripted(s8=anomalous(onset=7)))
    at(deciding, 8, checkpoints=[2])  # target 2: steps 3 .. 6 are healthy ones, done again
    at(deciding, 12, [0.5] * 6 + [0.1] * 6, checkpoints=[2])
    assert kinds(deciding)[1] == "revert"
    early = machine(Scripted(s3=anomalous(onset=3)))
    at(early, 3)
    at(early, 8, [0.5, 0.5, *[0.0] * 6])
    assert kinds(early)[1] == "accept", "two steps before the onset tell nothing"


def test_three_attempts_then_pause_where_it_was_healthy():
    verdicts = {f"s{step}": anomalous(onset=7) for step in (8, 12)}
    deciding = machine(Scripted(**verdicts))
    jumps = [at(deciding, 8), at(deciding, 12), at(deciding, 12), at(deciding, 12)]
    assert jumps == [Jump(6, False, 1), Jump(6, False, 3), Jump(6, False, 5), Jump(6, True, 7)]
    assert kinds(deciding) == ["rollback", *["revert", "rollback"] * 2, "revert", "pause"]
    state = deciding.journal.state()
    assert state.changes == {} and state.paused.reason == "3 attempts at kl_explosion did not help"


def test_attempts_at_a_diagnosis_go_on_after_one_was_kept():
    """It comes back: the remedy was kept too early, and the next one is tried."""
    deciding = machine(Scripted(s8=anomalous(onset=7), s20=anomalous(onset=19)))
    at(deciding, 8), at(deciding, 12)
    deciding.judge.verdicts.pop(8)
    at(deciding, 20, checkpoints=[16, 18])
    last = deciding.journal.entries()[-1]
    assert (last.attempt, last.target) == (2, 18)
    assert last.changes == {"grpo.kl": 0.0}
    assert deciding.journal.state().changes == {"grpo.whole_updates": True, "grpo.kl": 0.0}, (
        "what was kept stays"
    )


def test_another_diagnosis_has_attempts_of_its_own():
    deciding = machine(Scripted(s8=anomalous(onset=7), s20=anomalous("reward_spike", onset=19)))
    at(deciding, 8), at(deciding, 12), at(deciding, 20)
    last = deciding.journal.entries()[-1]
    assert (last.attempt, last.label) == (1, "reward_spike")
    assert set(deciding.journal.state().changes) == {
        "grpo.whole_updates",
        "reward.bounded",
        "reward.recheck",
    }


def test_nothing_left_to_try_is_a_reason_to_pause():
    settings = {**SETTINGS, "domain.check_replies": True, "domain.tool_retries": 5}
    deciding = machine(Scripted(s8=anomalous("observation_corruption", labels={})), settings=settings)
    jump = at(deciding, 8)
    assert jump == Jump(None, True, 1), "nothing was tried: it stays where it is"
    assert "nothing is left to try at observation_corruption" in deciding.journal.entries()[0].reason


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict("anomalous", 7, UNKNOWN, UNKNOWN),
        Verdict("anomalous", 7),
    ],
    ids=["unknown", "no type"],
)
def test_the_unknown_is_answered_by_a_pause_and_nothing_else(verdict):
    deciding = machine(Scripted(s8=verdict))
    assert at(deciding, 8) == Jump(None, True, 1)
    assert kinds(deciding) == ["pause"] and deciding.journal.state().changes == {}


def test_the_likeliest_of_a_label_set_is_acted_on_first():
    assert label_of(anomalous(labels={"kl_explosion": 0.5, "termination_error": 0.4})) == "kl_explosion"
    assert label_of(anomalous(labels={})) == "kl_explosion"
    assert label_of(Verdict("anomalous", 7, UNKNOWN, UNKNOWN)) is None


def test_the_budget_of_steps_done_again_is_kept():
    deciding = machine(Scripted(s8=anomalous(onset=7), s12=anomalous(onset=7)), budget=7)
    assert at(deciding, 8).target == 6
    assert at(deciding, 12) == Jump(6, True, 3), "2 steps were done again, 6 more are too many"
    assert "beyond the budget of 7" in deciding.journal.entries()[-1].reason
    for budget in (0, 1):
        at_once = machine(Scripted(s8=anomalous(onset=7)), budget=budget)
        assert at(at_once, 8) == Jump(None, True, 1)


def test_the_noop_arm_journals_alarms_and_never_stops_anything():
    deciding = machine(Scripted(**{f"s{step}": anomalous() for step in range(8, 41)}), NoopPlanner())
    assert [at(deciding, step) for step in range(1, STEPS + 1)] == [None] * STEPS
    assert set(kinds(deciding)) == {"none"}
    assert [entry.step for entry in deciding.journal.entries()] == [8, 15, 22, 29, 36], "with a cool-down"


def test_the_noop_arm_passes_over_what_nobody_knows_too():
    deciding = machine(Scripted(s8=Verdict("anomalous", 7)), NoopPlanner())
    assert at(deciding, 8) is None and kinds(deciding) == ["none"]


def test_advice_says_what_would_be_done_and_does_nothing():
    said = []
    deciding = machine(Scripted(s8=anomalous(onset=7), s16=Verdict("anomalous", 15)), said=said, apply=False)
    assert at(deciding, 8) is None and at(deciding, 16) is None
    assert kinds(deciding) == ["none", "none"] and deciding.journal.state().changes == {}
    assert "advice: grpo.whole_updates: false -> true" in said[0]
    assert "advice: pause, no single cause fits" in said[1]


def test_arms_that_need_no_diagnosis_act_on_the_unknown():
    unknown = Scripted(s8=Verdict("anomalous", 7))
    for planner in (OraclePlanner(types=("kl_explosion",)), RandomPlanner(0), RollbackPlanner()):
        assert at(machine(unknown, planner), 8).target == 6
    healthy_run = machine(unknown, OraclePlanner(types=()))
    assert at(healthy_run, 8) is None, "the oracle knows that nothing is wrong"


def test_a_step_that_fails_ends_the_trial_under_way():
    deciding = machine(Scripted(s8=anomalous(onset=7)))
    at(deciding, 8)
    jump = deciding.after_failure(panel(9), lambda: [6], "the loss of step 10 is not finite")
    assert jump == Jump(6, False, 3)
    assert deciding.journal.entries()[1].reason == "the loss of step 10 is not finite"


def test_a_step_that_fails_is_a_reason_to_act_where_the_run_is_anomalous():
    deciding = machine(Scripted(s8=anomalous(onset=7)))
    assert deciding.after_failure(panel(7), lambda: [6], "broken") is None, "the failure stands"
    assert deciding.after_failure(panel(0), list, "broken") is None
    assert deciding.after_failure(panel(8), lambda: [6], "broken").target == 6
    assert machine(Scripted(s8=anomalous()), NoopPlanner()).after_failure(panel(8), list, "broken") is None


def test_a_plan_that_is_not_valid_is_never_carried_out():
    class Wild(RulePlanner):
        def plan(self, situation):
            return Plan((Change("reward.success", 0.0),), "easier", "wild")

    deciding = machine(Scripted(s8=anomalous(onset=7)), Wild())
    with pytest.raises(ConfigError, match=r"reward\.success is never changed"):
        at(deciding, 8)
    assert len(deciding.journal) == 0


@pytest.mark.parametrize(
    ("script", "steps"),
    [
        ({8: anomalous(onset=7), 12: anomalous(onset=7)}, [*range(1, 9), *[*range(7, 13)] * 3]),
        (
            {8: anomalous(onset=7), 24: anomalous("reward_spike", onset=23)},
            [*range(1, 9), *range(7, 25), *range(13, 41)],
        ),
    ],
    ids=["paused", "repaired twice"],
)
def test_decisions_are_a_function_of_the_journal(script, steps):
    """A machine that is made anew before every step decides what one decides that lives on."""

    def run(anew):
        book, jumps = journal(), []
        judge = Scripted(**{f"s{step}": verdict for step, verdict in script.items()})
        deciding = machine(judge, book=book)
        for step in steps:
            if anew:
                deciding = machine(judge, book=book)
            jumps.append(at(deciding, step))
        return jumps, book.entries()

    once = run(anew=False)
    assert once == run(anew=True) and len(once[1]) in (4, 7)


def test_a_person_who_starts_a_paused_run_again_gives_it_new_attempts():
    deciding = machine(
        Scripted(s8=Verdict("anomalous", 7), s9=Verdict("anomalous", 7), s15=anomalous(onset=14))
    )
    at(deciding, 8)
    deciding.journal.add(Entry("resume", 8, until=14))
    assert at(deciding, 9) is None
    assert at(deciding, 15).target == 12


def test_no_verdict_is_needed_of_a_run_that_is_not_observed():
    assert at(machine(lambda seen: HEALTHY), 5) is None
