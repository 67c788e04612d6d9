"""Runs that go back in time: detect, roll back, turn a knob, canary, go on; in one run folder."""

from __future__ import annotations

import json
import random

import pytest

from robustops.bench.run_faults.exposure import NAME as EXPOSURE
from robustops.bench.run_faults.exposure import read_exposure
from robustops.errors import RunPaused, TrainingError
from robustops.learning import remediation
from robustops.learning.checkpoints import Checkpoints, StageCheckpoint
from robustops.learning.hooks import TrainingHooks
from robustops.learning.pipeline import run_training
from robustops.learning.remediation import with_changes
from robustops.monitor.intervention.journal import Journal
from robustops.monitor.telemetry import read_telemetry
from robustops.monitor.verdict import Verdict
from robustops.settings import RunFaultSettings, TrainSettings
from tests.learning import kills
from tests.learning.remediated_run import ONSET, STEPS, entries, judge, settings_of, start, train
from tests.learning.run_folders import rows_of, telemetry
from tests.learning.small_run import CONFIG

pytestmark = pytest.mark.slow

KNOBS = {"grpo.whole_updates": True}


@pytest.fixture(scope="module")
def repaired(base_model, tmp_path_factory):
    """The folder of a run that was repaired, and its summary."""
    folder = tmp_path_factory.mktemp("repaired")
    return folder, train(settings_of(base_model), folder)


@pytest.fixture(scope="module")
def faulty(base_model, tmp_path_factory):
    """The folder of the same run with nobody stepping in."""
    folder = tmp_path_factory.mktemp("faulty")
    train(settings_of(base_model, {"name": "observe"}), folder)
    return folder


