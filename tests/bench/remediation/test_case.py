"""Cases of a real small campaign: what is trained, what is taken over, what is kept, and that it is exact."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from robustops.bench.campaign.campaign import run_campaign
from robustops.bench.campaign.folders import complete, folder_of
from robustops.bench.campaign.recorded import read_run
from robustops.bench.campaign.worker import run_one
from robustops.bench.evaluation.runs import Label
from robustops.bench.remediation import case as cases
from robustops.bench.remediation.case import CaseMaker, parts_of, planned_case, read_journal
from robustops.bench.remediation.outcome import outcome
from robustops.commands.composition import composed_training
from robustops.errors import TrainingError
from tests.bench.campaign.small_campaign import STEPS, campaign, small_plan
from tests.bench.remediation.hand import blind, judge, puzzled, severity

MENDED = {"reward.recheck": True, "reward.bounded": True}
BOUNDS = ("monitor.canary=2", "monitor.cooldown=2")


def faulty():
    """The first run whose rewards are impossible."""
    for run in small_plan():
        if run.fault == "reward_spike" and judge(cases._panel(recorded(run))).verdict == "anomalous":
            return run
    raise AssertionError("no run of the small campaign shows its spike")


def recorded(run):
    return folder_of(campaign(), run.run_id)


def control_of(run):
    return next(r for r in small_plan() if r.kind == "healthy" and r.seed_group == run.seed_group)


def made(folder, arm, run=None, watches=judge):
    """Folder of a case."""
    planned = planned_case(run or faulty(), arm, BOUNDS)
    run_one(planned, folder, composed_training, CaseMaker(campaign(), watches))
    return folder_of(folder, planned.run_id)


def lines(path, name="telemetry.jsonl"):
    return (path / name).read_text().splitlines()


def facts(path):
    return json.loads((path / "case.json").read_text())


def line_of(path, run):
    """The case as a line of cases.jsonl, with the campaign's folder around it."""
    label = Label(run.run_id, 0, run.kind, run.fault, "reward", "easy", "easy", run.mechanism, True, True, 3)
    root = path.parents[3]
    (root / "runs").symlink_to(campaign() / "runs") if not (root / "runs").exists() else None
    return outcome(root, path, label, control_of(run).run_id, severity)


@pytest.fixture
def split(tmp_path):
    """Where cases lie in a campaign."""
    return tmp_path / "remediation" / "validation"


def test_names_of_cases_tell_run_and_arm():
    planned = planned_case(small_plan()[1], "rules", BOUNDS)
    assert parts_of(planned.run_id) == (small_plan()[1].run_id, "rules")
    assert planned.seed == small_plan()[1].seed and planned.overrides[: -len(BOUNDS) - 3] == (
        small_plan()[1].overrides
    )


@pytest.mark.slow
def test_a_remedied_run_is_the_recorded_one_until_the_alarm_and_mended_from_there(split):
    run = faulty()
    path = made(split, "rules")
    found = facts(path)
    assert found == {"trained": True, "same_prefix": True, "broke_off": ""}
    rollback, *_, accept = read_journal(path)
    assert (rollback.kind, accept.kind, rollback.changes) == ("rollback", "accept", MENDED)
    mine, theirs = lines(path), lines(recorded(run))
    assert len(mine) == len(theirs) == STEPS
    assert mine[: rollback.target] == theirs[: rollback.target] and mine[-1] != theirs[-1]
    assert len(read_run(path).records) == STEPS, "it is a run of the campaign like any other"
    row = line_of(path, run)
    assert row["state"] == "repaired" and row["severity_before"] > row["severity_after"] == 0
    assert row["telemetry"] == f"remediation/validation/runs/{path.name}/telemetry.jsonl"
    assert (row["alarm"], row["attempts"], row["changes"]) == (rollback.step, 1, MENDED)


@pytest.mark.slow
def test_the_same_case_made_twice_is_the_same_to_the_byte(tmp_path):
    one, other = made(tmp_path / "a", "rules"), made(tmp_path / "b", "rules")
    for name in ("telemetry.jsonl", "journal.jsonl", "case.json", "exposure.jsonl", "planned.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.slow
def test_going_back_without_a_change_mends_nothing_and_is_exact(split, monkeypatch):
    run = faulty()
    path = made(split, "rollback")
    assert [entry.kind for entry in read_journal(path)] == [*["rollback", "revert"] * 3, "pause"]
    assert lines(path) == lines(recorded(run)) and facts(path)["same_prefix"]
    row = line_of(path, run)
    assert row["state"] == "paused" and row["severity_after"] == row["severity_before"] > 0
    assert row["success_after"] == row["success_before"]
    # Trained to its end, as a person would who changes nothing, it is what was taken over.
    monkeypatch.setattr(cases, "same_prefix", lambda *_: False)
    shutil.rmtree(path)
    assert lines(made(split, "rollback")) == lines(recorded(run))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arm", "watches", "state"),
    [("noop", judge, "passed_over"), ("rules", blind, "no_alarm"), ("rules", puzzled, "paused")],
)
def test_where_nobody_steps_in_nothing_is_trained(split, arm, watches, state, monkeypatch):
    monkeypatch.setattr(cases, "run_training", None)
    run = faulty()
    path = made(split, arm, watches=watches)
    assert lines(path) == lines(recorded(run))
    assert lines(path, "exposure.jsonl") == lines(recorded(run), "exposure.jsonl")
    row = line_of(path, run)
    assert (row["state"], row["trained"], row["attempts"]) == (state, False, 0)


