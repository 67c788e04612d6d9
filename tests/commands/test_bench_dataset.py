"""`robustops bench stage=dataset`, `table`, `compare` on the runs of a real small campaign."""

from __future__ import annotations

import json
import os

import pytest

from robustops import cli
from robustops.bench.campaign.dataset import load
from tests.bench.campaign.small_campaign import campaign, small_plan


@pytest.fixture
def bench(monkeypatch, capsys, tmp_path):
    """Runs a stage with these overrides; returns its exit status, its text and its last line as JSON."""
    monkeypatch.chdir(tmp_path)
    for name in cli.ENVIRONMENT:
        monkeypatch.setenv(name, os.environ.get(name, cli.ENVIRONMENT[name]))

    def run(stage, *overrides):
        folders = [f"campaign={campaign()}", f"dataset={tmp_path / 'out'}"]
        status = cli.main(["bench", f"stage={stage}", *folders, *overrides])
        captured = capsys.readouterr()
        last = captured.out.splitlines()[-1] if captured.out.strip() else "null"
        body = json.loads(last) if "format=json" in overrides else None
        return status, captured.out + captured.err, body

    return run


def test_a_campaign_that_is_not_whole_is_refused_in_one_line(bench):
    status, text, _ = bench("dataset")
    assert status == 2 and "planned runs" in text and "partial=true" in text and "Traceback" not in text


def test_a_data_set_is_made_summed_up_and_compared(bench, tmp_path):
    status, text, body = bench("dataset", "partial=true", "format=json")
    assert status == 0, text
    dataset = load(tmp_path / "out")
    assert len(dataset.rows) == len(small_plan()) == body["files"]["runs.parquet"]["rows"]
    assert (tmp_path / "out" / "README.md").read_text().count("| `entropy` |") == 1
    assert {row["verified"] is not None for row in dataset.rows} == {True}, "every run was verified"
    healthy = [row for row in dataset.rows if row["kind"] == "healthy"]
    assert all(row["verified"] for row in healthy), [row["reason"] for row in healthy]

    status, text, body = bench("compare", "format=json")
    assert status == 0 and body["exact"] and body["runs"] == len(small_plan()), text

    status, text, body = bench("table", "format=json")
    assert status == 0, text
    assert body["totals"]["runs"] == len(small_plan()) and set(body["types"]) == {
        *("reward_spike", "empty_response")
    }
    assert set(body["probes"]) == {"metadata", "timing"} and not body["probes"]["metadata"]["leaks"]

    status, text, _ = bench("table")
    assert status == 0 and "metadata alone does not tell the label: AUROC" in text


def test_figures_say_what_is_missing_where_matplotlib_is_not(bench, tmp_path):
    assert bench("dataset", "partial=true")[0] == 0
    status, text, _ = bench("figures")
    if (tmp_path / "out" / "figures" / "fingerprints.png").is_file():
        assert status == 0 and "figure: out/figures/observability.png" in text
    else:
        assert status == 2 and "pip install 'robustops[faultbench]'" in text
