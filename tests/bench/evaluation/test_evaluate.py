"""The whole evaluation on a small data set: who sees what, what is reused, and what the numbers are."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("sklearn")

from robustops.bench.evaluation import evaluate as work
from robustops.bench.evaluation import units as unit_module
from robustops.bench.evaluation.detection import at
from robustops.bench.evaluation.protocol import partitions
from robustops.bench.evaluation.registry import chosen
from robustops.bench.evaluation.remediation import remediation_table
from robustops.bench.evaluation.rows import Rows
from robustops.bench.evaluation.runs import Runs
from robustops.bench.evaluation.table import write
from robustops.bench.evaluation.tables import everything, tables
from robustops.bench.evaluation.units import run_units, units_of
from robustops.errors import ConfigError
from tests.bench.evaluation.small import STEPS, TYPES, small_dataset

METHODS = ("lof", "reward_z", "kl_threshold", "random", "always_fault", "rlprobe", "knn_classifier", "chance")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return small_dataset(tmp_path_factory.mktemp("evaluation"))


@pytest.fixture(scope="module")
def runs(dataset):
    return Runs.read(dataset)


@pytest.fixture(scope="module")
def request_(dataset, tmp_path_factory):
    return work.Request(
        dataset,
        tmp_path_factory.mktemp("out"),
        tuple(chosen(METHODS)),
        partitions=2,
        tiers=("P", "P+I"),
        horizons=(8, STEPS),
        draws=50,
    )


@pytest.fixture(scope="module")
def evaluation(request_):
    return work.evaluate(request_)


def parts_of(runs, **arguments):
    return partitions(runs.dataset.splits.to_pylist(), runs.labels, 2, **arguments)


def test_no_seed_group_is_learned_from_and_tested(runs):
    for part in parts_of(runs):
        learned, calibrated, tested = (
            {runs.labels[name].group for name in names}
            for names in (part.profile, part.calibration, part.test)
        )
        assert not learned & calibrated and not learned & tested and not calibrated & tested
        for fold in part.folds:
            seen = {runs.labels[name].group for name in fold.train}
            assert not seen & {runs.labels[name].group for name in (*fold.test, *fold.healthy)}


def test_every_tested_fault_and_healthy_run_is_in_one_fold(runs):
    part = parts_of(runs)[0]
    for kind, names in (("fault", "test"), ("healthy", "healthy")):
        own = [name for fold in part.folds for name in getattr(fold, names)]
        assert sorted(own) == sorted(n for n in part.test if runs.labels[n].kind == kind)
        assert len(own) == len(set(own))


def test_final_groups_are_tested_when_they_are_opened_and_never_before(runs):
    final = {row["run_id"] for row in runs.dataset.splits.to_pylist() if row["final"]}
    before, opened = parts_of(runs)[0], parts_of(runs, final=True)[0]
    assert set(opened.test) == final and not final & {*before.test, *before.profile, *before.calibration}
    assert set(opened.folds[0].test) <= final and not final & set(opened.folds[0].train)
    assert set(before.calibration) < set(opened.calibration)


def test_more_partitions_than_there_are_is_an_error(runs):
    with pytest.raises(ConfigError, match="partitions=9; the data set has 5"):
        partitions(runs.dataset.splits.to_pylist(), runs.labels, 9)


def test_methods_see_the_tier_and_the_horizon_and_no_label(runs):
    name = parts_of(runs)[0].test[0]
    panel = runs.panel(name, 8, "P")
    assert len(panel) == 8 and "success_mean" not in panel.columns and "reward_mean" in panel.columns
    assert "vf_loss" in runs.panel(name, 8, "P+I").columns  # the source lacks nothing: it is not observed
    assert set(runs.panel(name, STEPS, "P+I").columns) > set(panel.columns)


def test_easy_faults_of_the_reward_are_found_by_the_reward_and_chance_finds_none(evaluation):
    rows = evaluation.rows
    facts = {"tier": "P+I", "horizon": STEPS, "difficulty": "easy"}
    spikes = rows.value(method="reward_z", metric="recall@5", of="reward_spike", **facts)
    other = rows.value(method="reward_z", metric="recall@5", of="length_long", **facts)
    assert spikes.estimate > 0.6 > other.estimate
    assert 0.2 < rows.value(method="random", metric="auroc", **facts).estimate < 0.8
    trivial = rows.value(method="always_fault", metric="balanced_f1", **facts)
    assert trivial.estimate == pytest.approx(2 / 3)
    assert rows.value(method="always_fault", metric="paper_f1", **facts).estimate == pytest.approx(
        0.983, abs=1e-3
    )


def test_easy_types_are_told_apart_and_chance_tells_none(evaluation):
    facts = {"tier": "P+I", "horizon": STEPS, "difficulty": "easy", "metric": "type_f1"}
    known = evaluation.rows.value(method="knn_classifier", **facts).estimate
    assert known > evaluation.rows.value(method="chance", **facts).estimate
    end = evaluation.rows.value(method="knn_classifier", **{**facts, "metric": "end_to_end_type_f1"})
    assert end.estimate <= known + 1e-9
    assert evaluation.reference == "lof"


def test_the_auroc_of_the_rows_is_that_of_the_scores(request_, runs, evaluation):
    parts = parts_of(runs)
    work_ = units_of(chosen(["lof"]), parts, ["P"], [STEPS])
    done, _ = run_units(request_.dataset, request_.folder / "scores", work_)
    slow = []
    for one in done:
        kinds = [runs.labels[str(n)].kind for n in one.arrays["run_ids"]]
        easy = [runs.labels[str(n)].difficulty == "easy" for n in one.arrays["run_ids"]]
        tested = [str(n) in one.unit.partition.test for n in one.arrays["run_ids"]]
        scores = one.arrays["scores"]
        faulty = [s for s, k, e in zip(scores, kinds, easy, strict=True) if k == "fault" and e]
        healthy = [s for s, k, t in zip(scores, kinds, tested, strict=True) if k == "healthy" and t]
        slow.append(np.mean([(a > b) + 0.5 * (a == b) for a in faulty for b in healthy]))
    row = evaluation.rows.value(method="lof", tier="P", horizon=STEPS, metric="auroc", difficulty="easy")
    assert row.estimate == pytest.approx(np.mean(slow))
    assert row.low <= row.estimate <= row.high


def test_what_is_done_is_not_done_again(request_, evaluation, monkeypatch):
    monkeypatch.setattr(unit_module, "_work", lambda *given: pytest.fail("worked again"))
    again = work.evaluate(request_)
    assert [r.to_dict() for r in again.rows.rows] == [r.to_dict() for r in evaluation.rows.rows]


def test_a_torn_or_foreign_file_is_made_again(request_, runs, evaluation):
    unit = units_of(chosen(["reward_z"]), parts_of(runs)[:1], ["P"], [STEPS])[0]
    path = request_.folder / "scores" / unit.name
    before = path.read_bytes()
    run_units(request_.dataset, path.parent, [unit], seed=1)  # scores of another seed
    assert path.read_bytes() != before
    path.write_bytes(before[:40])
    assert run_units(request_.dataset, path.parent, [unit])[0][0].arrays["scores"].size
    assert path.read_bytes() == before


def test_a_method_that_cannot_learn_is_named_with_its_reason(dataset, tmp_path, runs, monkeypatch):
    from robustops.bench.evaluation.baselines.thresholds import KLThreshold

    monkeypatch.setattr(KLThreshold, "column", "no_such_column")
    units = units_of(chosen(["kl_threshold"]), parts_of(runs)[:1], ["P"], [STEPS])
    done, refused = run_units(dataset, tmp_path, units)
    assert not done and "needs two healthy runs with no_such_column" in refused["kl_threshold"]
    assert not list(tmp_path.iterdir())


def test_final_groups_are_opened_once(request_):
    opened = dataclasses.replace(request_, methods=tuple(chosen(["reward_z"])), partitions=1, final=True)
    first = work.evaluate(opened)
    assert first.facts["final"] and first.facts["folds"] == 1
    again = work.evaluate(opened)
    assert [row.to_dict() for row in again.rows.rows] == [row.to_dict() for row in first.rows.rows]
    with pytest.raises(ConfigError, match="opened before, with other methods"):
        work.evaluate(dataclasses.replace(opened, methods=tuple(chosen(["reward_z", "lof"]))))


def test_methods_whose_package_is_absent_are_named_in_every_table(request_, evaluation, tmp_path):
    rows = Rows(row for row in evaluation.rows.rows if not row.method.startswith("rlprobe"))
    absent = dataclasses.replace(evaluation, rows=rows, absent={"rlprobe": "rlprobe"})
    made = tables(absent, request_, [remediation_table([], {}, 0, 10)])
    for table in made:
        if table.name.startswith(("detection", "online", "modes", "compared", "table_3")):
            assert "rlprobe: rlprobe is not installed" in table.markdown()
    paths = write(made, everything(absent), tmp_path)
    assert {p.suffix for p in paths} == {".md", ".json"} and "III" in (tmp_path / "tables.md").read_text()
    assert json.loads((tmp_path / "rows.json").read_text())["not_installed"] == {"rlprobe": "rlprobe"}
    assert "no remediation/cases.jsonl" in json.loads((tmp_path / "table_5.json").read_text())["note"]


def test_a_level_that_too_few_calibration_runs_allow_is_said(evaluation, request_):
    row = evaluation.rows.get(method="lof", tier="P", horizon=STEPS, metric=at("level", 0.01))
    assert row.estimate == pytest.approx(1 / (1 + evaluation.facts["calibration_runs"]))
    table = next(t for t in tables(evaluation, request_, []) if t.name == f"detection_p_{STEPS}_easy")
    assert f"@1 is @{100 * row.estimate:.1f}" in table.note


def test_labels_say_where_the_fault_really_struck(runs):
    faulty = [label for label in runs.labels.values() if label.kind == "fault"]
    assert {label.fault for label in faulty} == set(TYPES)
    # The synthetic exposure touches units at every step; a healthy run has no onset.
    assert {label.onset for label in faulty} == {1}
    assert {label.onset for label in runs.labels.values() if label.kind == "healthy"} == {0}
