"""Table V by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from robustops.bench.evaluation.remediation import (
    read_cases,
    remediation_table,
    severity_change,
    weighted_median,
)
from robustops.bench.evaluation.resampling import Draws, draw_groups
from robustops.bench.evaluation.runs import Label
from robustops.errors import DatasetError


def label(name, group, kind="fault", family="reward"):
    return Label(name, group, kind, "reward_spike", family, "easy", "easy", "", True, True, 3)


LABELS = {
    **{name: label(name, place) for place, name in enumerate("abcd")},
    "h": label("h", 9, "healthy", "none"),
}


def case(run_id, before, after, success=(0.6, 0.2, 0.4), arm="rules"):
    body = {"run_id": run_id, "arm": arm, "severity_before": before, "severity_after": after}
    names = ("success_control", "success_before", "success_after")
    return {**body, **dict(zip(names, success, strict=True)), "telemetry": None}


def write(folder, lines):
    (folder / "remediation").mkdir()
    (folder / "remediation" / "cases.jsonl").write_text("\n".join(lines) + "\n")


def test_the_change_is_positive_where_the_severity_fell():
    assert severity_change(np.array([4.0, 2.0, 0.0]), np.array([1.0, 3.0, 1.0])).tolist() == pytest.approx(
        [0.75, -0.5, math.nan], nan_ok=True
    )


def test_the_median_is_that_of_the_drawn_runs():
    draws = Draws({0: 0, 1: 1, 2: 2}, np.array([[1.0, 1, 1], [2, 0, 1], [1, 0, 1]]))
    assert weighted_median(draws, [0, 1, 2], np.array([5.0, 1.0, 3.0])).tolist() == [3.0, 5.0, 4.0]
    many = draw_groups(dict.fromkeys(range(9), "a"), 0, 30)
    values = np.array([3.0, 1, 4, 1, 5, 9, 2, 6, 5])
    slow = [np.median(np.repeat(values, row.astype(int))) for row in many.weights]
    assert weighted_median(many, list(range(9)), values).tolist() == pytest.approx(slow)


def test_rates_by_arm_and_family():
    cases = [case("a", 4, 1), case("b", 2, 3), case("c", 2, 1), case("d", 1, 1)]
    cases += [case("a", 4, 5, (0.6, 0.2, 0.2), "noop"), case("h", 1, 1, (0.6, 0.6, 0.4))]
    table = remediation_table(cases, LABELS, seed=0, draws=20)
    rows = {(row[0], row[1]): row for row in table.rows}
    assert set(rows) == {
        ("rules", "reward"),
        ("rules", "all"),
        ("rules", "healthy"),
        ("noop", "reward"),
        ("noop", "all"),
    }
    rules = rows["rules", "all"]
    assert rules[2] == "4" and rules[3].value.estimate == 0.5
    assert rules[4].value.estimate == pytest.approx((0.5 + 0.0) / 2)  # of 0.75, -0.5, 0.5, 0
    assert rules[5].value.estimate == pytest.approx(0.5) and rows["noop", "all"][5].value.estimate == 0.0
    assert rows["rules", "healthy"][6].value.estimate == 1.0


def test_cases_are_read_and_a_bad_line_is_named(tmp_path):
    assert read_cases(tmp_path) == []
    write(tmp_path, [json.dumps(case("a", 4, 1)), json.dumps({"run_id": "b"})])
    with pytest.raises(DatasetError, match=r"cases.jsonl:2 is no case"):
        read_cases(tmp_path)
    (tmp_path / "remediation" / "cases.jsonl").write_text(json.dumps(case("a", 4, 1)) + "\n")
    assert read_cases(tmp_path) == [case("a", 4.0, 1.0)]


def test_without_cases_the_table_says_so():
    assert "No cases" in remediation_table([], LABELS, 0, 10).markdown()
