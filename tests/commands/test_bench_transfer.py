"""`robustops bench stage=transfer` where all runs are there, and where TRL is not."""

from __future__ import annotations

import json
import sys

import pytest

from robustops import cli
from robustops.bench.campaign.folders import folder_of
from tests.bench.evaluation.small import small_dataset
from tests.bench.transfer.drawn import write_trl_set

SMALL = ("transfer.sources=[trl]", "transfer.healthy=8", "transfer.steps=16", "progress=false")
METHODS = "methods=[knn,svm_classifier]"


@pytest.fixture
def bench(capsys, tmp_path):
    def run(*overrides):
        folders = (f"campaign={tmp_path}/campaign", f"dataset={tmp_path}/data/data")
        status = cli.main(["bench", "stage=transfer", *folders, *overrides])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_complete_sets_are_evaluated(bench, tmp_path):
    small_dataset(tmp_path / "data")
    write_trl_set(tmp_path / "campaign" / "transfer" / "trl", healthy=8, steps=16)
    status, out, err = bench(*SMALL, METHODS, "format=json")
    assert status == 0, err
    body = json.loads(out.splitlines()[-1])
    assert body["runs"]["trl"]["done"] == 24 and body["runs"]["trl"]["made"] == 0
    recall = [row for row in body["rows"] if row["metric"] == "recall@5"]
    assert {row["of"] for row in recall} == {"trl, as learned", "trl, re-calibrated"}
    status, out, _ = bench(*SMALL, METHODS)
    assert status == 0 and "24 of 24 runs are done" in out and "re-calibrated" in out


def test_runs_of_another_plan_are_refused(bench, tmp_path):
    write_trl_set(tmp_path / "campaign" / "transfer" / "trl", healthy=8, steps=16)
    status, out, err = bench(*SMALL, "transfer.strength=full")
    assert (status == 2 and "another plan" in out + err) or "was made with" in out + err


def test_without_a_data_set_the_runs_are_kept(bench, tmp_path):
    plan = write_trl_set(tmp_path / "campaign" / "transfer" / "trl", healthy=8, steps=16)
    status, out, err = bench(*SMALL)
    assert status == 2 and "stage=dataset" in out + err
    assert folder_of(tmp_path / "campaign" / "transfer" / "trl", plan[0].run_id).is_dir()


def test_trl_is_asked_for_before_any_work(bench, monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    status, out, err = bench(*SMALL)
    assert status == 2 and "pip install 'robustops[bench]'" in out + err and "transfer.sources" in out + err


def test_an_unknown_set_is_refused(bench):
    status, out, err = bench("transfer.sources=[calendar]")
    assert status == 2 and "itsm" in out + err
