"""Campaigns on several processes: nothing is lost, doubled or hidden, whatever interrupts them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from robustops.bench.campaign.campaign import run_campaign, shard_of
from robustops.bench.campaign.claims import claimed, clear_leftovers, held
from robustops.bench.campaign.folders import complete, folder_of, note_of, settled
from robustops.bench.campaign.plan import planned
from robustops.cli import main
from robustops.commands.composition import composed_training
from robustops.errors import ConfigError
from tests.bench.campaign.support import small_runs

COMMAND = [sys.executable, "-m", "tests.bench.campaign.support"]


def test_shards_are_disjoint_and_together_all():
    runs = planned()
    parts = [shard_of(runs, shard, 7) for shard in range(7)]
    assert sorted(run.run_id for part in parts for run in part) == sorted(run.run_id for run in runs)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    with pytest.raises(ConfigError, match="shard=7 of shards=7; give 0 to 6"):
        shard_of(runs, 7, 7)


def test_a_run_is_one_holders_until_the_block_ends_however_it_ends(tmp_path):
    with claimed(tmp_path, "abc") as mine:
        assert mine and held(tmp_path, "abc")
        with claimed(tmp_path, "abc") as another:
            assert not another
    with pytest.raises(RuntimeError), claimed(tmp_path, "abc"):
        raise RuntimeError
    assert not held(tmp_path, "abc")


def test_a_killed_holder_leaves_no_stale_claim(tmp_path):
    code = (
        "import sys, time; from pathlib import Path\n"
        "from robustops.bench.campaign.claims import claimed\n"
        "with claimed(Path(sys.argv[1]), 'abc') as mine: print(mine, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"True\n"
        assert held(tmp_path, "abc")
        holder.kill()
        holder.wait()
    with claimed(tmp_path, "abc") as mine:
        assert mine


def test_leftovers_of_one_run_go_and_those_of_others_stay(tmp_path):
    for name in (".abc.1", ".abd.1", "abc"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    clear_leftovers(tmp_path, "abc")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [".abd.1", "abc"]


def test_a_start_with_nothing_to_do_starts_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr("robustops.bench.campaign.campaign.Pool", None)
    report = run_campaign([], tmp_path, composed_training, workers=2)
    assert report.whole and report.made == 0


@pytest.mark.slow
def test_a_run_that_raises_is_reported_and_the_others_are_made(tmp_path):
    runs = small_runs(3)
    runs[1] = dataclasses.replace(runs[1], overrides=("grpo.steps=none",))
    report = run_campaign(runs, tmp_path, composed_training, workers=2)
    assert (report.done, report.made, report.steps, list(report.failed)) == (2, 2, 4, [runs[1].run_id])
    assert not report.whole and "grpo.steps=none" in report.failed[runs[1].run_id]
    note = note_of(tmp_path, runs[1].run_id).read_text()
    assert "Traceback" in note and "PlannedRun(run_id=" in note and settled(tmp_path, runs[1].run_id)
    mended = small_runs(3)
    again = run_campaign(mended, tmp_path, composed_training, workers=2)
    assert (again.done, again.made, again.whole) == (3, 1, True)
    assert not note_of(tmp_path, runs[1].run_id).exists()


@pytest.mark.slow
def test_after_kill_9_the_same_command_makes_what_is_missing_and_nothing_twice(tmp_path):
    runs = small_runs(4)
    started = subprocess.Popen([*COMMAND, str(tmp_path), "4", "1"])
    _until(lambda: complete(tmp_path, runs))
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    _until(lambda: not any(held(tmp_path, run.run_id) for run in runs))  # its worker ends with it
    there = {run.run_id: _stamp(tmp_path, run) for run in complete(tmp_path, runs)}
    report = run_campaign(runs, tmp_path, composed_training, workers=2)
    assert report.whole and report.done == 4 and report.made == 4 - len(there)
    assert there == {run.run_id: _stamp(tmp_path, run) for run in runs if run.run_id in there}
    assert not [path for path in (tmp_path / "runs").iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_two_campaigns_at_once_share_the_runs(tmp_path):
    command = [*COMMAND, str(tmp_path), "4", "1"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    reports = [json.loads(one.communicate(timeout=240)[0]) for one in both]
    assert sum(report["made"] for report in reports) == 4
    assert all(report["done"] + report["in_flight"] == 4 for report in reports)
    assert len(complete(tmp_path, small_runs(4))) == 4


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (["types=[reward_spke]"], "reward_spke"),
        (["shards=2", "shard=2"], "give 0 to 1"),
        (["seeds=0"], "seeds is 0; it must be at least 1"),
        (["stage=dance"], "stage is 'dance'; choose one of: campaign"),
    ],
)
def test_a_wrong_request_is_one_line_and_status_2(request_, words, tmp_path, capsys):
    assert main(["bench", f"campaign={tmp_path}", *request_]) == 2
    error = capsys.readouterr().err
    assert words in error and len(error.splitlines()) == 1 and "Traceback" not in error


def _stamp(campaign, run):
    return (folder_of(campaign, run.run_id) / "cost.json").stat().st_mtime_ns


def _until(holds, seconds=180):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
