"""Runs made by hand: what passes, and each thing that can be wrong with them."""

from __future__ import annotations

import math
import re

import pytest

from robustops.bench.campaign.plan import PlannedRun, fault_overrides
from robustops.bench.campaign.rules import rules_of
from robustops.bench.campaign.verifier import verify
from robustops.bench.run_faults.catalog import all_mechanisms
from robustops.errors import ConfigError

STEPS, ONSET = 6, 3
UNITS = {"reward_mean": 0.05, "tool_error_frac": 0.05, "update_norm_rel": 1e-4, "len_mean": 0.5}


def plan(fault="reward_spike", mechanism="episode_spike", difficulty="easy", **values) -> PlannedRun:
    given = {"strength": 0.5, "probability": 0.5, "unit": None, "ramp": 0, **values}
    overrides = fault_overrides("run_fault", fault, mechanism, given, ONSET, 7)
    return PlannedRun(
        "ab", 0, "fault", fault, mechanism, difficulty=difficulty, overrides=overrides, onset=ONSET
    )


def row(**values: float) -> dict[str, float]:
    return {
        "reward_mean": 0.6,
        "tool_error_frac": 0.0,
        "update_norm_rel": 1e-3,
        "vf_loss": math.nan,
        **values,
    }


def line(step: int, level: float, **values) -> dict:
    facts = {"eligible": 64, "touched": 32, "noted": 32, "differing": 32, "numbers": 32}
    sums = {"sum_before": 20.0, "sum_after": 68.0, "sum_abs": 48.0, "sum_squares": 72.0}
    body = {**facts, **sums} if level else dict.fromkeys((*facts, *sums), 0)
    return {
        "step": step,
        "fault": "reward_spike",
        "mechanism": "episode_spike",
        "level": level,
        **body,
        **values,
    }


def log(level: float = 0.5, **values) -> list[dict]:
    """32 of 64 rewards are raised by 1.5 each: 10 units of progress that weigh 0.3, times the level."""
    return [
        line(n, level if n >= ONSET else 0.0, **(values if n >= ONSET else {})) for n in range(1, STEPS + 1)
    ]


CONTROL = [row() for _ in range(STEPS)]
SPIKED = [row(reward_mean=0.6 if n < ONSET else 1.35) for n in range(1, STEPS + 1)]


def check(planned=None, rows=SPIKED, control=CONTROL, lines=None, **options):
    lines = log() if lines is None else lines
    return verify(planned or plan(), rows, control, lines, UNITS, steps=STEPS, **options)


def test_a_run_that_is_what_was_planned():
    found = check()
    assert found.verified and found.reason == ""
    assert (found.eligible, found.touched, found.share, found.differing) == (256, 128, 0.5, 128)
    assert found.change == pytest.approx(0.75) and found.d == pytest.approx(15.0)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"rows": SPIKED[:-1]}, "length: 5 steps, planned are 6"),
        ({"rows": [*SPIKED[:-1], row(reward_mean=math.inf)]}, "finite: step 6 has reward_mean"),
        ({"rows": [*SPIKED[:-1], row(nan_count=2.0)]}, "finite: step 6 has nan_count"),
        (
            {"rows": [row(reward_mean=0.61), *SPIKED[1:]]},
            "control: step 1, before onset 3, differs in reward_mean",
        ),
        ({"lines": log()[:-1]}, "exposure: 5 lines, not one for each of 6 steps"),
        ({"lines": log(0.4)}, "exposure: step 3 has level 0.4, planned is 0.5"),
        ({"lines": [line(1, 0.0, eligible=1), *log()[1:]]}, "step 1 lies outside the window and was exposed"),
        ({"lines": log(touched=10)}, r"40 of 256 units were touched, planned are 0.5 \+- 0.094"),
        ({"lines": log(eligible=0, touched=0)}, "exposure: nothing was eligible"),
        ({"lines": log(fault="reward_collapse")}, "step 3 is of reward_collapse/episode_spike"),
        ({"lines": log(differing=0)}, "dose: no value differs"),
        ({"lines": log(sum_after=40.0)}, "values rose by 80 in all, promised is more than 96"),
        ({"rows": CONTROL}, "effect: d is 0, not above 2"),
        ({"second": log()}, "there is a second log, but no second fault"),
    ],
)
def test_each_thing_that_can_be_wrong(changed, reason):
    found = check(**changed)
    assert not found.verified
    assert re.search(reason, found.reason)


def test_the_share_that_is_touched_may_be_three_standard_errors_off():
    """Of 256 with probability 0.5: 3 sqrt(0.25 / 256) = 0.09375, which is 24 units."""
    for touched, passes in ((38, True), (39, False), (26, True), (25, False)):
        assert check(lines=log(touched=touched)).verified == passes, touched
    sure = plan(probability=1.0)
    assert not check(sure, lines=log(touched=63)).verified, "what is certain has no error"
    assert check(sure, lines=log(touched=64)).verified


