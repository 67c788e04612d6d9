"""From a data set and a set of runs to tables, whose numbers are counted again here."""

from __future__ import annotations

import csv
import dataclasses
from collections import Counter

import pytest

from robustops.bench.evaluation.registry import chosen
from robustops.bench.transfer.evaluate import evaluate
from robustops.bench.transfer.tables import VERDICT_COLUMNS, tables, verdicts, write_all
from robustops.bench.transfer.tried import read_tried
from robustops.errors import DatasetError
from tests.bench.evaluation.small import small_dataset
from tests.bench.transfer.drawn import write_trl_set


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def found(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trl")
    plan = write_trl_set(folder, healthy=20, steps=16)
    sets = {"trl": list(read_tried(folder, plan))}
    return evaluate(data, sets, chosen(["ivs_paper", "knn", "svm_classifier"]), draws=50)


def test_every_method_has_numbers_both_ways(found):
    assert not found.refused
    of = Counter((row.method, row.of) for row in found.rows if row.metric in ("auroc", "type_f1"))
    bases = ("trl, as learned", "trl, re-calibrated")
    assert of == dict.fromkeys(
        ((name, basis) for name in ("ivs_paper", "knn", "svm_classifier") for basis in bases), 1
    )


def test_the_set_is_looked_at_as_far_as_it_goes(found):
    assert found.facts["horizon"] == {"trl": 16} and {row.horizon for row in found.rows} == {16}
    columns = found.tested["trl", "P"].columns
    assert "kl_ref_k3" in columns and "success_mean" not in columns  # TRL does not log it


def test_shares_are_what_the_verdicts_say(found):
    rows = list(verdicts(found))
    for row in (r for r in found.rows if r.metric == "recall@5"):
        own = [v for v in rows if v["method"] == row.method and f"trl, {v['basis']}" == row.of]
        faulty = [v["alarm"] for v in own if v["fault"] != "none"]
        assert row.n == len(faulty) == 16 and row.estimate == pytest.approx(sum(faulty) / 16)
        assert row.low <= row.estimate <= row.high
    said = [v for v in rows if v["task"] == "diagnose" and v["basis"] == "re-calibrated"]
    assert [v["right"] for v in said] == [int(v["said"] == v["fault"]) for v in said]
    assert set().union(*rows) <= set(VERDICT_COLUMNS)


def test_type_f1_is_the_mean_over_types(found):
    """Each of the 16 types has one run: F1 of a type is 2 right / (1 + said)."""
    for one in found.diagnosers["trl", "P"]:
        truth = [run.planned.fault for run in found.tested["trl", "P"].faulty]
        said = Counter(one.said)
        scores = [
            2 * (told == fault) / (1 + said[fault]) for fault, told in zip(truth, one.said, strict=True)
        ]
        row = next(r for r in found.rows if r.metric == "type_f1" and r.of == f"trl, {one.basis}")
        assert row.estimate == pytest.approx(sum(scores) / 16)


def test_tables_and_files(found, tmp_path):
    detection, diagnosis = tables(found)
    assert [len(detection.rows), len(diagnosis.rows)] == [4, 2]
    assert "20 healthy and 16 faulty runs" in detection.note
    paths = {path.name: path for path in write_all(found, tmp_path)}
    for name in ("transfer.md", "transfer.csv", "verdicts.csv", "rows.json", "transfer_detection.json"):
        assert name in paths
    with paths["transfer.csv"].open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found.rows)
    assert float(rows[0]["estimate"]) == pytest.approx(found.rows[0].estimate)
    with paths["verdicts.csv"].open() as file:  # 2 detectors and 1 diagnoser, both ways
        assert len(list(csv.DictReader(file))) == 2 * 2 * 36 + 2 * 16


def test_a_method_that_cannot_learn_is_told_and_the_others_go_on(data, tmp_path, found):
    runs = [
        dataclasses.replace(run, panel=run.panel.only(("reward_mean", "grad_norm")))
        for run in (*found.tested["trl", "P"].healthy, *found.tested["trl", "P"].faulty)
    ]
    again = evaluate(data, {"trl": runs}, chosen(["kl_threshold", "knn"]), draws=20)
    assert "kl_threshold" in again.refused
    assert {row.method for row in again.rows} == {"knn"}


def test_without_a_data_set_there_is_nothing_to_learn_from(tmp_path):
    with pytest.raises(DatasetError):
        evaluate(tmp_path, {}, [])