def assert_same(folder, other):
    """Telemetry, steps, episodes and weights, to the bit."""
    assert telemetry(folder) == telemetry(other)
    mine, theirs = rows_of(folder), rows_of(other)
    assert mine["steps"] == theirs["steps"]
    assert [json.dumps(row, default=str) for row in mine["episodes"]] == [
        json.dumps(row, default=str) for row in theirs["episodes"]
    ]
    weights = [f / "checkpoints" / "grpo" / "policy" / "model.safetensors" for f in (folder, other)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def kinds(folder):
    return [entry.kind for entry in entries(folder)]


def test_a_run_goes_back_turns_a_knob_and_finishes(repaired, faulty):
    folder, summary = repaired
    rollback, accept = entries(folder)
    assert (rollback.kind, rollback.step, rollback.target, rollback.label) == (
        "rollback",
        ONSET,
        ONSET - 1,
        "kl_explosion",
    )
    assert rollback.changes == KNOBS and rollback.applied
    assert (accept.kind, accept.step) == ("accept", ONSET - 1 + 3)
    records = read_telemetry(folder / "telemetry.jsonl")
    assert [record.step for record in records] == list(range(1, STEPS + 1)), "each step once"
    mine, theirs = telemetry(folder).splitlines(), telemetry(faulty).splitlines()
    assert mine[: ONSET - 1] == theirs[: ONSET - 1] and mine[ONSET - 1] != theirs[ONSET - 1]
    assert [record.metrics["lr"] for record in records] == [1e-3] * 9
    assert records[-1].metrics["update_norm_rel"] < 2 * records[0].metrics["update_norm_rel"]
    (taken_back,) = (folder / "discarded").iterdir()
    assert taken_back.read_bytes() == theirs[ONSET - 1] + b"\n"
    health = summary["health"]
    assert (health["state"], health["in_force"], health["repeated_steps"]) == ("repaired", KNOBS, 1)
    assert [one["kind"] for one in health["interventions"]] == ["rollback", "accept"]
    assert health["interventions"][0]["evidence"] == ["large updates"]
    assert json.loads((folder / "summary.json").read_text())["health"] == health


def test_the_failure_goes_on_and_only_the_knob_stands_against_it(repaired):
    """The injector is not told: it strikes every step from its onset, also after the repair."""
    lines = read_exposure(repaired[0] / EXPOSURE)
    assert [(line["step"], line["touched"] > 0) for line in lines] == [
        (step, step >= ONSET) for step in range(1, STEPS + 1)
    ]


def test_the_injector_obeys_the_knob_and_not_the_label(base_model, tmp_path):
    """The right diagnosis with knobs that have nothing to do with it: all attempts fail, the run pauses."""

    def elsewhere(panel):
        verdict = judge(panel)
        facts = {"type": "reward_spike", "family": "reward", "labels": {"reward_spike": 1.0}}
        return Verdict(**{**vars(verdict), **facts}) if verdict.verdict == "anomalous" else verdict

    with pytest.raises(RunPaused, match="3 attempts at reward_spike did not help"):
        train(settings_of(base_model), tmp_path, elsewhere)
    assert kinds(tmp_path) == [*["rollback", "revert"] * 3, "pause"]
    assert len(telemetry(tmp_path).splitlines()) >= ONSET - 1


def test_the_noop_arm_is_the_run_that_was_only_observed(base_model, faulty, tmp_path):
    train(settings_of(base_model, {"planner": "noop"}), tmp_path)
    assert_same(tmp_path, faulty)
    assert set(kinds(tmp_path)) == {"none"}


def test_advice_changes_nothing_either(base_model, faulty, tmp_path, capsys):
    train(settings_of(base_model, {"apply": False}), tmp_path)
    assert_same(tmp_path, faulty)
    assert "advice: grpo.whole_updates: false -> true" in capsys.readouterr().err


def test_a_healthy_run_is_left_alone(base_model, tmp_path):
    healthy = {"run_fault": RunFaultSettings()}
    train(settings_of(base_model, {"name": "observe"}, **healthy), tmp_path / "observed")
    for name, judged in (("planted", judge), ("own", None)):
        summary = train(settings_of(base_model, **healthy), tmp_path / name, judged)
        assert_same(tmp_path / name, tmp_path / "observed")
        assert summary["health"]["state"] == "untouched" and not kinds(tmp_path / name)


@pytest.mark.parametrize("onset", [1, 5], ids=["to the beginning", "to a checkpoint"])
def test_going_back_and_changing_nothing_gives_the_same_run_again(base_model, tmp_path, onset):
    """The null arm shows that time travel is exact, for hooks with a memory of earlier steps, too."""

    alarms = [Verdict("anomalous", onset)]

    def planted(panel):
        return alarms.pop() if panel.steps[-1] == 7 and alarms else Verdict("healthy")

    fault = {"run_fault": RunFaultSettings("delayed_credit", "lagged_advantages", onset=2)}
    train(settings_of(base_model, {"name": "observe"}, **fault), tmp_path / "observed")
    bounds = {"planner": "rollback", "checkpoint_every": 2, "attempts": 1, "ring": 2}
    arm = settings_of(base_model, bounds, grpo={"checkpoint_every": 3}, **fault)
    train(arm, tmp_path / "again", planted)
    assert_same(tmp_path / "again", tmp_path / "observed")
    rollback = entries(tmp_path / "again")[0]
    assert (rollback.kind, rollback.target) == ("rollback", 4 if onset == 5 else 0)
    exposures = [(tmp_path / name / EXPOSURE).read_bytes() for name in ("again", "observed")]
    assert exposures[0] == exposures[1]


def test_the_unknown_is_paused_where_it_is_and_goes_on_by_a_persons_word(base_model, faulty, tmp_path):
    def unknown(panel):
        return Verdict("anomalous", ONSET) if panel.steps[-1] == 5 else Verdict("healthy")

    settings = settings_of(base_model, grpo={"checkpoint_every": 4})
    with pytest.raises(RunPaused, match=r"paused at step 5.*resume=.* monitor=observe"):
        train(settings, tmp_path, unknown)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["health"]["state"] == "paused" and summary["evaluations"] == {}
    newest = Checkpoints(tmp_path / "checkpoints" / "grpo").points()[-1]
    assert newest.batches == 5, "saved where it stopped"
    observed = settings_of(base_model, {"name": "observe"}, grpo={"checkpoint_every": 4})
    train(observed, tmp_path, unknown)
    assert_same(tmp_path, faulty)


def test_a_paused_run_that_is_started_again_is_watched_again(base_model, faulty, tmp_path):
    def unknown(panel):
        return Verdict("anomalous", ONSET) if panel.steps[-1] in (5, 6) else Verdict("healthy")

    with pytest.raises(RunPaused):
        train(settings_of(base_model), tmp_path, unknown)
    train(settings_of(base_model), tmp_path, unknown)
    assert kinds(tmp_path) == ["pause", "resume"], "step 6 is in the cool-down"
    assert_same(tmp_path, faulty)


class Breaks(TrainingHooks):
    """Updates of a large rate fail from a step on, as one does whose gradient is not finite."""

    def on_update(self, step, optimizer):
        if step >= 5 and optimizer.param_groups[0]["lr"] > 5e-4:
            raise TrainingError(f"the gradient of step {step} is not finite")
        return True


def test_a_step_that_cannot_be_completed_is_gone_back_from(base_model, tmp_path):
    def drifting(panel):
        late = panel.steps[-1] == 4 and panel["lr"][-1] > 5e-4
        return (
            Verdict("anomalous", 4, "optimisation", "kl_explosion", p_value=0.01)
            if late
            else Verdict("healthy")
        )

    calls = []

    def slow(panel):
        """Sees it only when the next step has failed."""
        calls.append(int(panel.steps[-1]))
        return drifting(panel) if calls.count(4) > 1 else Verdict("healthy")

    settings = settings_of(base_model, run_fault=RunFaultSettings())
    run_training(settings, tmp_path, CONFIG, hooks=Breaks(), judge=slow)
    assert kinds(tmp_path) == [*["rollback", "revert"] * 2, "rollback", "accept"], (
        "the third one lowers the rate"
    )
    assert len(telemetry(tmp_path).splitlines()) == STEPS
    with pytest.raises(TrainingError, match="step 5 is not finite"):
        run_training(settings, tmp_path / "b", CONFIG, hooks=Breaks(), judge=lambda panel: Verdict("healthy"))


# killed at any moment --------------------------------------------------------------------------------
POINTS = {
    "decided, not yet stopped": (StageCheckpoint, "on_train_batch_end", ONSET),
    "stopped, nothing done": (remediation, "_go", 1),
    "steps kept, checkpoints not discarded": (Checkpoints, "discard_after", 1),
    "discarded, not marked": (Journal, "mark_applied", 1),
    "marked, not begun again": (remediation, "with_changes", 2),
    "on trial, before its first checkpoint": (StageCheckpoint, "save", ONSET),
    "kept, before the checkpoint knows": (StageCheckpoint, "save", 2 * ONSET - 2),
    "kept, and the checkpoint knows": (StageCheckpoint, "save", 2 * ONSET - 1),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_is_killed_goes_on_as_if_it_had_not_been(
    base_model, repaired, tmp_path, monkeypatch, point
):
    owner, name, call = POINTS[point]
    original, count = getattr(owner, name), 0

    def stopped(*args, **kwargs):
        nonlocal count
        count += 1
        if count == call:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, stopped)
        with pytest.raises(KeyboardInterrupt):
            train(settings_of(base_model), tmp_path)
    assert not (tmp_path / "summary.json").exists()
    summary = train(settings_of(base_model), tmp_path)
    assert_same(tmp_path, repaired[0])
    assert summary["health"] == repaired[1]["health"]
    assert entries(tmp_path) == entries(repaired[0])
    files = [
        sorted(path.read_bytes() for path in (f / "discarded").iterdir()) for f in (tmp_path, repaired[0])
    ]
    assert files[0] == files[1]


def test_kill_9_at_random_moments_gives_the_run_that_was_not_killed(base_model, repaired, tmp_path):
    rng = random.Random(7)
    killed = [kills.kill_after(start(base_model, tmp_path), rng.uniform(1.0, 4.0)) for _ in range(3)]
    assert any(killed)
    train(settings_of(base_model), tmp_path)
    assert_same(tmp_path, repaired[0])
    assert entries(tmp_path) == entries(repaired[0])


def test_a_kept_change_stays_whatever_the_monitor_is_later(base_model, repaired, tmp_path, monkeypatch):
    """Killed after it was kept, and gone on with under observation only."""
    original, count = StageCheckpoint.save, 0

    def stopped(*args):
        nonlocal count
        count += 1
        if count == STEPS:
            raise KeyboardInterrupt
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(StageCheckpoint, "save", stopped)
        with pytest.raises(KeyboardInterrupt):
            train(settings_of(base_model), tmp_path)
    assert kinds(tmp_path) == ["rollback", "accept"]
    train(settings_of(base_model, {"name": "observe"}), tmp_path)
    assert_same(tmp_path, repaired[0])


def test_the_ring_holds_its_number_and_what_is_on_trial(base_model, tmp_path):
    seen = []

    def planted(panel):
        seen.append([p.batches for p in Checkpoints(tmp_path / "checkpoints" / "grpo").points()])
        return Verdict("anomalous", 3) if panel.steps[-1] == 8 else Verdict("healthy")

    monitor = {"ring": 3, "planner": "rollback", "attempts": 1, "canary": 6}
    settings = settings_of(base_model, monitor, run_fault=RunFaultSettings())
    with pytest.raises(RunPaused):
        train(settings, tmp_path, planted)
    assert all(len(points) <= 3 for points in seen[:8])
    rollback = entries(tmp_path)[0]
    assert rollback.target == 0, "none of 5 .. 7 lies before the onset"


def test_a_branch_of_a_repaired_run_goes_on_with_its_changes_unless_it_sets_them(base_model, tmp_path):
    keep = {"keep_checkpoints": "all"}
    train(settings_of(base_model, grpo=keep), tmp_path / "parent")

    def branch(name, step, **grpo):
        settings = settings_of(base_model, grpo={**keep, **grpo})
        settings.branch, settings.branch_step = str(tmp_path / "parent"), step
        train(settings, tmp_path / name)
        return read_telemetry(tmp_path / name / "telemetry.jsonl")

    branch("same", 8)
    assert_same(tmp_path / "same", tmp_path / "parent")
    other = branch("other", 8, learning_rate=2e-3)
    assert (other[-2].metrics["lr"], other[-1].metrics["lr"]) == (1e-3, 2e-3)
    branch("before", 3)
    assert_same(tmp_path / "before", tmp_path / "parent"), "it decides the same again"


def test_changes_are_laid_over_settings():
    changed = with_changes(TrainSettings(), {"grpo.credit.bad_cap": None, "sampler.temperature": 0.7})
    assert (changed.grpo.credit.bad_cap, changed.sampler.temperature) == (None, 0.7)
    assert TrainSettings().grpo.credit.bad_cap == -0.5