def test_a_hard_fault_need_only_move_its_quantity_the_declared_way():
    rows = [row(reward_mean=0.6 if n < ONSET else 0.62) for n in range(1, STEPS + 1)]
    assert not check(rows=rows).verified and check(plan(difficulty="hard"), rows=rows).verified
    down = [row(reward_mean=0.6 if n < ONSET else 0.58) for n in range(1, STEPS + 1)]
    assert not check(plan(difficulty="hard"), rows=down).verified
    unseen = [row(reward_mean=0.6 if n < ONSET else math.nan) for n in range(1, STEPS + 1)]
    assert not check(plan(difficulty="hard"), rows=unseen).verified


def test_a_ramp_has_the_level_of_each_step():
    levels = [0, 0, 0.1, 0.2, 0.3, 0.4]
    ramp = plan(ramp=5, difficulty="hard")
    lines = [line(n, level) for n, level in enumerate(levels, start=1)]
    assert check(ramp, lines=lines).verified
    assert "has level 0.5, planned is 0.1" in check(ramp).reason


def test_what_the_log_tells_stands_in_the_telemetry():
    planned = plan("tool_call_error", "tool_outage", probability=0.5)
    names = {"fault": "tool_call_error", "mechanism": "tool_outage", "numbers": 0}
    lines = [line(n, 0.5 if n >= ONSET else 0.0, **names) for n in range(1, STEPS + 1)]
    rows = [row(tool_error_frac=0.0 if n < ONSET else 0.47) for n in range(1, STEPS + 1)]
    assert check(planned, rows=rows, lines=lines).verified
    few = [row(tool_error_frac=0.0 if n < ONSET else 0.3) for n in range(1, STEPS + 1)]
    assert "tool_error_frac rose by 0.3, the log tells 0.5" in check(planned, rows=few, lines=lines).reason
    frozen = plan("update_freeze", "skipped_updates", strength=1.0, probability=1.0)
    names = {"fault": "update_freeze", "mechanism": "skipped_updates"}
    own = {"eligible": 1, "touched": 1, "noted": 2, "differing": 2, "numbers": 0}
    lines = [
        line(n, 1.0, **names, **own) if n >= ONSET else line(n, 0.0, **names) for n in range(1, STEPS + 1)
    ]
    still = [row(update_norm_rel=1e-3 if n < ONSET else 0.0) for n in range(1, STEPS + 1)]
    assert check(frozen, rows=still, lines=lines).verified
    moved = [*still[:-1], row(update_norm_rel=1e-4)]
    assert (
        "update_norm_rel is 0.0001 in struck step 6, not 0" in check(frozen, rows=moved, lines=lines).reason
    )


def test_healthy_and_benign_runs():
    healthy = PlannedRun("cd", 1, "healthy")
    assert check(healthy, CONTROL, [], []).verified
    assert check(healthy, CONTROL, [], log()).reason == "exposure: a run without a fault was exposed"
    assert not check(healthy, CONTROL[:-1], [], []).verified
    benign = PlannedRun("ef", 1, "benign", shift="lr_decay", onset=4)
    later = [*CONTROL[:3], *(row(reward_mean=0.7) for _ in range(3))]
    assert check(benign, later, CONTROL, []).verified
    assert "before onset 4" in check(benign, [row(reward_mean=0.7), *later[1:]], CONTROL, []).reason
    found = check(healthy, CONTROL, [], [])
    assert found.eligible == 0 and math.isnan(found.d)


def test_two_faults_are_both_looked_at():
    first = plan()
    values = {"strength": 1.0, "probability": 1.0, "unit": None, "ramp": 0}
    more = fault_overrides("second_run_fault", "update_freeze", "skipped_updates", values, ONSET, 8)
    both = PlannedRun(
        *("gh", 0, "double", "reward_spike", "episode_spike", "update_freeze", "skipped_updates"),
        overrides=(*first.overrides, *more),
        onset=ONSET,
    )
    rows = [row() if n < ONSET else row(reward_mean=1.35, update_norm_rel=0.0) for n in range(1, STEPS + 1)]
    names = {"fault": "update_freeze", "mechanism": "skipped_updates"}
    own = {"eligible": 1, "touched": 1, "noted": 2, "differing": 2, "numbers": 0}
    second = [
        line(n, 1.0, **names, **own) if n >= ONSET else line(n, 0.0, **names) for n in range(1, STEPS + 1)
    ]
    assert check(both, rows, second=second).verified
    assert "skipped_updates exposure: 0 lines" in check(both, rows).reason


def test_requests_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="verify it beside the control"):
        check(control=[])
    with pytest.raises(ConfigError, match="no healthy deviation of 'reward_mean'"):
        verify(plan(), SPIKED, CONTROL, log(), {}, steps=STEPS)
    with pytest.raises(ConfigError, match="its overrides inject no such fault"):
        check(PlannedRun("ij", 0, "fault", "reward_spike", "episode_spike", onset=3))


def test_every_mechanism_has_rules():
    for _, info in all_mechanisms():
        assert len(rules_of(info)) >= 2, info.name