@pytest.mark.slow
def test_what_is_foreseen_of_an_arm_that_passes_alarms_over_is_what_it_does(tmp_path, monkeypatch):
    """The journal that is made without training is that of the trained run."""
    run = faulty()
    foreseen = made(tmp_path / "a", "noop")
    monkeypatch.setattr(cases, "foreseen", lambda *_: None)
    trained = made(tmp_path / "b", "noop")
    assert facts(trained)["trained"] and not facts(foreseen)["trained"]
    assert lines(trained) == lines(recorded(run))
    assert lines(trained, "journal.jsonl") == lines(foreseen, "journal.jsonl")


@pytest.mark.slow
def test_the_oracle_leaves_healthy_runs_alone_and_a_false_alarm_of_another_arm_is_kept(split, monkeypatch):
    monkeypatch.setattr(cases, "run_training", None)
    control = control_of(faulty())
    path = made(split, "oracle", control, watches=lambda panel: judge_all(panel))
    assert lines(path) == lines(recorded(control)) and read_journal(path)[0].kind == "none"


def judge_all(panel):
    """Anomalous, whatever it is."""
    return dataclasses.replace(judge(panel), verdict="anomalous", type="reward_spike", p_value=0.01, onset=2)


@pytest.mark.slow
def test_a_rerun_is_the_same_fault_with_another_seed(split):
    run = faulty()
    path = made(split, "rerun")
    assert lines(path) != lines(recorded(run)) and not read_journal(path)
    struck = [json.loads(line)["touched"] > 0 for line in lines(path, "exposure.jsonl")]
    assert not any(struck[:2]) and any(struck[2:])
    assert line_of(path, run)["state"] == "rerun"


@pytest.mark.slow
def test_a_run_that_breaks_off_is_a_result_that_is_not_mended(split, monkeypatch):
    run = faulty()

    def breaks(settings, folder, config, overrides, hooks, judge=None):
        shutil.copy(recorded(run) / "telemetry.jsonl", folder / "telemetry.jsonl")
        text = "".join(f"{line}\n" for line in lines(folder)[:3])
        (folder / "telemetry.jsonl").write_text(text)
        raise TrainingError("the gradient of step 4 is not finite")

    monkeypatch.setattr(cases, "run_training", breaks)
    path = made(split, "rules")
    assert facts(path)["broke_off"] == "the gradient of step 4 is not finite"
    row = line_of(path, run)
    assert row["state"] == "broke_off" and row["severity_after"] == row["severity_before"]
    assert row["success_after"] <= row["success_before"]


COMMAND = "from tests.bench.remediation.test_case import by_the_runner; by_the_runner({!r}, {!r}, {!r})"
SOME = ("rules", "noop")


def by_the_runner(folder, runs, run_id):
    """Some cases of a run, as the command makes them. runs: the campaign's folder."""
    run = next(run for run in small_plan() if run.run_id == run_id)
    planned = [planned_case(run, arm, BOUNDS) for arm in SOME]
    return run_campaign(
        planned, Path(folder), composed_training, workers=1, make=CaseMaker(Path(runs), judge)
    )


@pytest.mark.slow
def test_after_kill_9_the_same_start_makes_what_is_missing_and_nothing_twice(tmp_path):
    run = faulty()
    planned = [planned_case(run, arm, BOUNDS) for arm in SOME]
    arguments = str(tmp_path), str(campaign()), run.run_id
    started = subprocess.Popen([sys.executable, "-c", COMMAND.format(*arguments)])
    end = time.monotonic() + 300
    while not complete(tmp_path, planned) and started.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    there = {case.run_id for case in complete(tmp_path, planned)}
    assert there
    report = by_the_runner(*arguments)
    assert report.whole and report.done == len(SOME) and report.made <= len(SOME) - len(there)
    assert not [path for path in (tmp_path / "runs").iterdir() if path.name.startswith(".")]
