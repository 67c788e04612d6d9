"""What the figures show, and, where matplotlib is installed, that they are drawn."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("sklearn")

from robustops.bench.campaign.dataset import load
from robustops.bench.evaluation import figures
from robustops.bench.evaluation.registry import chosen
from robustops.bench.evaluation.rows import Row, Rows
from tests.bench.evaluation.small import small_dataset

HORIZONS = (20, 5, 40)


def rows():
    own = [
        Row(method, task, "P", horizon, metric, horizon / 50, horizon / 60, horizon / 45, difficulty)
        for method, task, metric in (("lof", "detect", "balanced_f1"), ("chance", "diagnose", "type_f1"))
        for horizon in HORIZONS
        for difficulty in ("easy", "hard")
    ]
    other = [Row("lof", "detect", "P", 30, "balanced_f1", 0.1, difficulty="easy", of="reward")]
    return Rows(own + other)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return load(small_dataset(tmp_path_factory.mktemp("figures"), groups=3, healthy=12))


def test_the_horizons_are_in_order_and_of_all_faults():
    found = figures.horizons(rows(), "lof", "P", "balanced_f1", "easy")
    assert found[:, 0].tolist() == [5, 20, 40] and found[:, 1].tolist() == [0.1, 0.4, 0.8]
    assert figures.horizons(rows(), "lof", "P+I", "balanced_f1", "easy").shape == (0, 4)


def test_a_case_of_the_papers_type_is_shown_first_and_a_run_without_one_otherwise(dataset, monkeypatch):
    assert figures._shown(dataset, []) is None
    monkeypatch.setattr(figures, "CASE_FAULT", "kl_explosion")
    run_id, case = figures._shown(dataset, [])
    assert dataset.by_id[run_id]["fault"] == "kl_explosion" and case is None
    ids = [r["run_id"] for r in dataset.rows if r["kind"] == "fault" and r["fault"] != "kl_explosion"]
    cases = [{"run_id": name, "telemetry": "t.jsonl"} for name in (ids[0], run_id)]
    assert figures._shown(dataset, cases) == (run_id, cases[1])
    assert figures._shown(dataset, [{"run_id": run_id, "telemetry": None}])[1] is None


def test_they_are_drawn(dataset, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(figures, "CASE_FAULT", "kl_explosion")
    campaign = dataset.folder.parent / "campaign"
    run_id = figures._shown(dataset, [])[0]
    case = {"run_id": run_id, "arm": "rules", "telemetry": f"runs/{dataset.control(run_id)}/telemetry.jsonl"}
    paths = figures.draw(dataset, rows(), chosen(["lof", "chance"]), "P", [case], campaign, tmp_path)
    assert [path.name for path in paths] == ["figure_6.png", "figure_7.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    monkeypatch.setattr(figures, "CASE_FAULT", "empty_response")
    assert figures.draw(dataset, Rows(), [], "P", [], campaign, tmp_path) == []
    assert not math.isnan(rows().rows[0].estimate)
