"""The whole stage on a campaign whose runs nobody has to train: what is drawn, made, written and refused."""

from __future__ import annotations

import dataclasses
import json

import pytest

from robustops.bench.campaign.dataset import load
from robustops.bench.evaluation.remediation import CASES, read_cases, remediation_table
from robustops.bench.evaluation.runs import Runs
from robustops.bench.remediation.remediate import Request, remediate, write_lines
from robustops.cli import main
from robustops.commands.bench_remediate import by_arm
from robustops.commands.composition import composed_training
from robustops.errors import ConfigError
from robustops.files import atomic_write_json, read_json
from tests.bench.evaluation.small import TYPES, small_dataset


@pytest.fixture(scope="module")
def request_(tmp_path_factory):
    """Too few healthy runs to calibrate a judge on: it never gives an alarm, and no case is trained."""
    folder = tmp_path_factory.mktemp("remediation")
    dataset = small_dataset(folder)
    return Request(folder / "campaign", dataset, ("noop",), cases=len(TYPES))


@pytest.fixture(scope="module")
def first(request_):
    return remediate(request_, composed_training)


@pytest.mark.slow
def test_every_drawn_run_is_a_case_of_every_arm(request_, first):
    assert first.report.whole and first.report.made == len(first.draw.run_ids) == len(first.rows)
    labels = Runs(load(request_.dataset)).labels
    assert sorted(labels[name].fault for name in first.draw.faulty) == sorted(TYPES)
    assert first.draw.healthy and all(labels[name].kind == "healthy" for name in first.draw.healthy)
    assert {row["state"] for row in first.rows} == {"no_alarm"}
    assert all(row["severity_after"] == row["severity_before"] for row in first.rows)
    assert by_arm(first.rows)["noop"]["fault/no_alarm"] == len(TYPES)
    written = read_json(request_.folder / "draw.json")
    assert written["faulty"] == list(first.draw.faulty) and written["arms"] == ["noop"]


@pytest.mark.slow
def test_the_evaluation_makes_table_v_of_them(request_, first):
    cases = read_cases(request_.campaign, final=False)
    assert len(cases) == len(first.rows) and not read_cases(request_.campaign, final=True)
    table = remediation_table(cases, Runs(load(request_.dataset)).labels, 0, 50)
    rows = {(row[0], row[1]): row for row in table.rows}
    assert rows["noop", "all"][3].value.estimate == 0 and rows["noop", "healthy"][-1].value.estimate == 0


@pytest.mark.slow
def test_a_second_start_makes_nothing_and_another_arm_only_its_own(request_, first):
    assert remediate(request_, composed_training).report.made == 0
    more = remediate(dataclasses.replace(request_, arms=("rules",)), composed_training)
    assert more.report.made == len(first.rows)
    assert {row["arm"] for row in more.rows} == {"rules", "noop"}, "lines of earlier starts stay"


@pytest.mark.slow
def test_cases_of_another_judge_are_not_mixed_with_new_ones(request_, first):
    path = request_.folder / "draw.json"
    body = read_json(path)
    atomic_write_json(path, {**body, "judged": {**body["judged"], "methods": {"own": "of another version"}}})
    try:
        with pytest.raises(ConfigError, match="cases with another methods"):
            remediate(request_, composed_training)
    finally:
        atomic_write_json(path, body)


def test_lines_of_the_other_sort_of_groups_stay(tmp_path):
    request = Request(tmp_path, tmp_path, ("noop",))
    write_lines(request, [{"run_id": "a", "final": False}])
    write_lines(dataclasses.replace(request, final=True), [{"run_id": "b", "final": True}])
    path = write_lines(request, [{"run_id": "c", "final": False}])
    assert path == tmp_path / CASES
    assert [json.loads(line)["run_id"] for line in path.read_text().splitlines()] == ["b", "c"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["arms=[llm]"], "arm llm needs a model; give llm.model=NAME"),
        (["arms=[rules,wisdom]"], "arms is 'wisdom'; choose some of: rules, llm, oracle"),
        (["cases=0"], "cases is 0; it must be at least 1"),
    ],
)
def test_a_wrong_request_is_one_line_and_status_2(words, message, tmp_path, capsys):
    assert main(["bench", "stage=remediate", f"campaign={tmp_path}", f"dataset={tmp_path}", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
