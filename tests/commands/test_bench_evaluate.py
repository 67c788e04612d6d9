"""`robustops bench stage=evaluate` on a small data set."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from robustops import cli
from robustops.bench.evaluation.runs import Runs
from robustops.monitor.fitted import FittedMonitor
from tests.bench.evaluation.small import small_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return small_dataset(tmp_path_factory.mktemp("evaluate"), groups=6, healthy=24)


@pytest.fixture
def evaluate(capsys, tmp_path, dataset):
    def run(*overrides):
        folders = (f"campaign={tmp_path}", f"dataset={dataset}", "progress=false", "workers=1")
        status = cli.main(["bench", "stage=evaluate", "partitions=1", *folders, *overrides])
        captured = capsys.readouterr()
        text = captured.out + captured.err
        return status, text, json.loads(text.strip().splitlines()[-1]) if "format=json" in overrides else None

    return run


def test_it_writes_tables_and_figures_and_ends_with_one_json_line(evaluate, tmp_path):
    status, text, body = evaluate("methods=[lof,reward_z,always_fault,svm_classifier]", "format=json")
    assert status == 0, text
    assert body["reference"] == "lof" and body["partitions"] == 1 and not body["not_installed"]
    tables = tmp_path / "evaluation" / "validation" / "tables"
    assert {f"table_{n}.md" for n in range(3, 8)} <= {path.name for path in tables.glob("*.md")}
    assert len((tables / "tables.md").read_text()) > 1000
    named = {(row["method"], row["metric"]) for row in body["rows"]}
    assert ("lof", "auroc") in named and ("svm_classifier", "type_f1") in named
    assert [path.endswith("figure_7.png") for path in body["figures"]] == [True]


def test_text_shows_the_tables(evaluate):
    status, text, _ = evaluate("methods=[reward_z,always_fault,random]")
    assert status == 0, text
    for part in ("Detection of easy faults", "Counterpart of table III", "always_fault", "tables.md"):
        assert part in text


def test_an_unknown_method_is_one_line(evaluate):
    status, text, _ = evaluate("methods=[lofi]")
    assert status == 2 and "unknown method 'lofi'; choose one of:" in text and "Traceback" not in text


def test_without_a_data_set_it_says_what_to_do(evaluate, tmp_path):
    status, text, _ = evaluate(f"dataset={tmp_path / 'none'}", "methods=[reward_z]")
    assert status == 2 and "Traceback" not in text and "none" in text


def test_fit_writes_a_profile_that_judges_runs_of_the_experiment(tmp_path, capsys):
    """19 healthy runs to calibrate on and more to learn from: 86 healthy groups, a quarter of them final."""
    dataset = small_dataset(tmp_path, groups=10, healthy=86)
    profile = tmp_path / "profile"
    folders = (f"campaign={tmp_path}", f"dataset={dataset}", f"profile={profile}")
    assert cli.main(["bench", "stage=fit", *folders, "format=json"]) == 0
    body = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert body["runs"]["calibration"] >= 19 and body["runs"]["faulty"] > 14
    assert 0.0 < body["false_alarm_bound"] < 0.25
    fitted = FittedMonitor.load(profile)
    held = fitted.about["settings"]
    assert (held["domain.name"], held["grpo.group_size"]) == ("arithmetic", 8)
    runs = Runs.read(dataset)
    easy = [one for one in runs.labels.values() if one.difficulty == "easy"]
    verdicts = [fitted.judge(runs.panel(one.run_id, 40, "P+I")) for one in easy]
    found = [verdict.verdict == "anomalous" for verdict in verdicts]
    right = [one.fault in verdict.labels for one, verdict in zip(easy, verdicts, strict=True)]
    assert sum(found) > 0.8 * len(easy) and sum(right) > 0.6 * len(easy)
